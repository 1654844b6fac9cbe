"""How far a run has come, in which order of its data, and whether its held-out loss still falls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Progress:
    """How far a run has come. With the seed it also determines data order and random numbers.

    Attributes:
        step: Optimizer steps done.
        epoch: Index of the epoch, from 0.
        position: Samples of this epoch that all ranks together have consumed.
        group: Samples in a global batch when the epoch began; decides its order in buckets.
        tokens: Target tokens trained on.
        skipped: Steps left out because their gradient was not finite.
        best_loss: Lowest held-out loss so far; None before the first evaluation.
        worse: Evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    group: int = 0
    tokens: int = 0
    skipped: int = 0
    best_loss: float | None = None
    worse: int = 0


@dataclass(frozen=True)
class DataOrder:
    """What a position in an epoch is a position in; `fsdpkit.training.data_order` makes it.

    In other data, or in an order drawn from another seed, the same position means other samples.

    Attributes:
        fingerprint: Of the data and of what their order depends on; empty where nobody knows.
        samples: Samples in an epoch.
        seed: Of the order.
        global_batch: Samples that all ranks together consume in a step.
    """

    fingerprint: str
    samples: int
    seed: int
    global_batch: int


class _HeldOutRecord(Protocol):
    """Where the state lives, so that it is saved and resumed: `checkpoint.Progress` is one."""

    best_loss: float | None
    worse: int


def lost_patience(record: _HeldOutRecord, loss: float, patience: int) -> bool:
    """Note an evaluation; True after `patience` of them in a row without a lower loss (0: never).

    `loss` must be the same on all ranks, as an all-reduced mean is; then so is the answer. A loss
    that is not a number is no improvement.
    """
    if math.isfinite(loss) and (record.best_loss is None or loss < record.best_loss):
        record.best_loss, record.worse = loss, 0
    else:
        record.worse += 1
    return 0 < patience <= record.worse
