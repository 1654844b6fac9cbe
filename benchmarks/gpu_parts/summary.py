"""From rows to a result file: figures with their targets, tables, and what was not measured.

Pure: what is not among the rows is left out or said to be missing, never made up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_parts.steps import KEPT
from benchmarks.gpu_parts.tables import digits, gib, markdown, seconds
from benchmarks.report import Figure, ratio

Row = Mapping[str, Any]
Rows = Sequence[Row]

# (row's part and beginning of its name, what it is set against, sequences a second). NVIDIA's are
# those of its T5X README for one of 64 or 144 GPUs; 40 % of bf16 peak is an H100's or H200's 989.4.
PUBLISHED = (
    ("speed", "large, ", "NVIDIA T5X in FP8, one of 64 H100 (published)", 174.1),
    ("speed", "large, ", "40 % of an H100's bf16 peak", 263.0),
    ("xl", "xl, ", "NVIDIA T5X in FP8, one of 144 H100 (published)", 50.4),
    ("xl", "xl, ", "40 % of an H100's bf16 peak", 72.0),
)
PEERS = (
    ("ours, not compiled", "Hugging Face eager", 2.0),
    ("ours", "Hugging Face eager, compiled", 2.0),
    ("ours, not compiled", "Hugging Face sdpa", 1.0),
    ("ours", "Hugging Face sdpa, compiled", 1.0),
)
GUARANTEES_COST = 1.25


def result_of(rows: Rows) -> dict[str, Any]:
    """What results/gpu-<machine>.json holds; every row is in it."""
    about: Row = next(row for row in rows if row["name"] == "about")
    tables = [speeds(rows), peers(rows), memory(rows), correctness(rows), saving(rows)]
    return {
        "measured": {
            "date": time.strftime("%Y-%m-%d"),
            "cpus": os.cpu_count(),
            "device": about["device"],
            **about["versions"],
        },
        "figures": [asdict(figure) for figure in figures(rows)],
        "notes": [*filter(None, tables), missing(rows)],
        "rows": list(rows),
    }


def of_part(rows: Rows, part: str) -> list[Row]:
    """Its rows that hold something measured."""
    return [
        row
        for row in rows
        if row["part"] == part and row["status"] == "measured" and row["name"] != "about"
    ]


def figures(rows: Rows) -> list[Figure]:
    found = []
    for part, beginning, against, target in PUBLISHED:
        # The figures that others publish are without dropout.
        fits = [r for r in of_part(rows, part) if "sequences_per_s" in r and "0.1" not in r["name"]]
        if fits := [row for row in fits if row["name"].startswith(beginning)]:
            best = max(fits, key=lambda row: float(row["sequences_per_s"]))
            what = f"T5 v1.1-{beginning.rstrip(', ')}, 512/128, bf16: {best['name']}"
            found.append(_speed(what, against, 1.0, best["samples"], [target]))
    named = {row["name"]: row for row in of_part(rows, "peers")}
    for ours, theirs, target in PEERS:
        if ours in named and theirs in named:
            samples = named[ours]["samples"], named[theirs]["samples"]
            what = f"T5 v1.1-large, batch {named[ours]['rows']}: {ours}"
            found.append(_speed(what, theirs, target, *samples))
    return found + _blocked(rows) + _verdicts(rows)


def _speed(
    what: str, against: str, target: float, ours: Sequence[float], theirs: Sequence[float]
) -> Figure:
    name = f"speed-{what}-{against}".lower().replace(" ", "-")
    return ratio(name, what, against, "≥", target, (ours, theirs), "sequences/s")


def _blocked(rows: Rows) -> list[Figure]:
    named = {row["name"]: row for row in of_part(rows, "checkpoints")}
    if not {"background", "plain async_save"} <= named.keys():
        return []
    ours, plain = (named[name]["blocked_s"] for name in ("background", "plain async_save"))
    what = "a save in the background: time that training is blocked"
    against = "`torch.distributed.checkpoint.async_save`"
    return [
        ratio("blocked-background", what, against, "≤", GUARANTEES_COST, ([ours], [plain]), "s")
    ]


def _verdicts(rows: Rows) -> list[Figure]:
    """How many of the checks of each part that has any are passed."""
    found = []
    for part, what in (
        ("correctness", "kernels, types, losses and lengths that keep their bounds"),
        ("checkpoints", "resumed with the same losses and weights, bit by bit"),
    ):
        checks = _correctness(rows) if part == "correctness" else of_part(rows, part)
        passed = [float(row["passed"]) for row in checks if "passed" in row]
        if passed:
            count = sum(passed)
            samples = {"ours": passed}
            found.append(
                Figure(
                    part, what, None, "count", "≥", len(passed), count, None, count, samples=samples
                )
            )
    return found


def kept_in(rows: Rows) -> Sequence[str]:
    """The steps that paid for the large model; none where they were not measured."""
    found: list[Sequence[str]] = [row["kept"] for row in rows if row["name"] == KEPT]
    return found[-1] if found else ()


def speeds(rows: Rows) -> str | None:
    columns = ("Step", "Batch", "Sequences/s", "Tokens/s", "TFLOP/s", "MFU", "Peak", "Kept")
    measured = [
        row for part in ("speed", "xl") for row in of_part(rows, part) if "sequences_per_s" in row
    ]
    kept = kept_in(rows)
    shown = [
        (*_speed_cells(row), "yes" if row["name"].partition("+ ")[2] in kept else "")
        for row in measured
    ]
    return markdown(columns, shown) if shown else None


def _speed_cells(row: Row) -> tuple[str, ...]:
    mfu = row["mfu"]
    return (
        row["name"],
        str(row["rows"]),
        digits(row["sequences_per_s"]),
        digits(row["tokens_per_s"]),
        digits(row["tflops"]),
        "" if mfu is None else f"{100 * mfu:.1f} %",
        gib(row["peak_bytes"]),
    )


def peers(rows: Rows) -> str | None:
    columns = ("Same process and batch", "Batch", "Sequences/s", "Peak")
    shown = [
        (row["name"], str(row["rows"]), digits(row["sequences_per_s"]), gib(row["peak_bytes"]))
        for row in of_part(rows, "peers")
    ]
    return markdown(columns, shown) if shown else None


def memory(rows: Rows) -> str | None:
    columns = ("Strategy, base", "Steps/s", "Weights", "Optimizer", "Peak", "Reserved")
    sizes = ("parameter_bytes", "optimizer_bytes", "peak_bytes", "reserved_bytes")
    shown = [
        (row["name"], f"{row['steps_per_s']:.2f}", *(gib(row[size]) for size in sizes))
        for row in of_part(rows, "memory")
    ]
    if not shown:
        return None
    return markdown(columns, shown) + (
        "\n\nOn one rank a shard is the whole: strategies differ here in gathered copies, "
        "activations and what leaves the GPU, not in what sharding saves."
    )


def _correctness(rows: Rows) -> list[Row]:
    """Of both parts; math, with which triton is compared in its own, once where both agree."""
    both = of_part(rows, "correctness") + of_part(rows, "triton")
    return list({(row["name"], row.get("passed")): row for row in both}.values())


def correctness(rows: Rows) -> str | None:
    columns = ("Against float64", "Worst relative error", "Bound", "In", "")
    shown = [
        (
            row["name"],
            f"{row['relative']:.1e}",
            f"{row['bound']:.1e}",
            f"`{row['worst']}`",
            "passed" if row["passed"] else "**failed**",
        )
        for row in _correctness(rows)
        if "relative" in row
    ]
    checks = [
        f"{row['name']}: {_check(row)}." for row in _correctness(rows) if "relative" not in row
    ]
    if not shown and not checks:
        return None
    return "\n\n".join([markdown(columns, shown), *([" ".join(checks)] if checks else [])])


def _check(row: Row) -> str:
    if "not_finite_at" in row:
        wrong = row["not_finite_at"]
        return f"not at {', '.join(map(str, wrong))}" if wrong else "yes"
    if not row["differ"]:
        return "yes"
    return f"{row['differ']} tensors differ, the biases' {'too' if row['bias_differs'] else 'not'}"


def saving(rows: Rows) -> str | None:
    columns = ("Save, large", "Size", "Blocked", "On disk after", "Steps meanwhile", "Host peak")
    shown = [
        (
            row["name"],
            f"{row['bytes'] / 1e9:.2f} GB",
            seconds(row["blocked_s"]),
            seconds(row["written_s"]),
            "" if row["slowdown"] is None else f"{row['slowdown']:.2f} ×",
            gib(row["host_peak_bytes"]),
        )
        for row in of_part(rows, "checkpoints")
        if "blocked_s" in row
    ]
    return markdown(columns, shown) if shown else None


def missing(rows: Rows) -> str:
    """What is not in the tables, by reason."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "measured":
            names.setdefault((row["part"], row["status"], row["why"]), []).append(row["name"])
    if not names:
        return "Every row was measured."
    lines = []
    for (part, status, why), each in names.items():
        what = "; ".join(each) if len(each) < 4 else f"{len(each)} rows"
        lines.append(f"- {part}, {what}: {status}, {why}")
    return "\n".join(["Not measured:", "", *lines])
