"""`fsdpkit hold`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    HOW,
    GroupedCommand,
    for_seconds,
    fsdpkit_as_typed,
    going_on,
    grouped,
    say_what_is_not_read,
    wanted,
)
from fsdpkit.cli.submitting import ending, failure_lines, outcome, print_script, rendered, say_where
from fsdpkit.cli.trusting import consent, trust_option

if TYPE_CHECKING:
    from pathlib import Path

    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState

FAILED = 70


@answer("fsdpkit.hold/1")
def _held(run: str, job_id: str | None, dir: Path, state: str) -> None:
    """Nodes that are held, or that were asked for."""


@click.command("hold", cls=GroupedCommand)
@wanted("nodes", "gpus", "time", "cluster", "partition", "account", "sets")
@grouped(
    HOW,
    "--idle",
    "idle_s",
    metavar="TIME",
    help="End when no run was on it for so long: 90s, 15m (default), 2h.",
    callback=for_seconds,
)
@wanted("runs")
@trust_option
@grouped(
    HOW,
    "--here",
    is_flag=True,
    help="Hold the allocation that this shell is in, as long as this command runs.",
)
@grouped(HOW, "--dry-run", is_flag=True, help="Print only the script; submit nothing.")
@grouped(HOW, "--no-wait", is_flag=True, help="Return once it is queued.")
@json_option(_held, rendered)
def command(
    idle_s: int | None,
    trust: tuple[str, ...],
    dry_run: bool,
    no_wait: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Get nodes once, and start one run after another on them in seconds.

    \b
      fsdpkit hold --nodes 2 --gpus 4 --time 2:00:00
      fsdpkit submit train.py --on HOLD -- --lr 1e-4
      fsdpkit release HOLD

    Waits until the nodes are there, and prints the hold's name. It ends at its time limit, by
    fsdpkit release, and when no run was on it for --idle.
    """
    from fsdpkit.config.placement import for_trying_out
    from fsdpkit.scheduling import submission
    from fsdpkit.scheduling.holding import HOLD_JOB, hold_args

    say_what_is_not_read()
    own = hold_args(idle_s, asked["cluster"])
    request = submission.SubmitRequest(HOLD_JOB, args=own, **asked)
    agreed = consent(trust, submits=not dry_run)
    plan, why = submission.plan(request, agreed)
    say_where(plan, why)
    if (
        names := []
        if plan.allocation
        else for_trying_out(plan.job.spec.resources, plan.site.profile)
    ):
        told = " or ".join(f"--partition {shlex.quote(name)}" for name in names)
        click.echo(f"fsdpkit: for trying things out there is {told}", err=True)
    if dry_run:
        print_script(submission.script_of(plan, request.runs), plan, as_json)
        return 0
    run = submission.submit_plan(plan, request.runs, agreed)
    if not as_json:
        click.echo(run.id)
        click.echo(f"job {run.job_id}, in {run.dir}")
    with ending(run) if request.here else going_on(run.id):
        state = None if no_wait else ready(run)
    words = state.describe() if state else "PENDING"
    if as_json:
        _held(run.id, run.job_id, run.dir, words)
    elif state is not None and state.phase == "running":
        typed = fsdpkit_as_typed()
        click.echo(f"  {typed} submit SCRIPT --on {run.id}\n  {typed} release {run.id}")
    if state is None or state.phase == "running":
        return _stay(run) if request.here else 0
    click.echo(f"fsdpkit: {run.id}: {words}", err=True)
    for line in failure_lines(run):
        click.echo(f"fsdpkit: {line}", err=True)
    return FAILED


def _stay(run: Run) -> int:
    """Until the hold ends whose process this shell's is."""
    with ending(run):
        return outcome(run)


def ready(run: Run) -> JobState:
    """Wait until the nodes of a hold are there, or it is over, and say how it stands meanwhile."""
    from fsdpkit.cli.telling import telling_states
    from fsdpkit.scheduling.holding import until_ready

    with telling_states(run) as hear:
        return until_ready(run, hear)
