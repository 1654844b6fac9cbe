"""`fsdpkit checkpoint verify`, and reading every byte of a checkpoint for it and for `export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from fsdpkit.cli.checkpoint_places import find_checkpoints, of_step, run_argument, without
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.terminal import reading_bar
from fsdpkit.config.units import format_bytes
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.listing import counted


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


@click.command("verify")
@run_argument
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@json_option(_verification)
def command(run: str, runs: str | None, task: int | None, step: int | None, as_json: bool) -> int:
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


def every_problem(path: Path) -> list[str]:
    """What is wrong with a checkpoint, by every byte; a bar if a person looks at standard error."""
    from fsdpkit.runs.checkpoints import problems_of

    with reading_bar() as read:
        report = None if read is None else partial(read, path)
        return [without(path, problem) for problem in problems_of(path, report)]
