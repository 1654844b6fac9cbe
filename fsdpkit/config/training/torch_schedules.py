"""Learning rate schedules by name: our own, and classes of torch.optim.lr_scheduler that a job file
can say all of. torch itself checks their arguments when the job starts, before its first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OURS = ("constant", "linear", "cosine", "inverse-sqrt", "t5")
TORCHS = (
    *("StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR"),
    *("CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR"),
)
"""Those with a rate for any step. Others take functions, metrics or schedulers, or end."""


def schedule_problems(name: str, arguments: Mapping[str, Any], *, every: int) -> Iterator[str]:
    """What is wrong with the scheduler's name and arguments, a sentence each."""
    if name not in (*OURS, *TORCHS):
        yield (
            f"training.optimizer.schedule: there is no {name!r}. Known: "
            f"{', '.join((*OURS, *TORCHS))}. In a loop of your own any other works: hand it to the "
            "Checkpointer as a state."
        )
    elif name in OURS and (arguments or every != 1):
        yield (
            "training.optimizer.schedule_arguments and schedule_every belong to a torch "
            f'scheduler such as StepLR, but schedule is "{name}": remove them.'
        )
