"""`fsdpkit checkpoint`: which checkpoints a run has, whether every byte is there, exports, and one
more when a person asks.

Here are the group and `ls`; the others have a file each. None but `export` needs torch, so that
they answer on a login node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.checkpoint_export import command as export
from fsdpkit.cli.checkpoint_places import (
    CheckpointPlace,
    find_checkpoints,
    require_some,
    run_argument,
    without,
)
from fsdpkit.cli.checkpoint_save import command as save
from fsdpkit.cli.checkpoint_verify import command as verify
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import table
from fsdpkit.config.units import format_bytes
from fsdpkit.listing import first_of
from fsdpkit.reporting.words import second

if TYPE_CHECKING:
    from fsdpkit.runs.checkpoints import Description


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

    RUN is a run's id or its end, path or job number; or a directory: that of an array task, of
    checkpoints, or one checkpoint.
    """


command.add_command(save)
command.add_command(verify)
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
    from fsdpkit.errors import ConfigError, StorageError
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
