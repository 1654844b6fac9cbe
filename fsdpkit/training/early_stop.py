"""Stop when the held-out loss no longer falls."""

from __future__ import annotations

import math
from typing import Protocol


class HeldOutRecord(Protocol):
    """Where the state lives, so that it is saved and resumed: `checkpoint.Progress` is one."""

    best_loss: float | None
    worse: int


def lost_patience(record: HeldOutRecord, loss: float, patience: int) -> bool:
    """Note an evaluation; True after `patience` of them in a row without a lower loss (0: never).

    `loss` must be the same on all ranks, as an all-reduced mean is; then so is the answer. A loss
    that is not a number is no improvement.
    """
    if math.isfinite(loss) and (record.best_loss is None or loss < record.best_loss):
        record.best_loss, record.worse = loss, 0
    else:
        record.worse += 1
    return 0 < patience <= record.worse
