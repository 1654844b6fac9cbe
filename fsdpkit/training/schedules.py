"""The learning rate over time: warm-up, then a schedule of our own or a scheduler of torch.

A rate is a function of the step alone, so a resumed run has no scheduler to restore: one of torch
is stepped anew from its beginning.
"""

from __future__ import annotations

import functools
import json
import math
import warnings

import torch

from fsdpkit.config.training import OptimizerSettings
from fsdpkit.config.training.torch_schedules import TORCHS, schedule_problems
from fsdpkit.errors import ConfigError


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, step: int, steps: int
) -> float:
    """Give each parameter group its learning rate for a step.

    A group's rate is the schedule's times its `lr_scale` (1 where it has none). `inverse-sqrt` is
    of Vaswani et al. 2017 (section 5.3), `t5` of Raffel et al. 2020 (section 3.1.2).

    Args:
        optimizer: Whose parameter groups to change.
        settings: `[training.optimizer]`: peak rate, warm-up, schedule.
        step: Index of the step that comes next, from 0.
        steps: Steps of the whole run.

    Returns:
        The schedule's rate, which metrics show.

    Raises:
        ConfigError: The schedule's arguments are refused by torch, or lead to no finite rate.

    Examples:
        >>> import torch
        >>> from fsdpkit import training
        >>> from fsdpkit.config.training import OptimizerSettings
        >>> settings = OptimizerSettings(
        ...     lr=0.5, warmup_steps=2, schedule="linear", min_lr_ratio=0.0
        ... )
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.0)
        >>> [training.set_learning_rate(optimizer, settings, step, 5) for step in range(5)]
        [0.25, 0.5, 0.5, 0.25, 0.0]
    """
    lr = learning_rate(settings, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    return lr


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """The schedule's rate for step `step` (from 0) of `steps`.

    The first step after the warm-up has a torch scheduler's first rate, to which the warm-up rises.
    Raises ConfigError for arguments that torch refuses, or that lead to no finite rate.
    """
    if settings.schedule not in TORCHS:
        return settings.lr * learning_rate_share(settings, step, steps)
    warmup = warmup_steps(settings, steps)
    arguments = json.dumps(settings.schedule_arguments, sort_keys=True)
    scheduler = _torch_schedule(settings.schedule, arguments, settings.lr)
    if step < warmup:
        return scheduler.rate(0) * (step + 1) / warmup
    try:
        rate = scheduler.rate((step - warmup) // settings.schedule_every)
    except (ArithmeticError, TypeError, ValueError) as error:
        rate, why = math.nan, str(error)
    else:
        why = f"the rate is {rate}"
    if not math.isfinite(rate):
        raise ConfigError(
            f"training.optimizer.schedule_arguments: {settings.schedule} with {arguments} has no "
            f"rate for step {step + 1}: {why}."
        )
    return rate


def check_schedule(settings: OptimizerSettings) -> None:
    """Raises ConfigError for a schedule that cannot begin."""
    arguments, every = settings.schedule_arguments, settings.schedule_every
    if found := list(schedule_problems(settings.schedule, arguments, every=every)):
        raise ConfigError("\n".join(found))
    if settings.schedule in TORCHS:  # which may look at its arguments only when it is stepped
        learning_rate(settings, (settings.warmup_steps or 0) + every, 1)


class _TorchSchedule:
    """A scheduler of torch over an optimizer that updates nothing, asked for rates by step."""

    def __init__(self, name: str, arguments: str, lr: float) -> None:
        self._make = functools.partial(_scheduler, name, arguments, lr)
        self._scheduler, self._at = self._make(), 0

    def rate(self, step: int) -> float:
        if step < self._at:
            self._scheduler, self._at = self._make(), 0
        while self._at < step:
            self._scheduler.step()
            self._at += 1
        return float(self._scheduler.get_last_lr()[0])


_torch_schedule = functools.lru_cache(maxsize=4)(_TorchSchedule)


def _scheduler(name: str, arguments: str, lr: float) -> torch.optim.lr_scheduler.LRScheduler:
    optimizer = torch.optim.SGD([torch.zeros(())], lr=lr)
    given = json.loads(arguments)
    if name == "CyclicLR":
        given["cycle_momentum"] = False  # a rate is all that is asked of it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: torch.optim.lr_scheduler.LRScheduler = getattr(torch.optim.lr_scheduler, name)(
                optimizer, **given
            )
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ConfigError(f"training.optimizer.schedule_arguments: {name}: {error}") from None
    optimizer.step()  # torch warns of a scheduler that is ahead of its optimizer
    return made


def learning_rate_share(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of `steps` under one of our schedules, as a share of the peak.

    The last step of the warm-up and the first after it have the peak. linear and cosine come down
    to `min_lr_ratio` in the last step; inverse-sqrt and t5, whose rate does not rise before, are
    √(warm-up / steps done).
    """
    warmup = warmup_steps(settings, steps)
    if settings.schedule == "t5":
        return math.sqrt(max(1, warmup) / max(1, warmup, step + 1))
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
    """Steps of rising rate: as set, or a tenth of the run and at most 1000.

    Unset before a scheduler of torch there are none: it may have its own.
    """
    if settings.warmup_steps is not None:
        return settings.warmup_steps
    return 0 if settings.schedule in TORCHS else min(1000, steps // 10)
