"""A step of T5 v1.1-large: sequences a second, where host and GPU spend it, and which kernels.

`host_s` has the host's time by phase of a step while the GPU runs behind it, `waited_s` with a wait
for the GPU after each phase. A step that takes no longer than the host's time is bound by the host.
"""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import (
    PHASES,
    Batch,
    Plan,
    Trial,
    attention_of,
    made_up,
    plan,
    time_steps,
)

PRODUCTS, ATTENTION, ELEMENTWISE = "matrix products", "attention", "norms, gates, residuals"
CROSS_ENTROPY, SHARDING = "cross-entropy", "casts and copies of sharding"
OPTIMIZER, OTHER = "clipping and AdamW", "other"

KINDS = (
    # PyTorch's, cuDNN's and FlexAttention's before anything that says "gemm".
    (ATTENTION, r"fmha|flash|attention|cudnn.*sdpa|flex"),
    (PRODUCTS, r"gemm|nvjet|cutlass|xmma|cublas|matmul|triton_tem_|\bmm\b|addmm|bmm"),
    (CROSS_ENTROPY, r"nll|log_softmax|softmax_(warp_)?(forward|backward)|cunn_SoftMax"),
    (SHARDING, r"multi_tensor.*copy|direct_copy|split_with_sizes|chunk_cat|nccl|c10d"),
    (ELEMENTWISE, r"rms_norm|layer_norm|GammaBeta"),
    (OPTIMIZER, r"multi_tensor|adam|foreach|lpnorm|linalg_vector_norm|NormTwoOps|norm_kernel"),
    (ELEMENTWISE, r"triton_(poi|red|per)_|elementwise|reduce_kernel|dropout|gelu"),
    (SHARDING, r"memcpy|copy_|cat"),
)
_RANGES = re.compile(r"^(FSDP::|Optimizer\.|## |Torch-Compiled Region|ProfilerStep)")
"""What the profiler lists beside kernels: stretches of time that hold some, named by torch."""

SHOWN = 25
STEPS = 3  # profiled


class Case(NamedTuple):
    """`words` are its settings beside those that all have."""

    name: str
    rows: int
    words: tuple[str, ...]


COMPILED = ("compile=true", "loss=chunked")
FLEX = (*COMPILED, "model.attention=flex")
CASES = (
    Case("sdpa, compiled", 64, COMPILED),
    Case("flex, compiled", 64, FLEX),
    Case("sdpa, uncompiled", 32, ("loss=chunked",)),
    Case("flex, compiled, more rows", 112, FLEX),
    Case("flex, compiled, more rows, loss in one piece", 112, (*FLEX, "loss=whole")),
)


def run(part: Part) -> None:
    for case in CASES:
        task = plan("t5-v1.1-large", *case.words, dry=part.dry)
        rows, flex = 2 if part.dry else case.rows, task.settings.model.attention == "flex"
        replace(part, name="kernels").measure(
            case.name,
            functools.partial(step, part, case.name, task, rows),
            needs_s=50 if task.settings.compile else 20,
            lacks="FlexAttention is trained on GPUs only" if flex and part.dry else None,
        )


def step(part: Part, name: str, task: Plan, rows: int) -> Row:
    """The row of kernels; the step's own is written before, as the profiler may take long."""
    trial, batch = Trial(task, part.ranks), made_up(task, rows, part.device.torch)
    row = time_steps(trial, part.device, rows)
    row["attention"] = attention_of(task, part.device)
    for key, waits in (("host_s", False), ("waited_s", True)):
        row[key] = phases(part, trial, batch, waits=waits)
    part.record(name, "measured", row)
    spent = part.device.kernels(lambda: [trial.step(batch) for _ in range(STEPS)])
    return {"rows": rows, **by_kind(spent, STEPS)}


def phases(part: Part, trial: Trial, batch: Batch, *, waits: bool) -> dict[str, float]:
    """Median seconds of each phase of a step, and with `all` the mean of the whole steps."""
    device, count = part.device, 2 if part.dry else 8
    found: dict[str, list[float]] = {name: [] for name in PHASES}
    began = time.perf_counter()
    for _ in range(count):
        times = [time.perf_counter()]

        def mark(times: list[float] = times) -> None:
            if waits:
                device.synchronize()
            times.append(time.perf_counter())

        trial.step(batch, mark)
        for name, start, end in zip(PHASES, times, times[1:], strict=False):
            found[name].append(end - start)
    device.synchronize()
    whole_s = (time.perf_counter() - began) / count
    return {**{name: statistics.median(each) for name, each in found.items()}, "all": whole_s}


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE)), OTHER)


def by_kind(spent: Iterable[tuple[str, float, int]], steps: int) -> Row:
    """Seconds and launches of one step by kind, and the kernels that take most of it."""
    kernels: list[Row] = [
        {"name": name[:160], "kind": kind_of(name), "s": seconds / steps, "calls": calls / steps}
        for name, seconds, calls in sorted(spent, key=lambda each: -each[1])
        if not _RANGES.search(name)
    ]
    kinds: dict[str, float] = {}
    for each in kernels:
        kinds[each["kind"]] = kinds.get(each["kind"], 0.0) + each["s"]
    return {
        "by_kind_s": dict(sorted(kinds.items(), key=lambda each: -each[1])),
        "launches": sum(each["calls"] for each in kernels),
        "top": kernels[:SHOWN],
    }
