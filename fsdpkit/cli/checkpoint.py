"""`fsdpkit checkpoint`: which checkpoints a run has, whether every byte is there, exports, and one
more when a person asks.

`ls` and `verify` need no torch, so that they answer on a login node; `export` does, but neither a
process group nor a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.checkpoint_places import CheckpointPlace, find_checkpoints, of_step, require_some
from fsdpkit.cli.checkpoint_save import command as save
from fsdpkit.cli.options import complete_run, json_option, runs_option, table

if TYPE_CHECKING:
    from fsdpkit.cli import json_answers
    from fsdpkit.runs.checkpoints import Description


@click.group("checkpoint")
def command() -> None:
    """List a run's checkpoints, check every byte, export one, or have one saved now.

    \b
      fsdpkit checkpoint save fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint ls fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint export fsdp-t5-20261121-101500-3f2a model

    RUN is a run's path, id, or a unique part of it; or a directory: that of an array task, of
    checkpoints, or one checkpoint.
    """


command.add_command(save)


def _run_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--task", type=click.IntRange(0), help="Array task (default: all; export: the first)."
    )(runs_option(function))
    return click.argument("run", shell_complete=complete_run)(function)


@command.command("ls")
@_run_argument
@json_option
def ls(run: str, runs: str | None, task: int | None, as_json: bool) -> int:
    """List RUN's checkpoints, oldest first.

    \b
      fsdpkit checkpoint ls fsdp-t5-20261121-101500-3f2a

    Complete means that every file exists with its full size; `verify` reads the bytes, as a
    resume does.
    """
    places = find_checkpoints(run, runs, task)
    listed = [entry for place in places for entry in _listed(place)]
    if as_json:
        from fsdpkit.cli.json_answers import Checkpoints
        from fsdpkit.cli.json_output import print_answer

        require_some(run, places)
        print_answer(Checkpoints(checkpoints=[entry.answer() for entry in listed]))
    elif listed:
        columns = ["CHECKPOINT", "SAVED", "SIZE", "RANKS", "STATE"]
        table(columns, [entry.row() for entry in listed])
    for place in places:
        _tell_drafts(place)
    require_some(run, places)
    return 0


@command.command("verify")
@_run_argument
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@json_option
def verify(run: str, runs: str | None, task: int | None, step: int | None, as_json: bool) -> int:
    """Read every byte of RUN's checkpoints.

    \b
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint verify fsdp-t5-20261121-101500-3f2a --step 2000

    A checkpoint is whole if every byte is as it was written; the exit status is 74 if one is
    not. `sha256sum -c SHA256SUMS` in its directory checks the same.
    """
    from fsdpkit.cli.json_output import print_answer
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
            f"{wrong} of {_count(found, 'checkpoint')} {are} not whole. A resume skips such a "
            f"checkpoint and uses the newest whole one."
        )
    return 0


def _verified(name: str, path: Path) -> json_answers.Verified:
    from fsdpkit.cli.json_answers import Verified
    from fsdpkit.errors import ConfigError

    try:
        problems = _problems_of(name, path)
    except ConfigError as error:  # of another format
        problems = [_without(path, str(error))]
    removed = bool(problems) and not path.exists()
    return Verified(
        name=name,
        path=str(path),
        whole=not problems,
        removed=removed,
        problems=[] if removed else problems,
        bytes=None if problems else _bytes_of(path),
    )


def _tell_verified(one: json_answers.Verified) -> None:
    if one.removed:
        click.echo(f"{one.name}: removed meanwhile, as older ones are (keep_last)")
        return
    for problem in one.problems or [f"whole, {_size(one.bytes or 0)}"]:
        click.echo(f"{one.name}: {problem}")


@command.command("export")
@_run_argument
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Checkpoint (default: the newest whole one).")
@click.option("--best", is_flag=True, help="The best one, by training.checkpoint.keep_best.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["huggingface", "file"]),
    default="huggingface",
    show_default=True,
    help="Directory of safetensors, or one file for torch.load.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights (default: as trained).",
)
@click.option(
    "--with-optimizer", is_flag=True, help="Include the optimizer's state; needs --format file."
)
@json_option
def export(
    run: str,
    destination: Path,
    runs: str | None,
    task: int | None,
    step: int | None,
    best: bool,
    kind: str,
    dtype: str | None,
    with_optimizer: bool,
    as_json: bool,
) -> int:
    """Write the weights of one of RUN's checkpoints to DEST.

    \b
      fsdpkit checkpoint export fsdp-t5-20261121-101500-3f2a model
      fsdpkit checkpoint export 3f2a model.pt --format file --step 2000
      fsdpkit checkpoint export 3f2a all.pt --format file --with-optimizer
      fsdpkit checkpoint export 3f2a model --best

    The checkpoint is verified first. An earlier export at DEST is replaced, anything else is not.
    """
    from fsdpkit.errors import UsageError

    if with_optimizer and kind != "file":
        raise UsageError(
            "--with-optimizer: a Hugging Face directory has no place for it; add --format file."
        )
    if best and step is not None:
        raise UsageError("--best and --step name two checkpoints: give one of them.")
    places = find_checkpoints(run, runs, task)
    checkpoint = _whole_checkpoint(run, places, _best_step(run, places) if best else step)
    target = Path(os.path.abspath(os.path.expanduser(destination)))
    if not target.name:
        raise UsageError(f"DEST: {target} cannot be made.")

    import torch

    from fsdpkit.training.export import export_file, export_hugging_face

    chosen = getattr(torch, dtype) if dtype else None
    if kind == "file":
        export_file(checkpoint, target, dtype=chosen, with_optimizer=with_optimizer)
        files = [target]
    else:
        export_hugging_face(checkpoint, target, dtype=chosen)
        files = sorted(target.iterdir())
    total_bytes = sum(file.stat().st_size for file in files)
    ways = _ways_to_load(target, destination, with_optimizer)
    if as_json:
        from fsdpkit.cli.json_answers import Exported
        from fsdpkit.cli.json_output import print_answer

        names = [str(file) for file in files]
        print_answer(
            Exported(
                checkpoint=str(checkpoint),
                path=str(target),
                files=names,
                bytes=total_bytes,
                load=ways,
            )
        )
        return 0
    size = _size(total_bytes)
    what = "weights and optimizer" if with_optimizer else "weights"
    click.echo(f"{destination}: {what} of {checkpoint.name}, {size} in {_count(files, 'file')}")
    for line in ways:
        click.echo(f"  {line}")
    return 0


def _whole_checkpoint(run: str, places: Sequence[CheckpointPlace], step: int | None) -> Path:
    """The newest whole checkpoint, or that of `step`, after every byte of it was read.

    Of an array: of the first task that has any. Raises StorageError when it is not whole,
    ConfigError when it is of another format.
    """
    from fsdpkit.errors import StorageError

    require_some(run, places)
    first = [place for place in places if place.checkpoints][:1]
    for name, path in reversed(of_step(run, first, step)):
        problems = _problems_of(name, path)
        if not problems:
            return path
        click.echo(f"fsdpkit: {name} is refused: {'; '.join(problems)}", err=True)
    what = "no checkpoint is whole" if step is None else f"the one of step {step} is not whole"
    raise StorageError(f"{run}: {what}; nothing was exported.")


def _best_step(run: str, places: Sequence[CheckpointPlace]) -> int:
    """The step of the best checkpoint, of an array: of the first task that has any.

    Raises NotFoundError when none was measured by what the run keeps its best by.
    """
    from fsdpkit.errors import NotFoundError
    from fsdpkit.runs.checkpoints import best_of, describe

    require_some(run, places)
    found = best_of(next(place.checkpoints for place in places if place.checkpoints))
    if found is None:
        raise NotFoundError(
            f"{run} has no best checkpoint: a run keeps one by the metric that "
            "training.checkpoint.keep_best names. Leave --best out, or choose one by --step."
        )
    return describe(found[0]).step


@dataclass(frozen=True)
class _Listed:
    """A line of `ls`; `problem` is what shows without reading the tensors."""

    name: str
    path: Path
    task: int | None
    description: Description | None
    problem: str | None
    resumes: bool
    best: str | None = None  # by what, if it is the best of its run

    def row(self) -> list[str]:
        state = f"refused: {self.problem}" if self.problem else "complete"
        if self.resumes:
            state += ", a resume takes it"
        if self.best:
            state += f", best by {self.best}"
        if (known := self.description) is None:
            return [self.name, "-", "-", "-", state]
        size = _size(known.total_bytes)
        return [self.name, _local_time(known.saved_at), size, str(known.world_size), state]

    def answer(self) -> json_answers.ListedCheckpoint:
        from fsdpkit.cli import json_answers
        from fsdpkit.runs.checkpoints import step_of

        known = self.description
        return json_answers.ListedCheckpoint(
            path=str(self.path),
            task=self.task,
            step=known.step if known else step_of(self.path),
            saved_at=known.saved_at if known else None,
            bytes=known.total_bytes if known else None,
            ranks=known.world_size if known else None,
            problem=self.problem,
            resumes=self.resumes,
            measured=known.measured if known else {},
            best=self.best is not None,
        )


def _listed(place: CheckpointPlace) -> list[_Listed]:
    from fsdpkit.runs.checkpoints import best_of

    listed: list[_Listed] = []
    best = best_of(place.checkpoints)
    decided = place.directory is None  # which one a resume takes, or that it takes none
    for path in reversed(place.checkpoints):
        description, problem, stops = _glance(path)
        resumes = not decided and problem is None
        by = f"{best[1].metric} {best[2]:.6g}" if best and best[0] == path else None
        name = place.name(path)
        listed.append(_Listed(name, path, place.task, description, problem, resumes, by))
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
        problem = _without(path, str(error).rstrip("."))
        return description, problem, isinstance(error, ConfigError)
    return description, wrong_size(path, description.files), False


def _tell_drafts(place: CheckpointPlace) -> None:
    if place.directory is None:
        return
    if drafts := sorted(path.name for path in place.directory.glob(".step-*")):
        more = f" and {len(drafts) - 1} more" if len(drafts) > 1 else ""
        click.echo(
            f"fsdpkit: {drafts[0]}{more}: being written, or left by a process that was killed; the "
            "next start removes it",
            err=True,
        )


def _problems_of(name: str, path: Path) -> list[str]:
    """What is wrong with a checkpoint, by every byte; a bar if a person looks at standard error."""
    from fsdpkit.runs.checkpoints import problems_of

    with _bar(name, path) as report:
        return [_without(path, problem) for problem in problems_of(path, report)]


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


def _ways_to_load(target: Path, typed: Path, with_optimizer: bool) -> list[str]:
    """How to read an export, as lines to copy."""
    where = str(typed)
    if target.is_file():
        load = f"torch.load({where!r}, weights_only=True)"
        if not with_optimizer:
            return [load]
        return [
            f"saved = {load}",
            'model.load_state_dict(saved["model"])',
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(model, optimizer,",
            '    saved["optimizer"], options=StateDictOptions(full_state_dict=True))',
        ]
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = json.loads((target / "config.json").read_text("utf-8"))
    lines = []
    if config.get("model_type") == "t5":
        command = f"python examples/T5-fsdp/generate.py --weights {shlex.quote(where)}"
        lines.append(f'{command} "some text"')
    if architectures := config.get("architectures"):
        lines.append(f"transformers.{architectures[0]}.from_pretrained({where!r})")
    first = min(target.glob("*.safetensors"))
    return lines or [f"safetensors.torch.load_file({str(typed / first.name)!r})"]


def _without(path: Path, text: str) -> str:
    """`text` with the names of files in the checkpoint `path` alone: 80 columns are few."""
    return text.replace(f"{path}{os.sep}", "")


def _local_time(text: str) -> str:
    try:
        saved = datetime.fromisoformat(text)
    except ValueError:
        return text
    return saved.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _bytes_of(path: Path) -> int:
    from fsdpkit.runs.checkpoints import describe

    return describe(path).total_bytes


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"
