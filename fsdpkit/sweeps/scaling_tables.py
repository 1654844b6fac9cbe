"""A scaling study as a table (for a terminal, CSV, LaTeX) and as the figure of a proposal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fsdpkit.errors import ConfigError
from fsdpkit.reporting.words import ABSENT, shown
from fsdpkit.sweeps.scaling import Mode, Size, knee

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
            shown(one.step_time_s),
            shown(one.tokens_per_s),
            shown(one.predicted_tokens_per_s),
            ABSENT if one.speedup is None else f"{one.speedup:.2f}",
            ABSENT if one.efficiency is None else f"{one.efficiency:.0%}",
            shown(one.gpu_hours_per_billion_tokens),
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


def _tex(value: float | None) -> str:
    """Thousands apart by a thin space, and powers of ten as such."""
    if value is None:
        return "--"
    if value >= 1000:
        return f"{value:,.0f}".replace(",", r"\,")
    return f"{value:.3g}"


_COLOURS: dict[Mode, str] = {"weak": "#0b62a8", "strong": "#b34700"}
"""Told apart by colour-blind people, and in grey by their markers."""
_MARKERS: dict[Mode, str] = {"weak": "o", "strong": "s"}


def figure(sizes: Mapping[Mode, Sequence[Size]], title: str, kind: Literal["svg", "png"]) -> bytes:
    """The file's bytes. sizes: by mode, smallest first. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ImportError as error:
        raise ConfigError(
            "a figure needs matplotlib, which is not installed here: pip install 'fsdpkit[plot]'; "
            "the tables need nothing more: --tables"
        ) from error
    made: Any = Figure(figsize=(7.2, 3.2), layout="constrained")
    speed, efficiency = made.subplots(1, 2)
    nodes = sorted({one.nodes for found in sizes.values() for one in found})
    ideal = [n / nodes[0] for n in nodes]
    speed.plot(nodes, ideal, color="0.6", ls=":", label="ideal")
    for mode, found in sizes.items():
        _draw_mode(mode, found, speed, efficiency)
    efficiency.axhline(100, color="0.6", ls=":")
    for axes, name in ((speed, "speedup"), (efficiency, "efficiency [%]")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(nodes, [str(n) for n in nodes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("nodes")
        axes.set_ylabel(name)
        axes.spines[["top", "right"]].set_visible(False)
    speed.set_yscale("log", base=2)
    speed.set_yticks(ideal, [f"{each:g}" for each in ideal])
    speed.yaxis.set_minor_locator(NullLocator())
    efficiency.set_ylim(0, max(110, efficiency.get_ylim()[1]))
    speed.legend(frameon=False, fontsize=8)
    made.suptitle(title, fontsize=10)
    out = io.BytesIO()
    made.savefig(out, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _draw_mode(mode: Mode, found: Sequence[Size], speed: Any, efficiency: Any) -> None:
    """What was measured, what had been predicted, and the knee."""
    colour = _COLOURS[mode]
    known = [one for one in found if one.speedup is not None]
    style = {"color": colour, "marker": _MARKERS[mode], "markersize": 4}
    at = [one.nodes for one in known]
    speed.plot(at, [one.speedup for one in known], label=mode, **style)
    efficiency.plot(at, [100 * (one.efficiency or 0) for one in known], label=mode, **style)
    base = known[0].tokens_per_s if known else None
    predicted = [
        (one.nodes, one.predicted_tokens_per_s / base)
        for one in found
        if base and one.predicted_tokens_per_s is not None
    ]
    if predicted:
        cross = {"color": colour, "marker": "x", "ls": "--", "markersize": 4}
        speed.plot(*zip(*predicted, strict=True), label=f"{mode}: predicted", **cross)
    if (where := knee(found)) is not None:
        (height,) = (one.speedup for one in known if one.nodes == where)
        ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "ls": ""}
        speed.plot([where], [height], color=colour, label=f"{mode}: knee", **ring)
