"""The run that goodput.py looks at, and its effective training time in closed form.

A run trains for `interval_s`, saves (blocked for `blocked_s`; safe `written_s` after the save
began), trains on, and so on. Failures come as a Poisson process over all nodes. One throws the run
back to its newest safe checkpoint and starts a repair, which another failure starts over.

This is the model of Young (1974, first order) and Daly (2006, higher order) with three additions: a
checkpoint counts only when it is on disk, time passes until a failure is noticed, and repairs
differ. The formula is the renewal theorem: kept seconds over wall seconds of one stretch from one
restart to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Repair:
    """What one kind of failure leads to. All in seconds.

    `away_s`: until ranks are started; nothing runs that could fail. `start_s`: from there to the
    first step, during which nodes fail as in training.
    """

    away_s: float
    start_s: float


@dataclass(frozen=True)
class Kind:
    """A kind of failure, its share of all, and its repair within the allocation.

    `replaces`: the node is exchanged for a spare one. `silent`: the node is lost with all that ran
    on it, so that the job ends if it was the head node, whose agent decides for all.
    """

    name: str
    share: float
    repair: Repair
    replaces: bool = False
    silent: bool = False


@dataclass(frozen=True)
class System:
    """A run on `nodes` nodes with so many spare ones, and what failures and checkpoints cost it.

    `requeue`: the job is queued again, which also fills its spares; `head_requeue` the same when
    the head node was lost, which only Slurm can notice.
    """

    nodes: int
    failures_per_s: float
    kinds: tuple[Kind, ...]
    spares: int
    requeue: Repair
    head_requeue: Repair
    blocked_s: float
    written_s: float

    @property
    def shortest_interval_s(self) -> float:
        """A save begins when the one before is written."""
        return max(self.written_s - self.blocked_s, 1.0)

    @property
    def safe_after_s(self) -> float:
        """From the beginning of a save until its steps are kept."""
        return max(self.written_s, self.blocked_s)


def outcomes(system: System) -> list[tuple[float, Repair]]:
    """What a failure leads to in the long run, with probabilities that add up to 1."""
    lost_head = sum(kind.share for kind in system.kinds if kind.silent) / system.nodes
    replaced = sum(_on_other_nodes(kind, system) for kind in system.kinds if kind.replaces)
    without_spare = exhausted_share(system.spares, replaced, lost_head)
    found = [(lost_head, system.head_requeue)]
    for kind in system.kinds:
        share = _on_other_nodes(kind, system)
        requeued = share * without_spare if kind.replaces else 0.0
        noticed = kind.repair.away_s + system.requeue.away_s
        found.append((share - requeued, kind.repair))
        found.append((requeued, Repair(noticed, system.requeue.start_s)))
    return found


def _on_other_nodes(kind: Kind, system: System) -> float:
    """The share of failures of this kind that do not take the head node's agent along."""
    return kind.share * (1 - 1 / system.nodes) if kind.silent else kind.share


def exhausted_share(spares: int, replaced: float, lost_head: float) -> float:
    """The share of replacements that find no spare node; every requeue fills the spares.

    Of failures that count, `continues` take a spare. Between two requeues lie at most spares + 1 of
    them, and the last finds none if the head node was spared until then.
    """
    if not replaced:
        return 0.0
    continues = replaced / (replaced + lost_head)
    if continues == 1:
        return 1 / (spares + 1)
    reached = continues ** (spares + 1)
    events = (1 - reached) / (1 - continues)
    return reached / events / continues


def downtime_s(system: System) -> float:
    """Mean seconds from a failure to the first step after it, failures in between included."""
    rate, away, again = system.failures_per_s, 0.0, 0.0
    for probability, repair in outcomes(system):
        fails_again = -math.expm1(-rate * repair.start_s)
        away += probability * (repair.away_s + fails_again / rate)
        again += probability * fails_again
    return away / (1 - again)


def goodput(system: System, interval_s: float) -> float:
    """Share of wall time in steps that are kept, in [0, 1]."""
    rate, cycle_s = system.failures_per_s, interval_s + system.blocked_s
    first_safe = math.exp(-rate * (interval_s + system.safe_after_s))
    kept_s = interval_s * first_safe / -math.expm1(-rate * cycle_s)
    return kept_s / (1 / rate + downtime_s(system))


def best_interval_s(system: System) -> float:
    """The interval with the highest goodput: the root of rate × t = 1 - exp(-rate × (t + blocked)).

    What is lost in writing, noticing and restarting does not depend on it.
    """
    rate = system.failures_per_s

    def too_long(interval_s: float) -> bool:
        return rate * interval_s > -math.expm1(-rate * (interval_s + system.blocked_s))

    low, high = 0.0, 1 / rate  # the right side is below 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if too_long(middle) else (middle, high)
    return max(high, system.shortest_interval_s)


def young_interval_s(system: System) -> float:
    """Young's first-order interval, √(2 × blocked × mean time between failures)."""
    return math.sqrt(2 * system.blocked_s / system.failures_per_s)


@dataclass(frozen=True)
class Losses:
    """Where the rest of the time goes, to first order; shares of wall time."""

    saving: float
    repeated: float
    down: float


def losses(system: System, interval_s: float) -> Losses:
    rate = system.failures_per_s
    return Losses(
        saving=system.blocked_s / (interval_s + system.blocked_s),
        repeated=rate * (interval_s / 2 + system.safe_after_s),
        down=rate * downtime_s(system),
    )
