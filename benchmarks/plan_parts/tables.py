"""Markdown of results/plan-speed*.json, for report.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_NOTE = (
    "Error: predicted rate over the measured one, less one; negative is predicted too slow. Range: "
    "the factor either way within which the answer says four of five lie."
)


def table(result: Row) -> str:
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
    met = "met" if result["summary"]["median_error"] <= 0.1 else "**missed**"
    closing = (
        f"Target: median error ≤ 10 %: {met}. {_NOTE} Left out: {'; '.join(result['left_out'])}."
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
            f"{row['predicted_s']:.3f} s",
            "calibrates" if row["status"] == "calibrates" else _signed(row["error"]),
            f"× {row['factor']:.2f}",
        )
        for row in result["rows"]
    ]
    lines = _lines(("T5", "Ranks", "Measured", "Predicted", "Error", "Range"), rows)
    predicted = [abs(row["error"]) for row in result["rows"] if row["status"] == "predicted"]
    inside = sum(error <= 0.15 for error in predicted)
    measured = result["measured"]
    verdict = "met" if inside == len(predicted) else "**missed**"
    load = ", ".join(f"{each:g}" for each in measured["load"])
    closing = (
        f"Target: each within 15 %: {inside} of {len(predicted)}, {verdict}. Measured on "
        f"{measured['cpus']} CPU cores; load before each number of ranks and at the end: {load}."
    )
    return "\n".join([*lines, "", closing])


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruled = (head, ["---"] * len(head), *rows)
    return ["| " + " | ".join(cells) + " |" for cells in ruled]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
