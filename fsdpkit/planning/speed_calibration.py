"""What measurements say about a machine: its rates fitted, and how sure they are afterwards.

Every rate begins with a value and a doubt (`efficiency.py`). A measurement, such as a finished
run's seconds a step, moves each rate by as much as the step depends on it and as it was in doubt.
This is linear Bayesian estimation in logarithms, repeated around the newest estimate since a step
is not linear in them (Gauss and Newton's iteration; see Tarantola, "Inverse Problem Theory", 2005,
section 3.4). What is left of the doubt, and how rates hang together, makes the range of a
prediction: the step is simulated at both ends of each doubt, since a slope may be zero at a kink.

A calibration is kept as a JSON file: each rate with its value, its doubt and its source, and what
it was fitted to. A file of another layout is refused rather than guessed at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.planning.efficiency import NAMES, MachineRates, Rates, UncertainValue
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_bytes

Matrix = NDArray[np.float64]

FOUR_OF_FIVE = 1.2816
"""Standard deviations of a normal distribution to either side that hold four fifths of it."""
MEASURED_ERROR = 0.05
"""Of the logarithm of a step's time, by which runs of one job differ."""
SURPRISE = 2.5
"""Doubts by which a sample may be off what the others predict and still count."""
_CHANGE = 0.02
_ITERATIONS, _SETTLED = 5, 0.01
_STEP = 0.7
"""The most that one iteration changes a logarithm, where the linear answer is too far away."""
_MOST_BYTES = 8 << 20
_LAYOUT = "fsdpkit.speed/2"


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was measured."""

    work: StepWork
    step_s: float
    source: str
    """The run's ID, or where it was published."""


class SpeedCalibration(msgspec.Struct, frozen=True):
    """A machine, and the covariance of the logarithms of its rates, in the order of `NAMES`."""

    machine: MachineRates
    covariance: tuple[tuple[float, ...], ...]
    samples: tuple[str, ...] = ()
    """Sources of what it was fitted to."""


def uncalibrated(machine: MachineRates) -> SpeedCalibration:
    """Nothing measured: each rate in doubt by itself."""
    doubts = [math.log(machine.values[name].factor) ** 2 for name in NAMES]
    return SpeedCalibration(machine, _rows(np.diag(doubts)))


def with_value(before: SpeedCalibration, name: str, value: UncertainValue) -> SpeedCalibration:
    """One rate measured by itself: what was assumed of it before no longer counts. Raises KeyError
    for what is no rate."""
    machine = before.machine.replace(**{name: value})
    covariance = np.array(before.covariance)
    at = NAMES.index(name)
    covariance[at, :] = covariance[:, at] = 0.0
    covariance[at, at] = math.log(value.factor) ** 2
    return SpeedCalibration(machine, _rows(covariance), before.samples)


def fitted(
    before: SpeedCalibration, samples: Sequence[MeasuredStep]
) -> tuple[SpeedCalibration, tuple[str, ...]]:
    """`before` with those samples that agree with it and with one another, the least surprising
    first; and a sentence on each other one, such as a run on a broken node."""
    left, kept, now = list(samples), list[MeasuredStep](), before
    while left:
        surprises = [_surprise(one, now) for one in left]
        least = min(range(len(left)), key=surprises.__getitem__)
        if surprises[least] > SURPRISE:
            break
        kept.append(left.pop(least))
        now = calibrated(before, kept)
    return now, tuple(_sentence(one, now) for one in left)


def _surprise(sample: MeasuredStep, calibration: SpeedCalibration) -> float:
    """How many doubts the sample is off."""
    step_s, slower, faster = span(sample.work, calibration)
    off = math.log(sample.step_s / step_s)
    return abs(off) / math.hypot((slower if off > 0 else faster), MEASURED_ERROR)


def _sentence(sample: MeasuredStep, calibration: SpeedCalibration) -> str:
    slower = sample.step_s / simulate(sample.work, calibration.machine.rates()).step_s
    times, how = max(slower, 1 / slower), "slower" if slower > 1 else "faster"
    return f"{sample.source}: {times:.1f} times {how} than the other data predict"


def calibrated(before: SpeedCalibration, samples: Sequence[MeasuredStep]) -> SpeedCalibration:
    """`before` with what the samples tell. Raises ValueError for a step that took no time."""
    if not samples:
        return before
    if any(not 0 < sample.step_s < math.inf for sample in samples):
        raise ValueError("a measured step takes more than 0 s, and ends")
    start = _logarithms(before.machine)
    doubt = np.array(before.covariance)
    measured = np.log([sample.step_s for sample in samples])
    noise = np.eye(len(samples)) * MEASURED_ERROR**2
    found = start
    gain = slopes = np.zeros((0, 0))
    for _ in range(_ITERATIONS):
        answers = [_time_and_slopes(sample.work, found, doubt) for sample in samples]
        times, slopes = [time for time, _ in answers], np.array([slope for _, slope in answers])
        gain = doubt @ slopes.T @ np.linalg.inv(slopes @ doubt @ slopes.T + noise)
        off = measured - np.log(times) - slopes @ (start - found)
        change = np.clip(start + gain @ off - found, -_STEP, _STEP)
        found = found + change
        if np.abs(change).max() < _SETTLED:
            break
    source = f"fitted to {samples[0].source}"
    if len(samples) > 1:
        source += f" and {len(samples) - 1} more"
    left = doubt - gain @ slopes @ doubt
    values = {
        name: _moved(before.machine.values[name], math.exp(log), left[n, n], doubt[n, n], source)
        for n, (name, log) in enumerate(zip(NAMES, found, strict=True))
    }
    return SpeedCalibration(
        MachineRates(before.machine.gpu, values),
        _rows((left + left.T) / 2),
        (*before.samples, *(sample.source for sample in samples)),
    )


def span(work: StepWork, calibration: SpeedCalibration) -> tuple[float, float, float]:
    """Seconds of a step, and the standard deviation of their logarithm upwards and downwards, from
    the rates' doubts alone: simulated at both ends of each independent one."""
    logs = _logarithms(calibration.machine)
    step_s = simulate(work, _rates(logs)).step_s
    sizes, directions = np.linalg.eigh(np.array(calibration.covariance))
    slower = faster = 0.0
    for size, direction in zip(sizes, directions.T, strict=True):
        if size < _NO_DOUBT:
            continue
        reach = FOUR_OF_FIVE * math.sqrt(size) * direction
        ends = [
            math.log(simulate(work, _rates(logs + end)).step_s / step_s) for end in (reach, -reach)
        ]
        slower += max(0.0, *ends) ** 2
        faster += min(0.0, *ends) ** 2
    return step_s, math.sqrt(slower) / FOUR_OF_FIVE, math.sqrt(faster) / FOUR_OF_FIVE


_NO_DOUBT = 1e-8


def _time_and_slopes(work: StepWork, logs: Matrix, doubt: Matrix) -> tuple[float, Matrix]:
    """Seconds of a step, and by how much their logarithm changes with that of each rate that is in
    doubt."""
    time = simulate(work, _rates(logs)).step_s
    slopes = np.zeros(len(NAMES))
    for n in range(len(NAMES)):
        if doubt[n, n] < _NO_DOUBT:
            continue
        changed = logs.copy()
        changed[n] += _CHANGE
        slopes[n] = math.log(simulate(work, _rates(changed)).step_s / time) / _CHANGE
    return time, slopes


def _logarithms(machine: MachineRates) -> Matrix:
    return np.log([machine.values[name].value for name in NAMES])


def _rates(logs: Matrix) -> Rates:
    return Rates(**{n: math.exp(log) for n, log in zip(NAMES, logs, strict=True)})


def _moved(
    value: UncertainValue, new: float, left: float, doubt: float, source: str
) -> UncertainValue:
    """A value keeps its own source unless a sample has told something about it."""
    if left > 0.98 * doubt:
        # Untouched, but for rounding, or moved by a little that is within its doubt.
        return value if left >= doubt else UncertainValue(new, value.factor, value.source)
    return UncertainValue(new, math.exp(math.sqrt(max(0.0, left))), source)


def _rows(matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(x) for x in row) for row in matrix)


# Files


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    rates: tuple[str, ...]
    calibration: SpeedCalibration
    torch: str | None = None
    """With which what it is fitted to was measured; None: not said."""


def save(calibration: SpeedCalibration, path: Path, torch: str | None = None) -> None:
    """Write it, complete or not at all. Raises OSError."""
    whole = _File(schema=_LAYOUT, rates=NAMES, calibration=calibration, torch=torch)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(whole), indent=1).decode())


def load(path: Path) -> tuple[SpeedCalibration, str | None]:
    """A calibration, and the torch it is of. Raises NotFoundError where there is none, ConfigError
    for one that is not to be read."""
    try:
        whole = msgspec.json.decode(read_bytes(path, _MOST_BYTES), type=_File)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no calibration file {path}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a speed calibration: {error}") from error
    if problem := _problem(whole):
        raise ConfigError(f"{path} cannot be used as a calibration: {problem}; fit it again")
    return whole.calibration, whole.torch


def _problem(whole: _File) -> str | None:
    values, covariance = whole.calibration.machine.values, whole.calibration.covariance
    if whole.schema != _LAYOUT or whole.rates != NAMES or set(values) != set(NAMES):
        return "it is of another release"
    if any(not (0 < value.value < 1e18 and 1 <= value.factor < 1e6) for value in values.values()):
        return "a rate is not a positive number"
    if len(covariance) != len(NAMES) or any(len(row) != len(NAMES) for row in covariance):
        return "its uncertainties are incomplete"
    if any(not math.isfinite(x) for row in covariance for x in row):
        return "its uncertainties are not numbers"
    return None
