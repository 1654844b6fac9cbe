"""A step of T5 v1.1-large: sequences a second, and where host and GPU spend it.

`host_s` has the host's time by phase of a step while the GPU runs behind it, `waited_s` with a wait
for the GPU after each phase. A step that takes no longer than the host's time is bound by the host.
"""

from __future__ import annotations

import functools
import statistics
import time
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
        part.measure(
            case.name,
            functools.partial(step, part, task, rows),
            needs_s=50 if task.settings.compile else 20,
            lacks="FlexAttention is trained on GPUs only" if flex and part.dry else None,
        )


def step(part: Part, task: Plan, rows: int) -> Row:
    trial, batch = Trial(task, part.ranks), made_up(task, rows, part.device.torch)
    row = {
        **time_steps(trial, part.device, rows),
        "attention": attention_of(task, part.device),
    }
    for key, waits in (("host_s", False), ("waited_s", True)):
        row[key] = phases(part, trial, batch, waits=waits)
    return row


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
