"""A sweep's file: what to try, how often, and by which number to judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fsdpkit.config.array_tasks import ARGUMENT
from fsdpkit.config.fields import doc
from fsdpkit.config.job import Name
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import FileTables, Layered, build, overrides, read_toml
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.sweeps.space import SweptParameter, grid, parameters, told

MOST_TRIALS = 1000
"""Slurm's arrays end at task 1000 unless a centre set MaxArraySize otherwise (slurm.conf(5))."""
STEPS = "training.steps"

Metric = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_./-]{0,99}$")]


class Halving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Successive halving: all trials train a little, the best more (arXiv:1502.07943)."""

    rungs: Annotated[
        int, doc("Number of rungs; trials are compared after each but the last.", ge=2, le=8)
    ]
    factor: Annotated[
        int, doc("One in this many trials goes on, this many times further.", ge=2, le=64)
    ] = 3
    resource: Annotated[str, doc("What grows from rung to rung: training.steps or args.NAME.")] = (
        STEPS
    )
    most: Annotated[
        Annotated[int, Meta(ge=1)] | None, doc("Its value on the last rung; unset: the job's.")
    ] = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to try, and by which number to judge it."""

    schema: Annotated[Literal["fsdpkit.sweep/1"], doc("Format of this file.")]
    name: Annotated[Name, doc("Name of the sweep, seen in squeue.")]
    parameters: Annotated[dict[str, Any], doc("Values to try, by key of the job.")]
    job: Annotated[str, doc("Job by its name, a job file, or a training script.", min_length=1)] = (
        "t5"
    )
    sampler: Annotated[
        Literal["grid", "random", "tpe", "qmc", "cmaes"],
        doc("How values are sampled; the last three are Optuna's."),
    ] = "random"
    trials: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TRIALS)] | None,
        doc("Number of trials; for a grid, its number of points."),
    ] = None
    seed: Annotated[int, doc("Seed of the sampler.", ge=0, lt=2**31)] = 0
    metric: Annotated[Metric, doc("Metric that the script logs; its last value counts.")] = (
        "eval_loss"
    )
    best: Annotated[Literal["lowest", "highest"], doc("Which value of it is the best.")] = "lowest"
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TRIALS)] | None, doc("Trials at a time.")
    ] = None
    halving: Annotated[Halving | UnsetType, doc("Rungs; unset: every trial trains to the end.")] = (
        UNSET
    )

    @property
    def rungs(self) -> int:
        return 1 if self.halving is UNSET else self.halving.rungs


def load_file(path: Path) -> tuple[SweepFile, tuple[SweptParameter, ...], FileTables]:
    """The file, its parameters, and what was read. Raises NotFoundError, ConfigError."""
    if not path.is_file():
        raise NotFoundError(f"there is no sweep file {path}")
    layered = Layered()
    tables = read_toml(path)
    tables.kind = "sweep"
    layered.overlay(tables, str(path))
    what = f"sweep {path.name}"
    file = build(SweepFile, layered, what)
    try:
        space = parameters(file.parameters)
        _check(file, space)
    except ConfigError as error:
        key, colon, reason = str(error).partition(": ")
        raise ConfigError(f"{what}: {key} ({path}){colon}{reason}") from error
    beside = path.parent / file.job
    if (file.job.endswith((".toml", ".py")) or "/" in file.job) and beside.is_file():
        file = msgspec.structs.replace(file, job=str(beside.resolve()))
    return file, space, tables


def _check(file: SweepFile, space: Sequence[SweptParameter]) -> None:
    """What single keys do not show. Raises ConfigError, whose message begins with the key."""
    if file.sampler == "grid":
        for one in space:
            if not one.values:
                raise ConfigError(
                    f"parameters.{one.key}: a grid needs a list of values, and {one.kind} is "
                    f"continuous: list some, or use another sampler"
                )
        points = math.prod(len(one.values) for one in space)
        if points > MOST_TRIALS:
            raise ConfigError(
                f"parameters: a grid of {points:,} points; at most {MOST_TRIALS} trials are tried: "
                'list fewer values, or take sampler = "random" and trials'
            )
        if file.trials not in (None, points):
            raise ConfigError(f"trials: {file.trials}, but the grid has {points} points")
    elif file.trials is None:
        raise ConfigError(f'trials: is missing, and sampler = "{file.sampler}" draws any number')
    if isinstance(file.halving, Halving):
        _check_halving(file.halving, space, trials_of(file, space))


def _check_halving(halving: Halving, space: Sequence[SweptParameter], trials: int) -> None:
    resource, last = halving.resource, halving.factor ** (halving.rungs - 1)
    if resource != STEPS and not (resource.startswith(ARGUMENT) and len(resource) > len(ARGUMENT)):
        raise ConfigError(f"halving.resource: {resource!r}: write {STEPS}, or args.NAME")
    if any(one.key == resource for one in space):
        raise ConfigError(f"parameters.{resource}: halving.resource decides how much each rung has")
    if resource != STEPS and halving.most is None:
        raise ConfigError(f"halving.most: is missing, and the job does not set {resource}")
    if halving.most is not None and halving.most < last:
        raise ConfigError(
            f"halving.most: {halving.most} leaves nothing for the first of {halving.rungs} rungs, "
            f"which gets 1/{last} of it"
        )
    if trials < last:
        raise ConfigError(
            f"halving: {trials} trials are too few for {halving.rungs} rungs, in each of which one "
            f"of {halving.factor} goes on: try at least {last}, or fewer rungs"
        )


def trials_of(file: SweepFile, space: Sequence[SweptParameter]) -> int:
    """How many trials the file asks for."""
    return len(grid(space)) if file.sampler == "grid" else file.trials or 0


def check_against_job(
    file: SweepFile, space: Sequence[SweptParameter], job: LoadedJob, sets: Sequence[str]
) -> None:
    """Refuse what is no key of the job, no value of it, or said twice. Raises ConfigError."""
    what = f"sweep {file.name}: parameters"
    given = {text.partition("=")[0].strip() for text in sets}
    for one in space:
        for value in one.ends:
            texts, _ = told({one.key: value})
            try:
                overrides(type(job.spec), texts)
            except ConfigError as error:
                reason = str(error).removeprefix(f"--set {one.key}: ")
                raise ConfigError(f"{what}.{one.key}: {reason}") from error
        for key in given - {"args"}:
            if f"{key}.".startswith(f"{one.key}.") or one.key.startswith(f"{key}."):
                raise ConfigError(f"{what}.{one.key}: --set {key} sets it as well: leave out one")
        option = f"--{one.key.removeprefix(ARGUMENT)}"
        if one.key.startswith(ARGUMENT):
            for word in job.spec.args:
                if word.partition("=")[0] == option:
                    raise ConfigError(
                        f"{what}.{one.key}: the job's args have {word!r}, too: leave it out"
                    )
    halving = file.halving
    if isinstance(halving, Halving) and halving.most is not None and halving.resource in given:
        raise ConfigError(
            f"sweep {file.name}: halving.most: --set {halving.resource} says how much the last "
            "rung gets, too: leave out one"
        )
