"""Trainers by name, and a job's type with the settings of its trainer."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from fsdpkit.config.job import JobSpec
from fsdpkit.config.key_changes import OWN_TRAINER
from fsdpkit.config.spelling import nearest
from fsdpkit.config.trainer import Trainer
from fsdpkit.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OWN = OWN_TRAINER
GROUP = "fsdpkit.trainers"


@functools.cache
def trainer_of(name: str) -> Trainer:
    """The trainer with this name. Raises ConfigError where no installed package offers it."""
    if name == OWN:  # without a look at the metadata of all packages, which takes longer
        own: Trainer = resolve_name("fsdpkit.training.offer:TRAINER")
        return own
    offered = {point.name: point for point in _offered()}
    if name not in offered:
        known = [OWN, *sorted(offered)]
        raise ConfigError(
            f"trainer: no package installed here offers a trainer {name!r} (entry point {GROUP})."
            f"{nearest(name, known)} Known: {', '.join(known)}."
        )
    found = offered[name].load()
    if not isinstance(found, Trainer):
        raise ConfigError(f"trainer: {offered[name].value} is no fsdpkit.config.trainer.Trainer")
    return found


def _offered() -> Iterable[EntryPoint]:
    from importlib.metadata import (
        entry_points,  # milliseconds that a job of fsdpkit's own need not wait
    )

    return entry_points(group=GROUP)


@functools.cache
def job_type(trainer: str = OWN) -> type[JobSpec]:
    """A job whose `[training]` has the settings of this trainer. Raises ConfigError."""
    settings: Any = trainer_of(trainer).Settings
    annotation: Any = Annotated[(settings | UnsetType, *_TRAINING.__metadata__)]
    fields = [("training", annotation, UNSET)]
    return msgspec.defstruct(  # type: ignore[return-value]
        "JobSpec",
        fields,
        bases=(JobSpec,),
        namespace={"__doc__": JobSpec.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


_TRAINING: Any = next(f.type for f in msgspec.structs.fields(JobSpec) if f.name == "training")
