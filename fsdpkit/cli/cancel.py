"""`fsdpkit cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class JobToEnd:
    """A job, or an array task, that is not over. start_s: when it started, or is expected to."""

    job_id: str
    state: str
    start_s: float | None


@answer("fsdpkit.cancel-dry-run/1")
def would_end(run: str, jobs: Sequence[JobToEnd], runs_on_it: Sequence[str]) -> None:
    """`--dry-run` of cancel and release. runs_on_it: of a hold, runs that would end with it."""


dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would end.")


def say_what_would_end(run: Run, as_json: bool) -> int:
    """Of cancel and release."""
    from fsdpkit.reporting.status.held_runs import use_of_hold
    from fsdpkit.scheduling.asking import Asking

    left = {job_id: state for _, states in run.not_over() for job_id, state in states.items()}
    jobs = [
        JobToEnd(job_id, state.describe() if state else "unknown", state.start_s if state else None)
        for job_id, state in left.items()
    ]
    use = use_of_hold(run.paths, run.record, 0.0, Asking()).runs if run.record.holds else []
    on_it = [one.run for one in use if one.state in ("PENDING", "RUNNING")]
    if as_json:
        return would_end(run.id, jobs, on_it)
    for what in (*(f"job {one.job_id}: {one.state}" for one in jobs), *on_it):
        click.echo(f"would end {what}")
    if not jobs:
        click.echo(f"{run.id} has ended already")
    return 0


@click.command("cancel")
@click.argument("run", shell_complete=complete_run)
@runs_option
@click.option("--save", is_flag=True, help="Save a checkpoint first.")
@click.option("--wait", is_flag=True, help="Wait for the end.")
@dry_run_option
@json_option(_cancelled, would_end)
def command(
    run: str, runs: str | None, save: bool, wait: bool, dry_run: bool, as_json: bool
) -> int:
    """End RUN: all its array tasks, and jobs chained behind it.

    \b
      fsdpkit cancel fsdp-t5-20261121-101500-3f2a
      fsdpkit cancel 3f2a --save --wait

    With --save the trainer saves a checkpoint and stops, and the job does not come back; --wait
    gives up, with exit status 69, if the script does not check for that for five minutes.
    """
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.saving import wait_for_stop

    opened = Run.open(run, runs=runs)
    if dry_run:
        return say_what_would_end(opened, as_json)
    state = opened.state()
    if state is not None and state.over:
        if as_json:
            return _cancelled(opened.id, opened.job_id, True, (), state.describe())
        click.echo(f"{opened.id} has ended already: {state.describe()}")
        return 0
    asked = opened.cancel(save=save)
    if not as_json:
        _tell(opened, asked)
    ended = wait_for_stop(opened, asked).describe() if wait else None
    if as_json:
        return _cancelled(opened.id, opened.job_id, False, asked, ended)
    if ended is not None:
        click.echo(f"{opened.id}: {ended}")
    return 0


def _tell(run: Run, asked: Sequence[str]) -> None:
    if asked:
        click.echo(
            f"asked {run.id} (job {', '.join(asked)}) to save a checkpoint and to stop\n"
            "  a script that never asks whether to stop goes on; to end it without saving: "
            f"fsdpkit cancel {run.id}"
        )
    else:
        click.echo(f"asked to end {run.id} (job {run.job_id})")
