"""Markdown of results/plan-*.json, for report.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.markdown import markdown
from benchmarks.plan_parts import compiled, cost, memory

Row = Mapping[str, Any]

WITHIN = (0.72, 0.88)
"""Share of 80% intervals that should hold what was measured: 80 % and 8 either way."""
HOW = {"plain": "published figures", "calibrated": "calibrated by one run of the system"}

_OTHERS = {"plan_memory": memory, "plan_cost": cost, "plan_compiled": compiled}
KEYS = ("plan_speed", *_OTHERS)
"""A file of results that is made into a table here has one of them."""


def met(result: Row) -> bool:
    for key, part in _OTHERS.items():
        if key in result:
            return bool(part.all_within(result))
    summary = result["summary"]
    known = [summary[how] for how in HOW if summary[how]["predicted"]]
    return all(WITHIN[0] <= each["in_range"] / each["predicted"] <= WITHIN[1] for each in known)


def table(result: Row) -> str:
    for key, part in _OTHERS.items():
        if key in result:
            return str(part.table(result))
    return _published(result)


def _published(result: Row) -> str:
    """Coverage and errors of both kinds of predictions, of all systems and of each."""
    head = ("System", "Rates from", "Predicted", "Median error", "Worst", "In range")
    rows = [("**all**", HOW[how], *_counts(result["summary"][how])) for how in HOW]
    for system in result["systems"]:
        name = system["name"]
        shown = f"[{name}]({system['source']})" if "://" in system["source"] else name
        for how in HOW:
            counts = system["summary"][how]
            if counts["predicted"]:
                rows.append((shown, HOW[how], *_counts(counts)))
    every = markdown(
        ("System", "Model", "GPUs", "Tokens × rows × passes", "Measured", "Predicted", "Error",
         "In range", "Bound"),
        (cells for system in result["systems"] for cells in _cells(system)),
    )  # fmt: skip
    closing = (
        f"Target: 80 % ± 8 of the intervals hold: {_verdict(result)}. Error: predicted rate "
        "divided by the measured one, minus one; negative means predicted too slow. "
        f"Left out: {'; '.join(result['left_out'])}."
    )
    details = ["<details><summary>Every row</summary>", "", every, "", "</details>"]
    return "\n".join([markdown(head, rows), "", closing, "", *details])


def _counts(summary: Row) -> tuple[str, ...]:
    of = summary["predicted"]
    if not of:
        return ("0", "", "", "")
    return (
        str(of),
        _percent(summary["median_error"]),
        _percent(summary["worst_error"]),
        f"{summary['in_range']} of {of}",
    )


def _cells(system: Row) -> Iterable[tuple[str, ...]]:
    for row in system["rows"]:
        first = (system["name"], row["model"], str(row["gpus"]))
        if row["status"] == "not modelled":
            yield (*first, "", "", "", "", "", f"not modelled: {row['not_modelled']}")
            continue
        shape = f"{row['length']} × {row['rows']} × {row.get('accumulation', 1)}"
        found = row["plain"]
        yield (
            *first,
            shape,
            f"{row['measured_s']:.3g} s",
            "{:.3g} to {:.3g} s".format(found["predicted_s"][0], found["predicted_s"][2]),
            f"{100 * found['error']:+.1f} %",
            "yes" if found["in_range"] else "no",
            found["bound"],
        )


def _verdict(result: Row) -> str:
    return "met" if met(result) else "**missed**"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
