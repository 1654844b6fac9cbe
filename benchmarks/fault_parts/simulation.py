"""The run of model.py, failure by failure; many runs at a time, seeded.

What the closed form takes as long-run averages happens here: spare nodes are used up and come back
with a requeue, the head node is one of all, a failure hits a repair. Steps that are done when the
clock stops count, because a run that ends saves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.fault_parts.model import Repair, System

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Simulated:
    """Goodput of each run, and the mean number of failures and requeues of one."""

    runs: Floats
    failures: float
    requeues: float

    @property
    def mean(self) -> float:
        return float(self.runs.mean())

    def half_width(self, deviations: float = 1.96) -> float:
        """Half the confidence interval of the mean; 1.96 standard errors make it one of 95 %."""
        return deviations * float(self.runs.std(ddof=1)) / float(np.sqrt(len(self.runs)))

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.runs, percent))


def simulate(system: System, interval_s: float, *, days: float, runs: int, seed: int) -> Simulated:
    """`runs` stretches of `days` each, out of the middle of a run that goes on for long."""
    return _Simulation(system, interval_s, days * 86_400, runs, seed).run()


class _Simulation:
    def __init__(
        self, system: System, interval_s: float, horizon_s: float, runs: int, seed: int
    ) -> None:
        self.system, self.interval_s, self.horizon_s = system, interval_s, horizon_s
        self.random = np.random.default_rng(seed)
        self.shares = np.array([kind.share for kind in system.kinds])
        self.replaces = np.array([kind.replaces for kind in system.kinds])
        self.silent = np.array([kind.silent for kind in system.kinds])
        self.repairs = _as_rows([kind.repair for kind in system.kinds])
        self.wall_s, self.kept_s = np.zeros(runs), np.zeros(runs)
        self.spares = self._spares_in_the_middle(runs)
        self.failures = self.requeues = 0

    def run(self) -> Simulated:
        while (going := self.wall_s < self.horizon_s).any():
            left_s = np.maximum(self.horizon_s - self.wall_s, 0.0)
            until_failure_s = self._until_failure(len(going))
            fails = going & (until_failure_s < left_s)
            self.kept_s += np.where(fails, self._kept(until_failure_s), self._trained(left_s))
            self.wall_s += np.where(fails, until_failure_s, left_s)
            self._repair(fails)
        runs = len(self.kept_s)
        return Simulated(self.kept_s / self.horizon_s, self.failures / runs, self.requeues / runs)

    def _until_failure(self, count: int) -> Floats:
        return self.random.exponential(1 / self.system.failures_per_s, count)

    def _trained(self, up_s: Floats) -> Floats:
        """Seconds of `up_s` since a restart that were steps, not saves."""
        saves, rest = np.divmod(up_s, self.interval_s + self.system.blocked_s)
        return saves * self.interval_s + np.minimum(rest, self.interval_s)

    def _kept(self, up_s: Floats) -> Floats:
        """Seconds of steps that lie in checkpoints which are safe `up_s` after a restart."""
        since_first_s = up_s - self.interval_s - self.system.safe_after_s
        cycles = np.floor(since_first_s / (self.interval_s + self.system.blocked_s)) + 1
        kept_s: Floats = self.interval_s * np.maximum(cycles, 0.0)
        return kept_s

    def _repair(self, down: Bools) -> None:
        """Let the clocks of these runs go on until each trains again."""
        down = down.copy()
        while down.any():
            self.failures += int(down.sum())
            repairs = self._repairs(down)
            self.wall_s += np.where(down, repairs[:, 0], 0.0)
            until_failure_s = self._until_failure(len(down))
            spent_s = np.minimum(until_failure_s, repairs[:, 1])
            self.wall_s += np.where(down, spent_s, 0.0)
            down &= until_failure_s < repairs[:, 1]

    def _repairs(self, down: Bools) -> Floats:
        """A row (away, start) a run; uses and fills the spares of those that are down."""
        system, count = self.system, len(down)
        kinds = self.random.choice(len(self.shares), size=count, p=self.shares)
        head = self.silent[kinds] & (self.random.integers(system.nodes, size=count) == 0)
        takes = self.replaces[kinds] & ~head
        lacks = takes & (self.spares == 0)
        repairs: Floats = self.repairs[kinds].copy()
        repairs[lacks, 0] += system.requeue.away_s
        repairs[lacks, 1] = system.requeue.start_s
        repairs[head] = _as_rows([system.head_requeue])
        requeued = down & (head | lacks)
        self.requeues += int(requeued.sum())
        self.spares = np.where(down & takes & ~lacks, self.spares - 1, self.spares)
        self.spares = np.where(requeued, system.spares, self.spares)
        return repairs

    def _spares_in_the_middle(self, runs: int) -> NDArray[np.int64]:
        """Spares left at a random moment: n fewer than all has the weight continues ** n."""
        system = self.system
        on_others = np.where(self.silent, 1 - 1 / system.nodes, 1.0)
        takes = float((self.shares * on_others)[self.replaces].sum())
        lost_head = float(self.shares[self.silent].sum()) / system.nodes
        if not takes:
            return np.full(runs, system.spares)
        used = np.arange(system.spares + 1)
        weights = (takes / (takes + lost_head)) ** used
        drawn = self.random.choice(used, size=runs, p=weights / weights.sum())
        return np.asarray(system.spares - drawn, dtype=np.int64)


def _as_rows(repairs: list[Repair]) -> Floats:
    return np.array([(repair.away_s, repair.start_s) for repair in repairs])
