"""From rows to a result file: figures with their targets, tables, and what was not measured.

Pure: what is not among the rows is left out or said to be missing, never made up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_parts.rows import ABOUT, END
from benchmarks.gpu_parts.steps import DROPOUT, fastest_row
from benchmarks.gpu_parts.tables import digits, gib, markdown, seconds
from benchmarks.report import Figure, ratio

Row = Mapping[str, Any]
Rows = Sequence[Row]

# (row's part and beginning of its name, what it is set against, sequences a second). NVIDIA's are
# those of its T5X README for one of 64 or 144 GPUs; 40 % of bf16 peak is an H100's or H200's 989.4.
PUBLISHED = (
    ("speed", "large, ", "NVIDIA T5X in FP8, one of 64 H100 (published)", 174.1),
    ("speed", "large, ", "40 % of an H100's bf16 peak", 263.0),
    ("speed", "large, ", "the target after it", 292.0),
    ("xl", "xl, ", "NVIDIA T5X in FP8, one of 144 H100 (published)", 50.4),
    ("xl", "xl, ", "40 % of an H100's bf16 peak", 72.0),
)
PEERS = (
    ("Hugging Face eager", 2.0),
    ("Hugging Face sdpa", 1.0),
    ("Hugging Face sdpa, compiled", 1.3),
)
"""Each at its own best batch, beside our fastest."""

GUARANTEES_COST = 1.25


def result_of(rows: Rows) -> dict[str, Any]:
    """What results/gpu-<machine>.json holds; every row is in it."""
    about: Row = next(row for row in rows if row["name"] == ABOUT)
    on_gpu = [row for row in rows if row["name"] == ABOUT and row["device"] != "CPU"]
    about = on_gpu[0] if on_gpu else about
    tables = [
        speeds(rows),
        peers(rows),
        profiles(rows),
        ceilings(rows),
        attention(rows),
        memory(rows),
        correctness(rows),
        saving(rows),
        readings(rows),
    ]
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
        if row["part"] == part and row["status"] == "measured" and row["name"] not in (ABOUT, END)
    ]


def figures(rows: Rows) -> list[Figure]:
    found = []
    for part, beginning, against, target in PUBLISHED:
        # The figures that others publish are without dropout.
        fits = [
            r for r in of_part(rows, part) if "sequences_per_s" in r and DROPOUT not in r["name"]
        ]
        if fits := [row for row in fits if row["name"].startswith(beginning)]:
            best = max(fits, key=lambda row: float(row["sequences_per_s"]))
            what = f"T5 v1.1-{beginning.rstrip(', ')}, 512/128, bf16: {best['name']}"
            found.append(_speed(what, against, 1.0, best["samples"], [target]))
    ours, named = fastest_row(list(map(dict, rows))), {row["name"]: row for row in of_peers(rows)}
    for theirs, target in PEERS:
        if ours and theirs in named:
            samples = ours["samples"], named[theirs]["samples"]
            what = f"{ours['name']}, batch {ours['rows']}"
            against = f"{theirs}, Accelerate FSDP2, batch {named[theirs]['rows']}"
            found.append(_speed(what, against, target, *samples))
    found += _trainer(rows)
    return found + _blocked(rows) + _verdicts(rows)


def _speed(
    what: str, against: str, target: float, ours: Sequence[float], theirs: Sequence[float]
) -> Figure:
    name = f"speed-{what}-{against}".lower().replace(" ", "-")
    return ratio(name, what, against, "≥", target, (ours, theirs), "sequences/s")


def of_peers(rows: Rows) -> list[Row]:
    return [row for row in rows if row["part"].startswith("peers") and "sequences_per_s" in row]


def _trainer(rows: Rows) -> list[Figure]:
    """The trainer's speed over the benchmark's, at the same settings and batch."""
    found = [row for row in of_part(rows, "trainer") if row.get("of_benchmark")]
    return [
        ratio(
            "trainer",
            "fsdp_t5.py as torchrun starts it",
            "the benchmark at the same settings",
            "≥",
            0.97,
            ([row["trainer_sequences_per_s"]], [row["benchmark_sequences_per_s"]]),
            "sequences/s",
        )
        for row in found
    ]


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
        ("attention", "kernels by themselves that keep their bounds"),
        ("trainer", "runs of the trainer that kept speed and compilation"),
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


def speeds(rows: Rows) -> str | None:
    columns = ("Step", "Batch", "Sequences/s", "Tokens/s", "TFLOP/s", "MFU", "Peak", "Ready after")
    measured = [
        row for part in ("speed", "xl") for row in of_part(rows, part) if "sequences_per_s" in row
    ]
    shown = [(*_speed_cells(row), seconds(row["ready_s"])) for row in measured]
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
    columns = ("Peer, Accelerate FSDP2", "Batch", "Sequences/s", "Peak")
    shown = [
        (row["name"], str(row["rows"]), digits(row["sequences_per_s"]), gib(row["peak_bytes"]))
        for row in of_peers(rows)
        if row["status"] == "measured"
    ]
    return markdown(columns, shown) if shown else None


def profiles(rows: Rows) -> str | None:
    """One table by kind; the kernels themselves are in the result file."""
    found = [row for row in of_part(rows, "profile") if "by_kind_s" in row]
    if not found:
        return None
    row = found[-1]
    shown = [
        (kind, f"{1e3 * s:.2f} ms", f"{100 * s / row['wall_s']:.1f} %")
        for kind, s in (*row["by_kind_s"].items(), ("device idle", row["idle_s"]))
    ]
    shown.append(("step, host's clock", f"{1e3 * row['wall_s']:.2f} ms", ""))
    return markdown((f"Kernels of a step, batch {row['rows']}", "Time", "Share"), shown)


def ceilings(rows: Rows) -> str | None:
    found = of_part(rows, "ceilings")
    products = [
        (
            row["name"],
            " × ".join(map(str, row["shape"])),
            *(digits(row["tflops_by_product"][way]) for way in row["tflops_by_product"]),
            "" if row["share_of_peak"] is None else f"{100 * row['share_of_peak']:.0f} %",
        )
        for row in found
        if "product_tflops" in row
    ]
    if not products:
        return None
    columns = ("Product", "Shape", "Forward", "Of the input", "Of the weight", "Of peak")
    speeds = [f"{r['name']} {digits(r['gb_per_s'])} GB/s" for r in found if "gb_per_s" in r]
    return markdown(columns, products) + f"\n\nIn TFLOP/s. {'; '.join(speeds)}."


def attention(rows: Rows) -> str | None:
    columns = ("Attention alone", "Forward", "Backward", "TFLOP/s", "Worst error", "Peak", "")
    shown = [
        (
            row["name"],
            f"{1e3 * row['forward_s']:.3f} ms",
            f"{1e3 * row['backward_s']:.3f} ms",
            digits(row["kernel_tflops"]),
            f"{row['relative']:.1e} in {row['worst']}",
            gib(row["peak_bytes"]),
            "passed" if row["passed"] else "**failed**",
        )
        for row in of_part(rows, "attention")
    ]
    return markdown(columns, shown) if shown else None


def readings(rows: Rows) -> str | None:
    """What NVML left unanswered, and which checks of preflight were made."""
    found = of_part(rows, "machine")
    if not found:
        return None
    said = [f"preflight: {', '.join(r['name'][10:] for r in found if 'found' in r)} passed"]
    for row in found:
        if "unanswered" in row and row["gpus"]:
            said.append(f"{row['name']}: no answer for {', '.join(row['unanswered']) or 'nothing'}")
    return "; ".join(said) + "."


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
        if row["status"] not in ("measured", "done"):
            names.setdefault((row["part"], row["status"], row["why"]), []).append(row["name"])
    if not names:
        return "Every row was measured."
    lines = []
    for (part, status, why), each in names.items():
        what = "; ".join(each) if len(each) < 4 else f"{len(each)} rows"
        lines.append(f"- {part}, {what}: {status}, {why}")
    return "\n".join(["Not measured:", "", *lines])
