"""Which checkpoints a person means by RUN: a run, its array tasks, or a directory on disk."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from fsdpkit.cli.options import chosen, complete_run, runs_option
from fsdpkit.cli.terminal import reading_bar
from fsdpkit.errors import NotFoundError, UsageError
from fsdpkit.runs.layout import RunPaths, TaskPaths


def run_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """RUN, by default the newest, --runs and --task of a command."""

    @functools.wraps(function)
    def with_run(run: str | None, runs: str | None, **others: Any) -> Any:
        if "destination" in others and others["destination"] is None:
            others["destination"], run = _as_destination(run, runs), None
        return function(run=str(chosen(run, runs)), runs=runs, **others)

    task = click.option(
        "--task", type=click.IntRange(0), help="Array task (default: all; export: the first)."
    )
    return click.argument("run", required=False, shell_complete=complete_run)(
        task(runs_option(with_run))
    )


def _as_destination(word: str | None, runs: str | None) -> Path:
    """DEST, if that alone was given. Raises UsageError for a run's name."""
    from fsdpkit.runs.store import find_run, runs_dir

    with contextlib.suppress(NotFoundError):
        if word is None or find_run(word, runs_dir(runs)):
            raise UsageError("DEST is missing: the directory or file to write.")
    return Path(word or "")


@dataclass(frozen=True)
class CheckpointPlace:
    """Checkpoints, oldest first, and the directory that they are all of; None of a single one."""

    directory: Path | None
    checkpoints: list[Path]
    task: int | None = None

    def name(self, checkpoint: Path) -> str:
        return checkpoint.name if self.task is None else f"task-{self.task}/{checkpoint.name}"


def find_checkpoints(run: str, runs: str | None, task: int | None) -> list[CheckpointPlace]:
    """Where the checkpoints of what the user named lie; several for an array. Raises NotFoundError
    when there is no such run, task or directory, StorageError when it cannot be read."""
    from fsdpkit.runs.checkpoints import checkpoints_in
    from fsdpkit.runs.store import find_run, runs_dir

    path = Path(os.path.expanduser(run))
    if path.is_dir() and not RunPaths(path).record.is_file() and (found := _checkpoints_at(path)):
        if task is not None:
            raise UsageError(f"--task chooses from an array's run, and {run} is no run.")
        return [found]
    try:
        paths = RunPaths(find_run(run, runs_dir(runs)))
    except NotFoundError:
        if not path.is_dir():
            raise
        raise NotFoundError(f"{run} is neither a run nor a directory with checkpoints.") from None
    tasks: Sequence[int | None] = paths.array_tasks() or [None]
    if task is not None and task not in tasks:
        started = f"tasks {', '.join(map(str, tasks))}" if tasks != [None] else "no array tasks"
        raise NotFoundError(f"{run} has no array task {task} that started: it has {started}.")
    directories = {
        number: paths.task(number).checkpoints for number in tasks if task in (None, number)
    }
    return [
        CheckpointPlace(where, checkpoints_in(where), number)
        for number, where in directories.items()
    ]


def _checkpoints_at(path: Path) -> CheckpointPlace | None:
    """If `path` is a checkpoint, a directory of checkpoints, or one that has it inside."""
    from fsdpkit.runs.checkpoint_writing import CLAIM
    from fsdpkit.runs.checkpoints import DESCRIPTION, checkpoints_in, step_of

    path = path.absolute()
    if step_of(path) is not None or (path / DESCRIPTION).is_file():
        return CheckpointPlace(None, [path])
    for directory in (TaskPaths(path).checkpoints, path):
        found = checkpoints_in(directory)
        if found or (directory / CLAIM).is_file():
            return CheckpointPlace(directory, found)
    return None


def require_some(run: str, places: Sequence[CheckpointPlace]) -> None:
    if not any(place.checkpoints for place in places):
        if saved := next(filter(None, map(_of_another_trainer, places)), None):
            raise NotFoundError(
                f"{run} has no checkpoint of fsdpkit's trainer. Its own trainer saved {saved}; a "
                "resume takes the newest whole one."
            )
        raise NotFoundError(
            f"{run} has no checkpoint. training.checkpoint.every_steps says when one is due, "
            f"`fsdpkit logs {shlex.quote(run)}` whether it was reached."
        )


def _of_another_trainer(place: CheckpointPlace) -> str | None:
    """What one such as Lightning has saved in the run, in words."""
    from fsdpkit.runs import layout

    if place.directory is None:
        return None
    for name in (layout.HUGGINGFACE, layout.LIGHTNING, layout.ACCELERATE):
        directory = place.directory.parent / name
        found = [each for each in directory.glob("[!.]*") if each.suffix != ".json"]
        if found:
            found.sort(key=lambda path: path.stat().st_mtime)
            return f"{', '.join(path.name for path in found[-5:])} in {directory}"
    return None


def of_step(
    run: str, places: Sequence[CheckpointPlace], step: int | None
) -> list[tuple[str, Path]]:
    """Name and path of each checkpoint, or of those of `step`. Raises NotFoundError without any."""
    from fsdpkit.runs.checkpoints import step_of

    require_some(run, places)
    every = [(place.name(path), path) for place in places for path in place.checkpoints]
    chosen = [(name, path) for name, path in every if step is None or step_of(path) == step]
    if not chosen:
        names = ", ".join(name for name, _ in every[-5:])
        raise NotFoundError(f"{run} has no checkpoint of step {step}; the newest are {names}.")
    return chosen


def without(path: Path, text: str) -> str:
    """`text` with the names of files in the checkpoint `path` alone: 80 columns are few."""
    return text.replace(f"{path}{os.sep}", "")


def every_problem(path: Path) -> list[str]:
    """What is wrong with a checkpoint, by every byte; a bar if a person looks at standard error."""
    from fsdpkit.runs.checkpoints import problems_of

    with reading_bar() as read:
        report = None if read is None else partial(read, path)
        return [without(path, problem) for problem in problems_of(path, report)]
