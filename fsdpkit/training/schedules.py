"""The learning rate over time: warm-up, then constant, linear, cosine or inverse square root.

A rate is a function of the step alone, so a resumed run has no scheduler to restore.
"""

from __future__ import annotations

import math

import torch

from fsdpkit.config.training import OptimizerSettings


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, step: int, steps: int
) -> float:
    """Give each parameter group its rate for step `step` (from 0) of `steps`.

    A group's rate is the schedule's times its `lr_scale` (1 where it has none). Returns the
    schedule's, which is what the metrics show.
    """
    lr = settings.lr * learning_rate_share(settings, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    return lr


def learning_rate_share(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Learning rate of step `step` (from 0) of `steps`, as a share of the peak.

    The last step of the warm-up and the first after it have the peak. linear and cosine come down
    to `min_lr_ratio` in the last step; inverse-sqrt is √(warm-up / steps done), as in T5's paper.
    """
    warmup = warmup_steps(settings, steps)
    if step < warmup:
        return (step + 1) / warmup
    low, done = settings.min_lr_ratio, (step - warmup) / max(1, steps - 1 - warmup)
    if settings.schedule == "linear":
        return low + (1 - low) * (1 - done)
    if settings.schedule == "cosine":
        return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2
    if settings.schedule == "inverse-sqrt":
        return math.sqrt(max(1, warmup) / (step + 1))
    return 1.0


def warmup_steps(settings: OptimizerSettings, steps: int) -> int:
    """Steps of rising rate: as set, or a tenth of the run and at most 1000."""
    return min(1000, steps // 10) if settings.warmup_steps is None else settings.warmup_steps
