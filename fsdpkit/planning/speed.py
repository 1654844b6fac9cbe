"""How fast a job would train, how sure that is, what bounds it, and how it scales.

A step's work (`work.py`) on a machine (`efficiency.py`), as measurements have corrected it
(`speed_calibration.py`). Every figure has an 80% interval: from the doubts of the machine's rates,
and from what the model leaves out (`_LEFT_OUT`, chosen by looking at published runs);
benchmarks/README.md counts how often it held those. Nothing is known here of a job's start, of its
queue, of loading data or saving, or of other jobs on the same network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from fsdpkit.errors import UsageError
from fsdpkit.planning.speed_calibration import FOUR_OF_FIVE, SpeedCalibration, span
from fsdpkit.planning.speed_schedule import Cause, simulate
from fsdpkit.planning.work import StepWork

_LEFT_OUT = {"calibrated": (0.12, 0.1), "published": (0.2, 0.12)}
"""Standard deviations of the logarithm of a step's time, slower and faster, for what the model
leaves out."""


class Range(msgspec.Struct, frozen=True):
    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.middle * factor, self.high * factor)


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
    source: Literal["tape"] = "tape"
    """Where the step's work is from."""


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    efficiency: float
    """Samples a second of one GPU, against those on the fewest nodes asked about."""


def predict(work: StepWork, calibration: SpeedCalibration, goal: Goal | None = None) -> Speed:
    """Raises UsageError for work of which nothing takes time."""
    rates = calibration.machine.rates()
    step = simulate(work, rates)
    if step.step_s <= 0 or work.samples <= 0:
        raise UsageError(
            "The recorded step holds no work: there is nothing whose speed to predict."
        )
    seconds = _interval(work, calibration)
    rate = Range(1 / seconds.high, 1 / seconds.middle, 1 / seconds.low)
    causes = sorted(step.by_cause.items(), key=lambda each: -each[1])
    shares = {str(cause): s / step.step_s for cause, s in causes if s > 0}
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
    )


def _interval(work: StepWork, calibration: SpeedCalibration) -> Range:
    """Seconds of a step."""
    step_s, slower, faster = span(work, calibration)
    left_out = _LEFT_OUT["calibrated" if calibration.samples else "published"]
    up = math.exp(FOUR_OF_FIVE * math.hypot(slower, left_out[0]))
    down = math.exp(FOUR_OF_FIVE * math.hypot(faster, left_out[1]))
    return Range(step_s / down, step_s, step_s * up)


def scaling(
    work_on: Callable[[int], StepWork], calibration: SpeedCalibration, nodes: Sequence[int]
) -> list[Scaled]:
    """The same job on each number of nodes, its batch of one rank unchanged (weak scaling)."""
    rates = calibration.machine.rates()
    times = {count: simulate(work_on(count), rates).step_s for count in sorted(nodes)}
    first = next(iter(times.values()))
    return [Scaled(nodes=count, efficiency=first / step_s) for count, step_s in times.items()]


def in_words(cause: Cause | str) -> str:
    """What bounds a step, for a person."""
    return {
        "compute": "the GPUs' arithmetic",
        "memory": "the GPUs' memory bandwidth",
        "network": "the network between nodes",
        "in-node links": "the links between the GPUs of a node",
        "launches": "latency: the host launches kernels no faster",
        "host copies": "copies between host and GPU",
    }[cause]


def _steps(goal: Goal, work: StepWork) -> int | None:
    if goal.steps is not None:
        return goal.steps
    if goal.tokens is not None and work.tokens:
        return math.ceil(goal.tokens / (work.tokens * work.ranks))
    return None
