"""Markdown of results/plan-*.json, for report.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.markdown import markdown
from benchmarks.plan_parts import compiled, cost, memory

Row = Mapping[str, Any]

WITHIN = (0.72, 0.88)
"""Share of 80% intervals that should hold what was measured: 80 % and 8 either way."""

_OTHERS = {"plan_memory": memory, "plan_cost": cost, "plan_compiled": compiled}
KEYS = ("plan_speed", *_OTHERS)
"""A file of results that is made into a table here has one of them."""


def met(result: Row) -> bool:
    for key, part in _OTHERS.items():
        if key in result:
            return bool(part.all_within(result))
    found = result["unseen"]["all"]
    return bool(WITHIN[0] <= found["in_range"] / max(1, found["predicted"]) <= WITHIN[1])


def table(result: Row) -> str:
    for key, part in _OTHERS.items():
        if key in result:
            return str(part.table(result))
    return _published(result)


def _published(result: Row) -> str:
    """Coverage and errors by kind, of rows never used and of those that widths were chosen by."""
    head = ("Rows", "Kind", "Predicted", "Median error", "Median", "Worst", "In range")
    rows = [
        (which, kind, *_counts(summary))
        for which, part in (("never used", "unseen"), ("looked at", "seen"))
        for kind, summary in result[part].items()
        if summary["predicted"]
    ]
    missed = markdown(
        ("Outside of its range", "Model", "GPUs", "Measured", "Predicted", "Bound"),
        (cells for system in result["systems"] for cells in _missed(system)),
    )
    closing = (
        "Target: 80 % ± 8 of the intervals of rows never used hold: "
        f"{'met' if met(result) else '**missed**'}. Error: "
        "predicted rate divided by the measured one, minus one; negative means predicted too slow. "
        "Of steps that the host decides only the lower bound is stated, and has to hold. "
        f"Left out: {'; '.join(result['left_out'])}."
    )
    return "\n".join([markdown(head, rows), "", closing, "", missed])


def _counts(summary: Row) -> tuple[str, ...]:
    return (
        str(summary["predicted"]),
        f"{100 * summary['median_error']:.1f} %",
        _signed(summary["bias"]),
        _signed(summary["worst_error"]),
        f"{summary['in_range']} of {summary['predicted']}",
    )


def _missed(system: Row) -> Iterable[tuple[str, ...]]:
    source = system["source"]
    name = f"[{system['name']}]({source})" if source.startswith("https://") else system["name"]
    name += ", never used" if system.get("held_out") else ""
    for row in system["rows"]:
        if row["status"] == "predicted" and not row["plain"]["in_range"]:
            low, _, high = row["plain"]["predicted_s"]
            yield (
                name,
                row["model"],
                str(row["gpus"]),
                f"{row['measured_s']:.3g} s",
                f"{low:.3g} to {high:.3g} s",
                row["plain"]["bound"],
            )


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
