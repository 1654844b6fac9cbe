"""A scaling study as a table: for a terminal, as CSV, and as LaTeX for a proposal."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fsdpkit.reporting.scales import number
from fsdpkit.sweeps.scaling import Size

ABSENT = "–"
HEAD = (
    *("MODE", "NODES", "RANKS", "STATE", "S/STEP", "TOKENS/S", "PREDICTED", "SPEEDUP"),
    *("EFFICIENCY", "GPU-H/1E9"),
)
_COLUMNS = (
    *("mode", "nodes", "ranks", "run", "state", "samples", "step_time_s", "tokens_per_s"),
    *("predicted_tokens_per_s", "speedup", "efficiency", "gpu_hours_per_billion_tokens"),
)


def rows(sizes: Sequence[Size]) -> list[list[str]]:
    """A row a size; PREDICTED is what its run was submitted with."""
    return [
        [
            one.mode,
            str(one.nodes),
            str(one.ranks),
            one.state,
            _shown(one.step_time_s),
            _shown(one.tokens_per_s),
            _shown(one.predicted_tokens_per_s),
            ABSENT if one.speedup is None else f"{one.speedup:.2f}",
            ABSENT if one.efficiency is None else f"{one.efficiency:.0%}",
            _shown(one.gpu_hours_per_billion_tokens),
        ]
        for one in sizes
    ]


def as_csv(sizes: Sequence[Size]) -> str:
    """Every field as it was measured, one line a size; empty: not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for one in sizes:
        values = [getattr(one, name) for name in _COLUMNS]
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def as_latex(sizes: Sequence[Size]) -> str:
    """A `tabular` of booktabs, without what was not measured anywhere."""
    head = ["Scaling", "Nodes", "GPUs", "s/step", "Tokens/s", "Predicted", "Speedup"]
    head += ["Efficiency", "GPU-h per $10^9$ tokens"]
    cells = [
        [
            one.mode,
            str(one.nodes),
            str(one.ranks),
            *map(_tex, (one.step_time_s, one.tokens_per_s, one.predicted_tokens_per_s)),
            "--" if one.speedup is None else f"{one.speedup:.2f}",
            "--" if one.efficiency is None else rf"{100 * one.efficiency:.0f}\,\%",
            _tex(one.gpu_hours_per_billion_tokens),
        ]
        for one in sizes
    ]
    used = [c for c in range(len(head)) if any(row[c] != "--" for row in cells)]
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(used) - 1)}}}",
        r"\toprule",
        " & ".join(head[c] for c in used) + r" \\",
        r"\midrule",
        *(" & ".join(row[c] for c in used) + r" \\" for row in cells),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _shown(value: float | None) -> str:
    return ABSENT if value is None else number(value, 3)


def _tex(value: float | None) -> str:
    """Thousands apart by a thin space, and powers of ten as such."""
    if value is None:
        return "--"
    if value >= 1000:
        return f"{value:,.0f}".replace(",", r"\,")
    return f"{value:.3g}"
