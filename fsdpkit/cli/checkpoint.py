"""`fsdpkit checkpoint`: which checkpoints a run has, whether every byte is there, exports, and one
more when a person asks.

`export` has a file of its own. None of the others needs torch, so that they answer on a login node.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.checkpoint_export import command as export
from fsdpkit.cli.checkpoint_places import (
    CheckpointPlace,
    every_problem,
    find_checkpoints,
    of_step,
    require_some,
    run_argument,
    without,
)
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run, table
from fsdpkit.config.units import format_bytes
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.listing import counted, first_of
from fsdpkit.reporting.words import second

if TYPE_CHECKING:
    from fsdpkit.runs.checkpoints import Description
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.saving import SaveRequest


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint. problem: seen without reading it. best_by: what it is best by, its value."""

    name: str
    path: Path
    task: int | None
    step: int | None
    saved_at: str | None
    bytes: int | None
    ranks: int | None
    problem: str | None
    resumes: bool
    measured: dict[str, Any]
    best: bool
    best_by: str | None


@answer("fsdpkit.checkpoint-ls/1")
def _checkpoints(checkpoints: Sequence[ListedCheckpoint]) -> None:
    """The checkpoints of a run, oldest first."""


@click.group("checkpoint")
def command() -> None:
    """List a run's checkpoints, check every byte, export one, or have one saved now.

    \b
      fsdpkit checkpoint save fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint ls fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint export fsdp-t5-20261121-101500-3f2a model

    RUN is a run's id or a part of it, path or job number (default: your newest); or a directory:
    that of an array task, of checkpoints, or one checkpoint.
    """


command.add_command(export)


@command.command("ls")
@run_argument
@json_option(_checkpoints)
def ls(run: str, runs: str | None, task: int | None, as_json: bool) -> int:
    """List RUN's checkpoints, oldest first.

    \b
      fsdpkit checkpoint ls fsdp-t5-20261121-101500-3f2a

    Complete means that every file exists with its full size; `verify` reads the bytes, as a
    resume does.
    """
    places = find_checkpoints(run, runs, task)
    listed = [one for place in places for one in _listed(place)]
    if as_json:
        require_some(run, places)
        _checkpoints(listed)
    elif listed:
        columns = ["CHECKPOINT", "SAVED", "SIZE", "RANKS", "STATE"]
        table(columns, [_row(one) for one in listed])
    for place in places:
        _tell_drafts(place)
    require_some(run, places)
    return 0


def _row(one: ListedCheckpoint) -> list[str]:
    state = f"refused: {one.problem}" if one.problem else "complete"
    if one.resumes:
        state += ", a resume takes it"
    if one.best_by:
        state += f", best by {one.best_by}"
    if one.saved_at is None or one.bytes is None:
        return [one.name, "-", "-", "-", state]
    return [one.name, _local_time(one.saved_at), format_bytes(one.bytes), str(one.ranks), state]


def _listed(place: CheckpointPlace) -> list[ListedCheckpoint]:
    from fsdpkit.runs.checkpoints import best_of, step_of

    listed: list[ListedCheckpoint] = []
    best = best_of(place.checkpoints)
    decided = place.directory is None  # which one a resume takes, or that it takes none
    for path in reversed(place.checkpoints):
        known, problem, stops = _glance(path)
        resumes = not decided and problem is None
        is_best = best is not None and best[0] == path
        listed.append(
            ListedCheckpoint(
                name=place.name(path),
                path=path,
                task=place.task,
                step=known.step if known else step_of(path),
                saved_at=known.saved_at if known else None,
                bytes=known.total_bytes if known else None,
                ranks=known.world_size if known else None,
                problem=problem,
                resumes=resumes,
                measured=known.measured if known else {},
                best=is_best,
                best_by=f"{best[1].metric} {best[2]:.6g}" if best and is_best else None,
            )
        )
        decided = decided or resumes or stops
    return listed[::-1]


def _glance(path: Path) -> tuple[Description | None, str | None, bool]:
    """What a checkpoint says of itself, what is wrong with it without reading its tensors, and
    whether a resume stops there instead of passing it over: another version wrote it."""
    from fsdpkit.runs.checkpoints import checksums, describe, wrong_size

    description = None
    try:
        description = describe(path)
        checksums(path)
    except (StorageError, ConfigError) as error:
        problem = without(path, str(error).rstrip("."))
        return description, problem, isinstance(error, ConfigError)
    return description, wrong_size(path, description.files), False


def _tell_drafts(place: CheckpointPlace) -> None:
    if place.directory is None:
        return
    if drafts := sorted(path.name for path in place.directory.glob(".step-*")):
        click.echo(
            f"fsdpkit: {first_of(drafts, 1)}: being written, or left by a process that was killed; "
            "the next start removes it",
            err=True,
        )


def _local_time(text: str) -> str:
    try:
        return second(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return text


@dataclass(frozen=True)
class Verified:
    """A checkpoint whose every byte was read. removed: it went meanwhile, as older ones do."""

    name: str
    path: Path
    whole: bool
    removed: bool
    problems: list[str]
    bytes: int | None


@answer("fsdpkit.checkpoint-verify/1")
def _verification(ok: bool, checkpoints: Sequence[Verified]) -> None:
    """What `checkpoint verify` found; the exit status is 74 if one is not whole."""


@command.command("verify")
@run_argument
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@json_option(_verification)
def verify(run: str, runs: str | None, task: int | None, step: int | None, as_json: bool) -> int:
    """Read every byte of RUN's checkpoints.

    \b
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a --step 2000

    A checkpoint is whole if every byte is as it was written; the exit status is 74 if one is
    not. `sha256sum -c SHA256SUMS` in its directory checks the same.
    """
    found: list[Verified] = []
    for name, path in of_step(run, find_checkpoints(run, runs, task), step):
        found.append(_verified(name, path))
        if not as_json:
            _tell_verified(found[-1])
    wrong = sum(not one.whole and not one.removed for one in found)
    if as_json:
        _verification(not wrong, found)
    if wrong:
        are = "is" if wrong == 1 else "are"
        raise StorageError(
            f"{wrong} of {counted(found, 'checkpoint')} {are} not whole. A resume skips such a "
            f"checkpoint and uses the newest whole one."
        )
    return 0


def _verified(name: str, path: Path) -> Verified:
    from fsdpkit.runs.checkpoints import describe

    try:
        problems = every_problem(path)
    except ConfigError as error:  # of another format
        problems = [without(path, str(error))]
    removed = bool(problems) and not path.exists()
    return Verified(
        name=name,
        path=path,
        whole=not problems,
        removed=removed,
        problems=[] if removed else problems,
        bytes=None if problems else describe(path).total_bytes,
    )


def _tell_verified(one: Verified) -> None:
    if one.removed:
        click.echo(f"{one.name}: removed meanwhile, as older ones are (keep_last)")
        return
    for problem in one.problems or [f"whole, {format_bytes(one.bytes or 0)}"]:
        click.echo(f"{one.name}: {problem}")


@dataclass(frozen=True)
class Saving:
    """One job that was asked for a checkpoint. path: of the checkpoint; null without --wait."""

    job_id: str
    task: int | None
    path: Path | None


@answer("fsdpkit.checkpoint-save/1")
def _saving(run: str, jobs: Sequence[Saving]) -> None:
    """A run that was asked to save a checkpoint and to go on."""


@command.command("save")
@click.option("--task", type=click.IntRange(0), help="Array task (default: all that are running).")
@on_run(copied=False)
@click.option("--wait", is_flag=True, help="Wait until the checkpoint is complete.")
@json_option(_saving)
def save(run: Run, task: int | None, wait: bool, as_json: bool) -> int:
    """Make RUN save a checkpoint after its current step, and continue.

    \b
      fsdpkit checkpoint save fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint save 3f2a --wait

    Your own script takes part through attach() from fsdpkit.script: huggingface, lightning or
    accelerate.

    Exit status: 2 if the run has ended or not begun; 69 if its script opened no checkpoints, or
    with --wait if it ended first; 74 if the checkpoint could not be written.
    """
    requests = run.save_checkpoint(array_task=task)
    if as_json:
        jobs = [
            Saving(one.job_id, one.array_task, _saved(one) if wait else None) for one in requests
        ]
        return _saving(run.id, jobs)
    names = ", ".join(request.job_id for request in requests)
    click.echo(f"asked {run.id} (job {names}) to save a checkpoint and to go on")
    if not wait:
        if any(request.is_listed for request in requests):
            click.echo(f"  to see it: fsdpkit checkpoint ls {shlex.quote(str(run.dir))}")
        return 0
    for request in requests:
        path = _saved(request)
        click.echo(f"{path.name} is saved: {path}")
    return 0


def _saved(request: SaveRequest) -> Path:
    return request.wait(lambda: click.echo(_SLOW, err=True))


_SLOW = (
    "fsdpkit: no answer yet. It comes after the step and the write. A loop that does not ask "
    "fsdpkit.training.SaveClock(…, paths=…) saves only on its own schedule."
)
