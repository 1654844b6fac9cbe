"""`fsdpkit cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, runs_option

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run


@answer("fsdpkit.cancel/1")
def _cancelled(
    run: str, job_id: str | None, had_ended: bool, saving: Sequence[str], state: str | None
) -> None:
    """A run that was asked to end.

    had_ended: it had before; nothing was asked. saving: jobs that were asked to save a checkpoint
    and to stop; the others are ended at once. state: in words, if it has ended.
    """


@click.command("cancel")
@click.argument("run", shell_complete=complete_run)
@runs_option
@click.option("--save", is_flag=True, help="Save a checkpoint first.")
@click.option("--wait", is_flag=True, help="Wait for the end.")
@json_option(_cancelled)
def command(run: str, runs: str | None, save: bool, wait: bool, as_json: bool) -> int:
    """End RUN: all its array tasks, and jobs chained behind it.

    \b
      fsdpkit cancel fsdp-t5-20261121-101500-3f2a
      fsdpkit cancel 3f2a --save --wait

    With --save the trainer saves a checkpoint and stops, and the job does not come back.
    """
    from fsdpkit.scheduling.run import Run

    opened = Run.open(run, runs=runs)
    state = opened.state()
    if state is not None and state.over:
        if as_json:
            return _cancelled(opened.id, opened.job_id, True, (), state.describe())
        click.echo(f"{opened.id} has ended already: {state.describe()}")
        return 0
    asked = opened.cancel(save=save)
    if not as_json:
        _tell(opened, asked)
    ended = opened.wait().describe() if wait else None
    if as_json:
        return _cancelled(opened.id, opened.job_id, False, asked, ended)
    if ended is not None:
        click.echo(f"{opened.id}: {ended}")
    return 0


def _tell(run: Run, asked: Sequence[str]) -> None:
    if asked:
        click.echo(
            f"asked {run.id} (job {', '.join(asked)}) to save a checkpoint and to stop\n"
            f"  to end it without saving: fsdpkit cancel {run.id}"
        )
    else:
        click.echo(f"asked to end {run.id} (job {run.job_id})")
