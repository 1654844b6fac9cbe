"""How fast a job would train, how sure that is, what bounds it, and how it scales.

A step's work (`work.py`) is simulated on a machine's rates (`efficiency.py`). Where runs have been
measured, the job's time is that of the nearest one, times what the simulation says of both: what
is wrong with a rate is wrong in both, so the nearest is the run whose ratio to the job depends
least on rates in doubt (`nearest`).

Every figure has an 80% interval: the step is simulated at both ends of each rate's doubt, and what
the simulation itself leaves out is added by kind (`_LEFT_OUT`), from errors on published runs;
benchmarks/README.md counts how often intervals held runs that took no part in that. Nothing is
known here of a job's start, of its queue, of loading data or saving, or of other jobs on the same
network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from fsdpkit.errors import UsageError
from fsdpkit.planning.efficiency import MachineRates, UncertainValue, kind_of_gpu
from fsdpkit.planning.speed_schedule import Cause, simulate
from fsdpkit.planning.work import StepWork
from fsdpkit.runs.predicted import Span

FOUR_OF_FIVE = 1.2816
"""Standard deviations of a normal distribution to either side that hold four fifths of it."""
_LEFT_OUT = {
    "calibrated": (0.15, 0.12),
    "common": (0.15, 0.12),
    "other": (0.55, 0.45),
    "AMD": (0.7, 0.25),
}
"""Standard deviations of log(step time), slower and faster, for what the model leaves out."""
_HOST = ("launch_s", "collective_s")
"""Rates that depend on the host, and on what a program does between two kernels."""
_HOST_BOUND = 1.25
"""Where a slow host makes a step so many times longer, its time is not predicted."""
_DECIDES = math.log(1.5)
"""A rate whose doubt changes a step by more decides which other rates matter."""
_SURPRISE = 2.5
"""Doubts by which a run may be off what the others predict and still count."""


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was measured."""

    work: StepWork
    step_s: float
    source: str
    """The run's ID, or where it was published."""
    made_s: float = 0.0
    """When the run was submitted, Unix time; 0: not said."""


class SpeedCalibration(msgspec.Struct, frozen=True):
    """What is known of a machine: its rates, and runs on it."""

    machine: MachineRates
    samples: tuple[MeasuredStep, ...] = ()


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan says of speed. Rates are of the whole job unless they say otherwise."""

    step_s: Span
    tokens_per_s: Span | None
    """None: what a model is given holds no tokens, such as images."""
    samples_per_s: Span
    mfu: Span
    """Model FLOPs over the GPUs' dense bfloat16 peak, a share."""
    shares: dict[str, float]
    """Of a step's time by what the GPU did or waited for, the largest first; their sum is 1."""
    bound: str
    """The largest of them."""
    host_bound: bool = False
    """Whether the host decides, so that nothing is sure but that a step takes `step_s.low`."""
    calibrated_by: tuple[str, ...] = ()
    """The run that it is computed from."""


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    efficiency: float
    """Samples a second of one GPU, against those on the fewest nodes asked about."""
    low: float
    """The same on the slowest network that there might be, and on the fastest."""
    high: float


class Expected(msgspec.Struct, frozen=True):
    step_s: float
    slower: float
    """Standard deviation of the logarithm of `step_s` upwards, from the rates' doubts alone."""
    faster: float
    host: float = 0.0
    """By how much a slow host alone might raise that logarithm."""
    ends: tuple[Expected, Expected] | None = None
    """At the fast and the slow end of a rate that decides most: there other rates have a say."""


def predict(work: StepWork, calibration: SpeedCalibration) -> Speed:
    """Raises UsageError for work of which nothing takes time."""
    rates = calibration.machine.rates()
    step = simulate(work, rates)
    if step.step_s <= 0 or work.samples <= 0:
        raise UsageError(
            "The recorded step holds no work: there is nothing whose speed to predict."
        )
    expected, sample = nearest(work, calibration)
    seconds = _interval(expected, _left_out(calibration))
    host_bound = math.exp(expected.host) > _HOST_BOUND
    if host_bound:
        # A host that launches in no time leaves what the GPU itself needs.
        eager = msgspec.structs.replace(rates, launch_s=0.0, collective_s=0.0)
        least_s = simulate(work, eager).step_s * seconds.low / seconds.middle
        seconds = Span(min(least_s, seconds.low), seconds.middle, seconds.high)
    rate = Span(1 / seconds.high, 1 / seconds.middle, 1 / seconds.low)
    causes = sorted(step.by_cause.items(), key=lambda each: -each[1])
    shares = {str(cause): s / step.step_s for cause, s in causes if s > 0}
    return Speed(
        step_s=seconds,
        tokens_per_s=rate.times(work.tokens * work.ranks) if work.tokens else None,
        samples_per_s=rate.times(work.samples * work.ranks),
        mfu=rate.times(work.model_flops / rates.peak_flops),
        shares=shares,
        bound=next(iter(shares)),
        host_bound=host_bound,
        calibrated_by=(sample.source,) if sample else (),
    )


def agreeing(
    machine: MachineRates, samples: Sequence[MeasuredStep]
) -> tuple[SpeedCalibration, tuple[str, ...]]:
    """The machine with those runs that agree with its rates and with one another, the least
    surprising first; and a sentence on each other one, such as a run on a broken node."""
    kept, odd = SpeedCalibration(machine), list[str]()
    for sample in sorted(samples, key=lambda one: abs(_surprise(one, kept))):
        if abs(surprise := _surprise(sample, kept)) <= _SURPRISE:
            kept = msgspec.structs.replace(kept, samples=(*kept.samples, sample))
            continue
        ratio = sample.step_s / nearest(sample.work, kept)[0].step_s
        times, how = max(ratio, 1 / ratio), "slower" if surprise > 0 else "faster"
        odd.append(f"{sample.source}: {times:.1f} times {how} than the other data predict")
    return kept, tuple(odd)


def scaling(
    work_on: Callable[[int], StepWork], calibration: SpeedCalibration, nodes: Sequence[int]
) -> list[Scaled]:
    """The same job on each number of nodes, its batch of one rank unchanged (weak scaling)."""
    machine = calibration.machine
    network = machine.values["node_bytes"]
    low, middle, high = (
        msgspec.structs.replace(machine.rates(), node_bytes=rate)
        for rate in (_ends(network)[0], network.value, _ends(network)[1])
    )
    times = [
        (count, [simulate(work_on(count), rates).step_s for rates in (low, middle, high)])
        for count in sorted(nodes)
    ]
    first = times[0][1]
    return [
        Scaled(nodes=count, efficiency=f[1] / s[1], low=f[0] / s[0], high=f[2] / s[2])
        for f, (count, s) in ((first, each) for each in times)
    ]


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


def nearest(work: StepWork, calibration: SpeedCalibration) -> tuple[Expected, MeasuredStep | None]:
    """What is expected by the run that leaves least doubt, and that run; None: of no run."""
    samples = calibration.samples or (None,)
    found = [(_expected(work, calibration.machine, sample), sample) for sample in samples]
    return min(found, key=lambda each: each[0].slower + each[0].faster)


def _expected(work: StepWork, machine: MachineRates, sample: MeasuredStep | None) -> Expected:
    """The step's time, and how far the rates' doubts reach, each at both of its ends."""
    if sample is not None and sample.work == work:
        return Expected(sample.step_s, 0.0, 0.0)
    plain = machine.rates()

    def seconds(**changed: float) -> float:
        rates = msgspec.structs.replace(plain, **changed)
        step_s = simulate(work, rates).step_s
        if sample is None:
            return step_s
        return sample.step_s * step_s / simulate(sample.work, rates).step_s

    middle = seconds()
    slower = faster = host = widest = 0.0
    by_widest = dict[float, float]()
    for name, value in machine.values.items():
        if value.factor <= 1:
            continue
        ends = [math.log(seconds(**{name: end}) / middle) for end in _ends(value)]
        slower += max(0.0, *ends) ** 2
        faster += min(0.0, *ends) ** 2
        if name in _HOST:
            host += max(0.0, *ends)
        if (reach := max(map(abs, ends))) > max(widest, _DECIDES):
            widest = reach
            by_widest = dict(sorted(zip(ends, _ends(value), strict=True)))
            decisive = name
    both = [
        _expected(work, machine.replace(**{decisive: UncertainValue(end, 1.0, "")}), sample)
        for end in by_widest.values()
    ]
    return Expected(
        middle,
        math.sqrt(slower) / FOUR_OF_FIVE,
        math.sqrt(faster) / FOUR_OF_FIVE,
        host,
        (both[0], both[1]) if both else None,
    )


def _ends(value: UncertainValue) -> tuple[float, float]:
    """Of a rate its two ends of four fifths."""
    reach = value.factor**FOUR_OF_FIVE
    return value.value / reach, value.value * reach


def _left_out(calibration: SpeedCalibration) -> tuple[float, float]:
    gpu = calibration.machine.gpu
    return _LEFT_OUT["calibrated" if calibration.samples else kind_of_gpu(gpu)]


def _interval(expected: Expected, left_out: tuple[float, float]) -> Span:
    """Seconds of a step."""
    up, down = left_out
    fast, slow = expected.ends or (expected, expected)
    return Span(
        fast.step_s / math.exp(FOUR_OF_FIVE * math.hypot(fast.faster, down)),
        expected.step_s,
        slow.step_s * math.exp(FOUR_OF_FIVE * math.hypot(slow.slower, up)),
    )


def _surprise(sample: MeasuredStep, calibration: SpeedCalibration) -> float:
    """How many doubts slower the sample is than what the others say."""
    expected = nearest(sample.work, calibration)[0]
    up, down = _left_out(calibration)
    off = math.log(sample.step_s / expected.step_s)
    return off / (math.hypot(expected.slower, up) if off > 0 else math.hypot(expected.faster, down))
