"""What measurements say about a machine: its rates fitted, and how sure they are afterwards.

Every rate begins with a value and a doubt (`efficiency.py`). A measurement, such as a finished
run's seconds a step, moves each rate by as much as the step depends on it and as it was in doubt.
One point is enough, and a second one of the same kind adds little. This is linear Bayesian
estimation in logarithms, repeated around the newest estimate since a step is not linear in them
(Gauss and Newton's iteration; see Tarantola, "Inverse Problem Theory", 2005, section 3.4). What is
left of the doubt, and how rates hang together, makes the range of a prediction.

A bandwidth that `fsdpkit check --nodes` has measured simply replaces the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdpkit.planning.efficiency import GB, NAMES, MachineRates, Rates, UncertainValue
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork

Matrix = NDArray[np.float64]

MODEL_ERROR = 0.05
"""Of the logarithm of a step's time: what the model leaves out, and runs differ by themselves."""
_CHANGE = 0.02
_ITERATIONS, _SETTLED = 8, 0.003
_STEP = 0.7
"""The most that one iteration changes a logarithm, where the linear answer is too far away."""


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


def calibrated(before: SpeedCalibration, samples: Sequence[MeasuredStep]) -> SpeedCalibration:
    """`before` with what the samples tell. Raises ValueError for a step that took no time."""
    if not samples:
        return before
    if any(not 0 < sample.step_s < math.inf for sample in samples):
        raise ValueError("a measured step takes more than 0 s, and ends")
    start = logarithms(before.machine)
    doubt = np.array(before.covariance)
    measured = np.log([sample.step_s for sample in samples])
    noise = np.eye(len(samples)) * MODEL_ERROR**2
    found = start
    gain = slopes = np.zeros((0, 0))
    for _ in range(_ITERATIONS):
        answers = [time_and_slopes(sample.work, found) for sample in samples]
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


def with_bandwidths(
    before: SpeedCalibration, source: str, *, in_node_gb_s: float | None, between_gb_s: float | None
) -> SpeedCalibration:
    """Bus bandwidths as `fsdpkit check --nodes` measures them, in 10^9 bytes a second: among one
    node's ranks, and of the whole nodes with one another. None: not measured."""
    measured = {"in_node_bytes": in_node_gb_s, "node_bytes": between_gb_s}
    for name, gb_s in measured.items():
        if gb_s:
            before = with_value(before, name, UncertainValue(gb_s * GB, 1.1, source))
    return before


def with_value(before: SpeedCalibration, name: str, value: UncertainValue) -> SpeedCalibration:
    """One rate measured by itself: whatever was thought of it before no longer counts. Raises
    KeyError for what is no rate."""
    machine = before.machine.replace(**{name: value})
    covariance = np.array(before.covariance)
    at = NAMES.index(name)
    covariance[at, :] = covariance[:, at] = 0.0
    covariance[at, at] = math.log(value.factor) ** 2
    return SpeedCalibration(machine, _rows(covariance), before.samples)


def doubt_of(work: StepWork, calibration: SpeedCalibration) -> float:
    """Standard deviation of the logarithm of the step's time, the model's own error included."""
    _, slopes = time_and_slopes(work, logarithms(calibration.machine))
    variance = float(slopes @ np.array(calibration.covariance) @ slopes)
    return math.sqrt(max(0.0, variance) + MODEL_ERROR**2)


def time_and_slopes(work: StepWork, logarithms: Matrix) -> tuple[float, Matrix]:
    """Seconds of a step, and by how much their logarithm changes with each rate's."""
    time = simulate(work, _rates(logarithms)).step_s
    slopes = np.zeros(len(NAMES))
    for n in range(len(NAMES)):
        changed = logarithms.copy()
        changed[n] += _CHANGE
        slopes[n] = math.log(simulate(work, _rates(changed)).step_s / time) / _CHANGE
    return time, slopes


def logarithms(machine: MachineRates) -> Matrix:
    return np.log([machine.values[name].value for name in NAMES])


def _rates(logarithms: Matrix) -> Rates:
    return Rates(**{n: math.exp(log) for n, log in zip(NAMES, logarithms, strict=True)})


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
