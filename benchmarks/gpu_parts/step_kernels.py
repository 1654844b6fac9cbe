"""Where the time of a step goes: the kernels of three steps of the fastest settings, by kind.

`kinds` sorts kernels by their names as cuBLAS, Triton, Inductor and torch give them; the roofline
in README.md has the same kinds. What no pattern fits is "other", and shows in the list of kernels.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.roofline import (
    ATTENTION,
    CROSS_ENTROPY,
    ELEMENTWISE,
    OPTIMIZER,
    OTHER,
    PRODUCTS,
    SHARDING,
)
from benchmarks.gpu_parts.speed import COMPILING_S
from benchmarks.gpu_parts.steps import BATCH, best_words, fastest_row
from benchmarks.gpu_parts.trial import Plan, Trial, made_up, plan, report, time_steps

SHOWN = 40
STEPS = 3

KINDS = (
    # Our kernels and PyTorch's, cuDNN's and FlexAttention's before anything that says "gemm".
    (
        ATTENTION,
        r"fmha|flash|attention|cudnn.*sdpa|^(forward|backward|query_gradient|key_gradient|"
        r"bias_gradient)_kernel|flex",
    ),
    (PRODUCTS, r"gemm|nvjet|cutlass|xmma|cublas|matmul|triton_tem_|\bmm\b|addmm|bmm"),
    (
        CROSS_ENTROPY,
        r"nll|log_softmax|softmax_(warp_)?(forward|backward)|cross_entropy|cunn_SoftMax",
    ),
    (SHARDING, r"multi_tensor.*copy|direct_copy|split_with_sizes|chunk_cat|nccl|c10d"),
    (OPTIMIZER, r"multi_tensor|adam|foreach|lpnorm|linalg_vector_norm|NormTwoOps|norm_kernel"),
    (SHARDING, r"all_gather|reduce_scatter"),
    (
        ELEMENTWISE,
        r"triton_(poi|red|per)_|elementwise|rms_norm|layer_norm|reduce_kernel|dropout|gelu",
    ),
    (SHARDING, r"memcpy|copy_|cat"),
)


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE)), OTHER)


def run(part: Part) -> None:
    row = fastest_row(part.context)
    task = plan("t5-v1.1-large", *best_words(part.context), dry=part.dry)
    rows = row["rows"] if row else BATCH
    rows = 2 if part.dry else rows
    trials: dict[str, Trial] = {}
    part.measure(
        "benchmark", functools.partial(benchmark, part, task, rows, trials), needs_s=COMPILING_S
    )
    part.measure(
        "kernels", functools.partial(kernels, part, task, rows, trials), needs_s=COMPILING_S
    )


def trial_of(part: Part, task: Plan, trials: dict[str, Trial]) -> Trial:
    """The one trial of this process, compiled once for both rows."""
    if "the" not in trials:
        trials["the"] = Trial(task, part.ranks)
    return trials["the"]


def benchmark(part: Part, task: Plan, rows: int, trials: dict[str, Trial]) -> Row:
    """What the trainer is compared with, measured in this section."""
    found = time_steps(trial_of(part, task, trials), part.device, rows)
    return report(task, found, part.device)


def kernels(part: Part, task: Plan, rows: int, trials: dict[str, Trial]) -> Row:
    trial, device = trial_of(part, task, trials), part.device
    batch = made_up(task, rows, device.torch)
    for _ in range(device.pace.warmup):
        trial.step(batch)
    spent, wall_s = device.kernels(lambda: [trial.step(batch) for _ in range(STEPS)])
    return {"rows": rows, "words": list(task.words), **summary_of(spent, wall_s, STEPS)}


def summary_of(spent: Sequence[tuple[str, float, int]], wall_s: float, steps: int) -> Row:
    """Seconds a step by kind, the largest kernels, and how long the device had nothing to do.

    `spent` are (name, seconds, calls) of `steps` steps that took `wall_s`; kernels that ran side by
    side count twice.
    """
    device_s = sum(seconds for _, seconds, _ in spent)
    top = [
        {"name": name[:160], "kind": kind_of(name), "s": seconds / steps, "calls": calls / steps}
        for name, seconds, calls in sorted(spent, key=lambda each: -each[1])[:SHOWN]
    ]
    return {
        "wall_s": wall_s / steps,
        "device_s": device_s / steps,
        "idle_s": max(0.0, wall_s - device_s) / steps,
        "launches": sum(calls for *_, calls in spent) / steps,
        "by_kind_s": by_kind((name, seconds / steps) for name, seconds, _ in spent),
        "top": top,
    }


def by_kind(spent: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, Any] = {}
    for name, seconds in spent:
        kind = kind_of(name)
        found[kind] = found.get(kind, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda each: -each[1]))
