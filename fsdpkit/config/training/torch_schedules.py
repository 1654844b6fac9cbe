"""The classes of torch.optim.lr_scheduler by name: their arguments, known without importing torch.

A job file can name what takes numbers and words. What takes a function, a metric or other
schedulers is refused with the way to have it; no name but these is ever looked up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fsdpkit.config.spelling import nearest

OURS = ("constant", "linear", "cosine", "inverse-sqrt", "t5")
Kind = Literal["steps", "list of steps", "number", "switch", "word"]

ARGUMENTS: Mapping[str, Mapping[str, Kind]] = {
    "StepLR": {"step_size": "steps", "gamma": "number"},
    "MultiStepLR": {"milestones": "list of steps", "gamma": "number"},
    "ConstantLR": {"factor": "number", "total_iters": "steps"},
    "LinearLR": {"start_factor": "number", "end_factor": "number", "total_iters": "steps"},
    "ExponentialLR": {"gamma": "number"},
    "PolynomialLR": {"total_iters": "steps", "power": "number"},
    "CosineAnnealingLR": {"T_max": "steps", "eta_min": "number"},
    "CosineAnnealingWarmRestarts": {"T_0": "steps", "T_mult": "steps", "eta_min": "number"},
    "CyclicLR": {
        "base_lr": "number",
        "max_lr": "number",
        "step_size_up": "steps",
        "step_size_down": "steps",
        "mode": "word",
        "gamma": "number",
    },
    "OneCycleLR": {
        "max_lr": "number",
        "total_steps": "steps",
        "epochs": "steps",
        "steps_per_epoch": "steps",
        "pct_start": "number",
        "anneal_strategy": "word",
        "div_factor": "number",
        "final_div_factor": "number",
        "three_phase": "switch",
    },
}
NEEDED: Mapping[str, tuple[str, ...]] = {
    "StepLR": ("step_size",),
    "MultiStepLR": ("milestones",),
    "ExponentialLR": ("gamma",),
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestarts": ("T_0",),
    "CyclicLR": ("base_lr", "max_lr"),
    "OneCycleLR": ("max_lr",),
}
REFUSED: Mapping[str, str] = {
    "LambdaLR": "takes a Python function, which a job file cannot hold",
    "MultiplicativeLR": "takes a Python function, which a job file cannot hold",
    "SequentialLR": "takes other schedulers; warmup_steps goes before any schedule",
    "ChainedScheduler": "takes other schedulers; warmup_steps goes before any schedule",
    "ReduceLROnPlateau": "follows a metric; training.evaluation.patience stops on one",
}


def schedule_problems(name: str, arguments: Mapping[str, Any], *, every: int) -> Iterator[str]:
    """What is wrong with the scheduler's name and arguments, a sentence each."""
    if name in REFUSED:
        yield (
            f"training.optimizer.schedule: {name} {REFUSED[name]}. In a loop of your own it works: "
            "hand it to the Checkpointer as a state."
        )
        return
    if name not in (*OURS, *ARGUMENTS):
        known = [*OURS, *ARGUMENTS]
        yield (
            f"training.optimizer.schedule: there is no {name!r}.{nearest(name, known)} Known: "
            f"{', '.join(known)}."
        )
        return
    if name in OURS:
        if arguments or every != 1:
            yield (
                "training.optimizer.schedule_arguments and schedule_every belong to a torch "
                f'scheduler such as StepLR, but schedule is "{name}": remove them.'
            )
        return
    takes = ARGUMENTS[name]
    for key in sorted(arguments.keys() - takes):
        yield (
            f"training.optimizer.schedule_arguments: {name} takes no {key!r} here."
            f"{nearest(key, takes)} It takes {', '.join(takes)}."
        )
    for key in sorted(arguments.keys() & takes):
        if not _is(takes[key], arguments[key]):
            yield (
                f"training.optimizer.schedule_arguments: {name}: {key} is {arguments[key]!r}, but "
                f"must be {_WORDS[takes[key]]}."
            )
    if missing := [key for key in NEEDED.get(name, ()) if key not in arguments]:
        yield f"training.optimizer.schedule_arguments: {name} needs {', '.join(missing)}."


def one_cycle_steps(arguments: Mapping[str, Any]) -> int | None:
    """Steps after which OneCycleLR raises, where the arguments say."""
    if (total := arguments.get("total_steps")) is not None:
        return total if _is("steps", total) else None
    epochs, steps_per_epoch = arguments.get("epochs"), arguments.get("steps_per_epoch")
    known = _is("steps", epochs) and _is("steps", steps_per_epoch)
    return int(epochs) * int(steps_per_epoch) if known and epochs and steps_per_epoch else None


_WORDS: Mapping[Kind, str] = {
    "steps": "a whole number above zero",
    "list of steps": "a list of whole numbers above zero",
    "number": "a number",
    "switch": "true or false",
    "word": "a word",
}


def _is(kind: Kind, value: Any) -> bool:
    if kind == "switch":
        return isinstance(value, bool)
    if kind == "word":
        return isinstance(value, str)
    if kind == "list of steps":
        return isinstance(value, list | tuple) and all(_is("steps", each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return kind == "number" or (isinstance(value, int) and value > 0)
