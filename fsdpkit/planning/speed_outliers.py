"""Which measured steps a machine is fitted to: one run on a broken node must not pull the rest.

The samples that count are the largest set that agree with one another, within `SURPRISE` standard
deviations of what the model and its rates are in doubt by. What several runs agree on is believed,
however far from published figures it is; a sample by itself must be near them. Of two sets of one
size the faster counts: broken nodes, busy networks and slow data only ever slow a run down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fsdpkit.planning.efficiency import MachineRates
from fsdpkit.planning.speed_calibration import (
    MODEL_ERROR,
    MeasuredStep,
    SpeedCalibration,
    calibrated,
    logarithms,
    time_and_slopes,
)
from fsdpkit.planning.speed_schedule import simulate

SURPRISE = 3.0
ALONE = 2.0
"""Doubts by which all rates at once may be on their slow or fast side for one run to be believed
that no other agrees with."""
_LESS_IS_FASTER = (
    *("matmul_ramp_flops", "kernel_s", "launch_s", "collective_s"),
    *("in_node_latency_s", "network_latency_s", "contention"),
)
_ROUNDS = 3
Matrix = NDArray[np.float64]


class Outlier(msgspec.Struct, frozen=True):
    """A sample that was left out, and how many times slower it is than all others make it."""

    source: str
    slower: float

    def __str__(self) -> str:
        times, how = max(self.slower, 1 / self.slower), "slower" if self.slower > 1 else "faster"
        return f"{self.source}: {times:.1f} times {how} than the other data predict"


def fitted(
    before: SpeedCalibration, samples: Sequence[MeasuredStep]
) -> tuple[SpeedCalibration, tuple[Outlier, ...]]:
    """`before` with what those samples tell that agree, and the others."""
    agreed: list[int] = []
    after = before
    believed = [_believed_alone(before.machine, sample) for sample in samples]
    for _ in range(_ROUNDS):  # a step is not linear in its rates: looked at from where it led
        found = _agreeing(_around(before, after, samples), believed) if samples else []
        if found == agreed:
            break
        agreed = found
        after = calibrated(before, [samples[n] for n in agreed])
    left_out = [sample for n, sample in enumerate(samples) if n not in agreed]
    return after, tuple(against(one, after) for one in left_out)


def against(sample: MeasuredStep, calibration: SpeedCalibration) -> Outlier:
    """A sample beside what it should have been."""
    expected_s = simulate(sample.work, calibration.machine.rates()).step_s
    return Outlier(sample.source, sample.step_s / expected_s)


class _Linear:
    """The samples as a linear model of the rates' logarithms, from `before` on."""

    def __init__(self, off: Matrix, spread: Matrix) -> None:
        self.off = off
        """[samples]: logarithms measured, less those expected."""
        self.spread = spread
        """[samples, samples]: covariance of what is expected."""

    def surprises(self, known: Sequence[int]) -> Matrix:
        """[samples]: of each, given those that are `known`, in standard deviations."""
        noise = MODEL_ERROR**2
        chosen = list(known)
        among = self.spread[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen))
        gain = self.spread[:, chosen] @ np.linalg.inv(among)
        left = np.diag(self.spread - gain @ self.spread[chosen, :])
        # The measurement's own noise and the model's error, each once.
        doubt = np.sqrt(np.clip(left, 0.0, None) + 2 * noise)
        return np.asarray((self.off - gain @ self.off[chosen]) / doubt)


def _around(
    before: SpeedCalibration, point: SpeedCalibration, samples: Sequence[MeasuredStep]
) -> _Linear:
    start, there = logarithms(before.machine), logarithms(point.machine)
    answers = [time_and_slopes(sample.work, there) for sample in samples]
    slopes = np.array([slope for _, slope in answers])
    expected = np.log([time for time, _ in answers]) + slopes @ (start - there)
    measured = np.array([math.log(sample.step_s) for sample in samples])
    return _Linear(measured - expected, slopes @ np.array(before.covariance) @ slopes.T)


def _believed_alone(machine: MachineRates, sample: MeasuredStep) -> bool:
    fast, slow = (
        simulate(
            sample.work,
            machine.rates(
                {
                    name: value.factor ** (side if name in _LESS_IS_FASTER else -side)
                    for name, value in machine.values.items()
                }
            ),
        ).step_s
        for side in (-ALONE, ALONE)
    )
    return fast <= sample.step_s <= slow


def _agreeing(linear: _Linear, believed: Sequence[bool]) -> list[int]:
    """Places of the samples that count: from each sample on, whoever agrees best joins."""
    count = len(linear.off)
    best: list[int] = []
    for start in range(count):
        chosen = [start]
        while len(chosen) < count:
            surprise = np.abs(linear.surprises(chosen))
            surprise[chosen] = np.inf
            nearest = int(surprise.argmin())
            if surprise[nearest] > SURPRISE:
                break
            chosen.append(nearest)
        if len(chosen) == 1 and not believed[start]:
            continue
        if (len(chosen), -_mean(linear, chosen)) > (len(best), -_mean(linear, best)):
            best = sorted(chosen)
    return best


def _mean(linear: _Linear, chosen: Sequence[int]) -> float:
    return float(linear.off[list(chosen)].mean()) if chosen else math.inf
