"""Markdown of results/plan-*.json, for report.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.plan_parts import compiled, cost, memory

Row = Mapping[str, Any]

_NOTE = (
    "Error: predicted rate divided by the measured one, minus one; negative means predicted too "
    "slow. Range: the factor in either direction within which the plan expects four of five."
)


WITHIN_MEDIAN, WITHIN_EACH = 0.10, 0.15
"""Of published runs, the median error; of our own, each one's."""


_OTHERS = {"plan_memory": memory, "plan_cost": cost, "plan_compiled": compiled}
KEYS = ("plan_speed", *_OTHERS)
"""A file of results that is made into a table here has one of them."""


def met(result: Row) -> bool:
    for key, part in _OTHERS.items():
        if key in result:
            return bool(part.all_within(result))
    if result.get("systems"):
        return bool(result["summary"]["median_error"] <= WITHIN_MEDIAN)
    return all(error <= WITHIN_EACH for error in _errors(result))


def _errors(result: Row) -> list[float]:
    return [abs(row["error"]) for row in result["rows"] if row["status"] == "predicted"]


def table(result: Row) -> str:
    for key, part in _OTHERS.items():
        if key in result:
            return str(part.table(result))
    systems = result.get("systems")
    return _published(result, systems) if systems else _own(result)


def _published(result: Row, systems: Sequence[Row]) -> str:
    head = ("System, calibrated by one of its runs", "Predicted", "Median error", "≤ 10 %")
    rows = [
        (f"[{system['name']}]({system['source']})", *_counts(system["summary"]))
        for system in systems
    ]
    rows.append(("**all**", *_counts(result["summary"])))
    lines = _lines((*head, "Worst", "In range"), rows)
    every = _lines(
        ("System", "Model", "GPUs", "Tokens × rows × passes", "Measured", "Predicted", "Error",
         "Range", "Bound"),
        (cells for system in systems for cells in _cells(system)),
    )  # fmt: skip
    closing = (
        f"Target: median error ≤ 10 %: {_verdict(result)}. {_NOTE} "
        f"Left out: {'; '.join(result['left_out'])}."
    )
    details = ["<details><summary>Every row</summary>", "", *every, "", "</details>"]
    return "\n".join([*lines, "", closing, "", *details])


def _counts(summary: Row) -> tuple[str, ...]:
    of = summary["predicted"]
    return (
        str(of),
        _percent(summary["median_error"]),
        f"{summary['within_10_percent']} of {of}",
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
        error = "calibrates" if row["status"] == "calibrates" else _signed(row["error"])
        seconds = (f"{row['measured_s']:.3g} s", f"{row['predicted_s']:.3g} s")
        yield (*first, shape, *seconds, error, f"× {row['factor']:.2f}", row["bound"])


def _own(result: Row) -> str:
    rows = [
        (
            row["size"],
            str(row["ranks"]),
            f"{row['measured_s']:.3f} s",
            "{:.3f} to {:.3f} s".format(*median_between(row["samples_s"])),
            f"{row['predicted_s']:.3f} s",
            "calibrates" if row["status"] == "calibrates" else _signed(row["error"]),
            f"× {row['factor']:.2f}",
        )
        for row in result["rows"]
    ]
    head = ("T5", "Ranks", "Measured", "Median between", "Predicted", "Error", "Range")
    lines = _lines(head, rows)
    predicted = _errors(result)
    inside = sum(error <= WITHIN_EACH for error in predicted)
    unsure = sum(_unsure(row) for row in result["rows"])
    measured = result["measured"]
    load = ", ".join(f"{each:g}" for each in measured["load"])
    closing = (
        f"Target: each within 15 %: {inside} of {len(predicted)}, {_verdict(result)}. *Median "
        "between*: the range that contains the true median with at least 85 % confidence. For "
        f"{unsure} of {len(rows)} rows it reaches more than 15 % from the measured one, and a row "
        "that calibrates shifts all rows with its number of ranks. Measured on "
        f"{measured['cpus']} CPU cores; load before each number of ranks and at the end: {load}."
    )
    return "\n".join([*lines, "", closing])


SURE = 0.85


def median_between(samples: Sequence[float]) -> tuple[float, float]:
    """The two samples between which the median of what they are drawn from lies with `SURE` or
    more, whatever its distribution: so many of them fall on either side as heads in tosses of a
    coin (David and Nagaraja, "Order Statistics", 2003, section 7.1). The extremes where there are
    too few."""
    ordered, n = sorted(samples), len(samples)
    for k in reversed(range((n + 1) // 2)):
        if 1 - 2 * sum(math.comb(n, tosses) for tosses in range(k + 1)) / 2**n >= SURE:
            return ordered[k], ordered[n - 1 - k]
    return ordered[0], ordered[-1]


def _unsure(row: Row) -> bool:
    low, high = median_between(row["samples_s"])
    return bool(max(high / row["measured_s"], row["measured_s"] / low) > 1 + WITHIN_EACH)


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruled = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(cells) + " |" for cells in ruled]


def _verdict(result: Row) -> str:
    return "met" if met(result) else "**missed**"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
