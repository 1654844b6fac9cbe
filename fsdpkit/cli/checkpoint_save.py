"""`fsdpkit checkpoint save`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, runs_option

if TYPE_CHECKING:
    from fsdpkit.scheduling.saving import SaveRequest


@dataclass(frozen=True)
class Saving:
    """One job that was asked for a checkpoint. path: of the checkpoint; null without --wait."""

    job_id: str
    task: int | None
    path: Path | None


@answer("fsdpkit.checkpoint-save/1")
def _saving(run: str, jobs: Sequence[Saving]) -> None:
    """A run that was asked to save a checkpoint and to go on."""


@click.command("save")
@click.argument("run", shell_complete=complete_run)
@click.option("--task", type=click.IntRange(0), help="Array task (default: all that are running).")
@runs_option
@click.option("--wait", is_flag=True, help="Wait until the checkpoint is complete.")
@json_option(_saving)
def command(run: str, runs: str | None, task: int | None, wait: bool, as_json: bool) -> int:
    """Make RUN save a checkpoint after its current step, and continue.

    \b
      fsdpkit checkpoint save fsdp-t5-20261121-101500-3f2a
      fsdpkit checkpoint save 3f2a --wait

    Your own script takes part through attach() from fsdpkit.script: huggingface, lightning or
    accelerate.

    Exit status: 2 if the run has ended or not begun; 69 if its script opened no checkpoints, or
    with --wait if it ended first; 74 if the checkpoint could not be written.
    """
    from fsdpkit.scheduling.run import Run

    opened = Run.open(run, runs=runs)
    requests = opened.save_checkpoint(array_task=task)
    if as_json:
        jobs = [
            Saving(one.job_id, one.array_task, _saved(one) if wait else None) for one in requests
        ]
        return _saving(opened.id, jobs)
    names = ", ".join(request.job_id for request in requests)
    click.echo(f"asked {opened.id} (job {names}) to save a checkpoint and to go on")
    if not wait:
        if any(request.is_listed for request in requests):
            click.echo(f"  to see it: fsdpkit checkpoint ls {shlex.quote(str(opened.dir))}")
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
