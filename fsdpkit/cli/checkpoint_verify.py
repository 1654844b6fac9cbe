"""`fsdpkit checkpoint verify`, and reading every byte of a checkpoint for it and for `export`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.checkpoint_places import find_checkpoints, of_step, run_argument, without
from fsdpkit.cli.json_output import print_answer
from fsdpkit.cli.options import json_option
from fsdpkit.config.units import format_bytes

if TYPE_CHECKING:
    from fsdpkit.cli import json_answers


@click.command("verify")
@run_argument
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@json_option
def command(run: str, runs: str | None, task: int | None, step: int | None, as_json: bool) -> int:
    """Read every byte of RUN's checkpoints.

    \b
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a --step 2000

    A checkpoint is whole if every byte is as it was written; the exit status is 74 if one is
    not. `sha256sum -c SHA256SUMS` in its directory checks the same.
    """
    from fsdpkit.errors import StorageError

    found: list[json_answers.Verified] = []
    for name, path in of_step(run, find_checkpoints(run, runs, task), step):
        found.append(_verified(name, path))
        if not as_json:
            _tell_verified(found[-1])
    wrong = sum(not one.whole and not one.removed for one in found)
    if as_json:
        from fsdpkit.cli.json_answers import Verification

        print_answer(Verification(ok=not wrong, checkpoints=found))
    if wrong:
        are = "is" if wrong == 1 else "are"
        raise StorageError(
            f"{wrong} of {counted(found, 'checkpoint')} {are} not whole. A resume skips such a "
            f"checkpoint and uses the newest whole one."
        )
    return 0


def _verified(name: str, path: Path) -> json_answers.Verified:
    from fsdpkit.cli.json_answers import Verified
    from fsdpkit.errors import ConfigError
    from fsdpkit.runs.checkpoints import describe

    try:
        problems = every_problem(name, path)
    except ConfigError as error:  # of another format
        problems = [without(path, str(error))]
    removed = bool(problems) and not path.exists()
    return Verified(
        name=name,
        path=str(path),
        whole=not problems,
        removed=removed,
        problems=[] if removed else problems,
        bytes=None if problems else describe(path).total_bytes,
    )


def _tell_verified(one: json_answers.Verified) -> None:
    if one.removed:
        click.echo(f"{one.name}: removed meanwhile, as older ones are (keep_last)")
        return
    for problem in one.problems or [f"whole, {format_bytes(one.bytes or 0)}"]:
        click.echo(f"{one.name}: {problem}")


def every_problem(name: str, path: Path) -> list[str]:
    """What is wrong with a checkpoint, by every byte; a bar if a person looks at standard error."""
    from fsdpkit.runs.checkpoints import problems_of

    with _bar(name, path) as report:
        return [without(path, problem) for problem in problems_of(path, report)]


@contextmanager
def _bar(name: str, path: Path) -> Iterator[Callable[[int], object] | None]:
    """A bar that is told of bytes read, if a person looks at standard error."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fsdpkit.cli.terminal import console

    name_column = TextColumn("{task.description}", markup=False)
    columns = name_column, BarColumn(None), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        with suppress(OSError):  # it may be on its way out
            bar.update(task, total=sum(file.stat().st_size for file in path.glob("*")))
        yield lambda count: bar.advance(task, count)


def counted(things: Sequence[object], name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"
