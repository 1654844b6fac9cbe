"""`fsdpkit submit --keep-on-failure`: nodes that stay when a run fails, to try again on at once.

What is queued is a hold of the nodes that the job asks for, and the run is one on it. So what
`fsdpkit hold` promises holds here, and there is no second way to keep nodes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click
import msgspec

from fsdpkit.cli import hold
from fsdpkit.cli.options import fsdpkit_as_typed, going_on
from fsdpkit.cli.submitting import ending, outcome, print_script, report
from fsdpkit.config.loading import dotted
from fsdpkit.errors import FsdpkitError, UsageError

if TYPE_CHECKING:
    from fsdpkit.config.job import JobSpec
    from fsdpkit.config.trust import Consent
    from fsdpkit.rendering.script import Plan
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.submission import SubmitRequest

_AT_ONCE = "retry.on_crash=stop"
"""Who waits to correct a script waits for no second start of it."""
_TABLES = ("resources", "environment", "slurm")
"""Of a job, what its nodes are asked for with and found with."""


def submit_and_keep(
    request: SubmitRequest,
    plan: Plan,
    keep_s: int,
    agreed: Consent,
    *,
    dry_run: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """The exit status of the last try."""
    from fsdpkit.scheduling import submission
    from fsdpkit.scheduling.holding import HOLD_JOB, hold_args

    if plan.job.spec.resources.spare or request.array or request.after:
        raise UsageError(
            "--keep-on-failure is for one run on its nodes: no --array, --after, --spare"
        )
    asked = submission.SubmitRequest(
        HOLD_JOB,
        cluster=request.cluster,
        runs=request.runs,
        sets=[*_as_sets(plan.job.spec)],
        args=hold_args(keep_s, request.cluster),
    )
    held_plan, _ = submission.plan(asked, agreed)
    if dry_run:
        print_script(submission.script_of(held_plan, request.runs), held_plan, as_json)
        click.echo("fsdpkit: this job holds the nodes, and the run is one on it", err=True)
        return 0
    held = submission.submit_plan(held_plan, request.runs, agreed)
    click.echo(f"fsdpkit: job {held.job_id} gets the nodes, as {held.id}", err=True)
    with going_on(held.id):
        state = hold.ready(held)
    if state.over:
        click.echo(f"fsdpkit: {held.id}: {state.describe()}", err=True)
        return hold.FAILED
    sets = [_AT_ONCE, *request.sets]
    on_it = replace(request, on=held.id, account=None, partition=None, time=None, sets=sets)
    on_it = replace(on_it, sbatch_options=())
    return _tries(on_it, held, keep_s, agreed, follow=follow, as_json=as_json)


def _tries(
    request: SubmitRequest, held: Run, keep_s: int, agreed: Consent, *, follow: bool, as_json: bool
) -> int:
    from fsdpkit.scheduling import submission
    from fsdpkit.scheduling.here.held import free_on

    while True:
        try:
            left_s = free_on(held.id, request.runs, held.record.kind).left_s
            sets = [*request.sets, f"resources.time={max(1, left_s // 60)}"]
            plan, _ = submission.plan(replace(request, sets=sets), agreed)
            for warning in plan.warnings:
                click.echo(f"fsdpkit: {warning}", err=True)
            run = submission.submit_plan(plan, request.runs, agreed)
            report(run, as_json)
            with ending(run):
                status = outcome(run, follow=follow)
        except KeyboardInterrupt:
            status = 130
        except FsdpkitError as error:  # such as a script that does not compile any more
            click.echo(f"fsdpkit: {error}", err=True)
            status = error.exit_code
        if status == 0:
            held.cancel(save=True)
            return 0
        if (state := held.state()) is not None and state.over:
            click.echo(f"fsdpkit: {held.id}: {state.describe()}", err=True)
            return status
        if not _once_more(held, keep_s):
            return status


def _once_more(held: Run, keep_s: int) -> bool:
    """Whether the person wants to try again; else the nodes go back, at once or when idle."""
    typed = fsdpkit_as_typed()
    click.echo(f"fsdpkit: {held.id} has the nodes for {keep_s} s more", err=True)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        click.echo(f"  {typed} submit SCRIPT --on {held.id}\n  {typed} release {held.id}", err=True)
        return False
    try:
        click.prompt(
            "Correct it and press Enter to try again; Ctrl-C gives the nodes back",
            default="",
            show_default=False,
            prompt_suffix=" ",
            err=True,
        )
    except (click.Abort, KeyboardInterrupt):
        held.cancel(save=True)
        click.echo(f"\nfsdpkit: {held.id} gives its nodes back", err=True)
        return False
    return True


def _as_sets(spec: JobSpec) -> Iterator[str]:
    """What the job asks for, as `--set`."""
    for key, value in dotted({one: msgspec.to_builtins(getattr(spec, one)) for one in _TABLES}):
        if value not in (None, [], {}, False):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{key}={text}"
