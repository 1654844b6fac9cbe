"""`fsdpkit cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import complete_run, json_option, runs_option

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState


@click.command("cancel")
@click.argument("run", shell_complete=complete_run)
@runs_option
@click.option("--save", is_flag=True, help="Save a checkpoint first.")
@click.option("--wait", is_flag=True, help="Wait for the end.")
@json_option
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
            _print_json(opened, (), state, had_ended=True)
        else:
            click.echo(f"{opened.id} has ended already: {state.describe()}")
        return 0
    asked = opened.cancel(save=save)
    if not as_json:
        _tell(opened, asked)
    ended = opened.wait() if wait else None
    if as_json:
        _print_json(opened, asked, ended, had_ended=False)
    elif ended is not None:
        click.echo(f"{opened.id}: {ended.describe()}")
    return 0


def _tell(run: Run, asked: Sequence[str]) -> None:
    if asked:
        click.echo(
            f"asked {run.id} (job {', '.join(asked)}) to save a checkpoint and to stop\n"
            f"  to end it without saving: fsdpkit cancel {run.id}"
        )
    else:
        click.echo(f"asked to end {run.id} (job {run.job_id})")


def _print_json(run: Run, asked: Sequence[str], state: JobState | None, *, had_ended: bool) -> None:
    from fsdpkit.cli.json_answers import Cancelled
    from fsdpkit.cli.json_output import print_answer

    print_answer(
        Cancelled(
            run=run.id,
            job_id=run.job_id,
            had_ended=had_ended,
            saving=list(asked),
            state=None if state is None else state.describe(),
        )
    )
