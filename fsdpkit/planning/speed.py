"""How fast a job would train, how sure that is, what bounds it, and how it scales.

A step's work (`work.py`) on a machine (`efficiency.py`), as measurements have corrected it
(`speed_calibration.py`). Every figure has an 80% interval: the truth lies in it four times out of
five, if the doubts are as stated; benchmarks/README.md counts how often it did for published runs.
Nothing is known here of a job's start, of its queue, or of other jobs on the same network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from fsdpkit.errors import UsageError
from fsdpkit.planning.speed_calibration import SpeedCalibration, doubt_of
from fsdpkit.planning.speed_schedule import Cause, simulate
from fsdpkit.planning.work import StepWork

FOUR_OF_FIVE = 1.2816
"""Standard deviations of a normal distribution to either side that hold four fifths of it."""


class Range(msgspec.Struct, frozen=True):
    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.middle * factor, self.high * factor)


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What happens beside the steps. A rank's batches are made ahead: they cost nothing until they
    take longer than a step."""

    samples_per_s: float | None = None
    """That one rank's loader makes; None: more than are needed."""
    save_every_steps: int = 0
    checkpoint_bytes: int = 0
    """Of the whole checkpoint."""
    write_bytes_per_s: float | None = None
    """Of the file system, by all ranks together; None: not known, and not counted."""
    background: bool = True


class Goal(msgspec.Struct, frozen=True):
    """When training is done: after `steps`, or `tokens` over all ranks; the first that is given."""

    steps: int | None = None
    tokens: int | None = None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan says of speed. Rates are of the whole job unless they say otherwise."""

    step_s: Range
    tokens_per_s: Range | None
    """None: what a model is given holds no tokens, such as images."""
    samples_per_s: Range
    mfu: Range
    """Model FLOPs over the GPUs' dense bfloat16 peak, a share."""
    shares: dict[str, float]
    """Of a step's time by what the GPU did or waited for, the largest first; their sum is 1."""
    bound: str
    """The largest of them."""
    steps: int | None = None
    hours: Range | None = None
    gpu_hours: Range | None = None
    calibrated_by: tuple[str, ...] = ()
    source: Literal["tape", "closed form"]
    """Where the step's work is from: the tape, or a closed form, which is an estimate."""


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    tokens_per_s: Range | None
    samples_per_s: Range
    efficiency: float
    """Samples a second of one GPU, against those on the fewest nodes asked about."""
    bound: str


def predict(
    work: StepWork,
    calibration: SpeedCalibration,
    goal: Goal | None = None,
    beside: Beside | None = None,
) -> Speed:
    """Raises UsageError for work of which nothing takes time."""
    rates = calibration.machine.rates()
    step = simulate(work, rates)
    if step.step_s <= 0 or work.samples <= 0:
        raise UsageError(
            "The recorded step holds no work: there is nothing whose speed to predict."
        )
    around = beside or Beside()
    waits = {"data": _data_wait_s(work, around, step.step_s)}
    waits["saving"] = _saving_s(work, around, step.step_s, rates.host_copy_bytes)
    whole_s = step.step_s + sum(waits.values())
    factor = math.exp(FOUR_OF_FIVE * doubt_of(work, calibration))
    seconds = Range(whole_s / factor, whole_s, whole_s * factor)
    rate = Range(1 / seconds.high, 1 / whole_s, 1 / seconds.low)
    causes = {**{str(cause): s for cause, s in step.by_cause.items()}, **waits}
    shares = {k: s / whole_s for k, s in sorted(causes.items(), key=lambda c: -c[1]) if s > 0}
    steps = _steps(goal, work) if goal else None
    hours = seconds.times(steps / 3600) if steps is not None else None
    return Speed(
        step_s=seconds,
        tokens_per_s=rate.times(work.tokens * work.ranks) if work.tokens else None,
        samples_per_s=rate.times(work.samples * work.ranks),
        mfu=rate.times(work.model_flops / rates.peak_flops),
        shares=shares,
        bound=next(iter(shares)),
        steps=steps,
        hours=hours,
        gpu_hours=hours.times(work.ranks) if hours else None,
        calibrated_by=calibration.samples,
        source=work.source,
    )


def scaling(
    work_on: Callable[[int], StepWork], calibration: SpeedCalibration, nodes: Sequence[int]
) -> list[Scaled]:
    """The same job on each number of nodes, its batch of one rank unchanged (weak scaling)."""
    found = []
    first: float | None = None
    for count in sorted(nodes):
        work = work_on(count)
        speed = predict(work, calibration)
        of_one = speed.samples_per_s.middle / work.ranks
        first = first or of_one
        found.append(
            Scaled(
                nodes=count,
                tokens_per_s=speed.tokens_per_s,
                samples_per_s=speed.samples_per_s,
                efficiency=of_one / first,
                bound=speed.bound,
            )
        )
    return found


def in_words(cause: Cause | str) -> str:
    """What bounds a step, for a person."""
    return {
        "compute": "the GPUs' arithmetic",
        "memory": "the GPUs' memory bandwidth",
        "network": "the network between nodes",
        "in-node links": "the links between the GPUs of a node",
        "launches": "latency: the host launches kernels no faster",
        "host copies": "copies between host and GPU",
        "data": "loading data",
        "saving": "saving checkpoints",
    }[cause]


def _steps(goal: Goal, work: StepWork) -> int | None:
    if goal.steps is not None:
        return goal.steps
    if goal.tokens is not None and work.tokens:
        return math.ceil(goal.tokens / (work.tokens * work.ranks))
    return None


def _data_wait_s(work: StepWork, beside: Beside, step_s: float) -> float:
    if not beside.samples_per_s:
        return 0.0
    return max(0.0, work.samples / beside.samples_per_s - step_s)


def _saving_s(work: StepWork, beside: Beside, step_s: float, copy_rate: float) -> float:
    """Seconds a step, spread over the steps between two checkpoints. In the background only the
    copy to host memory is waited for, and a write that the next checkpoint comes too early for."""
    if not beside.save_every_steps or not beside.checkpoint_bytes:
        return 0.0
    write_s = (
        beside.checkpoint_bytes / beside.write_bytes_per_s if beside.write_bytes_per_s else 0.0
    )
    if beside.background:
        copy_s = beside.checkpoint_bytes / work.ranks / copy_rate
        between_s = step_s * beside.save_every_steps
        return (copy_s + max(0.0, write_s - between_s)) / beside.save_every_steps
    return write_s / beside.save_every_steps
