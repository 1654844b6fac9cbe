"""`fsdpkit resume`."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from fsdpkit.cli.json_output import json_option
from fsdpkit.cli.options import (
    AFTERWARDS,
    HOW,
    GroupedCommand,
    complete_run,
    going_on,
    grouped,
    here_or_on,
    say_what_is_not_read,
    waiting_options,
    wanted,
)
from fsdpkit.cli.submitting import (
    ending,
    outcome,
    print_script,
    rendered,
    report,
    say_what_is_left_out,
    say_where,
    submitted,
)
from fsdpkit.cli.trusting import consent, trust_option


def _tasks(_: Any, __: Any, spec: str | None) -> list[int] | None:
    if spec is None:
        return None
    from fsdpkit.config.units import parse_array
    from fsdpkit.errors import UsageError

    try:
        return parse_array(spec)[0]
    except UsageError as error:
        raise UsageError(str(error).replace("--array", "--tasks", 1)) from error


class _Resume(GroupedCommand):
    """Says how a run gets other arguments, where some are given as to `submit`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args[1:]:
            given = json.dumps(args[args.index("--") + 1 :], ensure_ascii=False)
            told = "A run keeps its script's arguments; to replace them all"
            raise click.UsageError(f"{told}: --set {shlex.quote(f'args={given}')}", ctx)
        return super().parse_args(ctx, args)


@click.command("resume", cls=_Resume)
@click.argument("run", shell_complete=complete_run)
@wanted("sets")
@wanted("nodes", "gpus", "time", "partition", "account", "spare", partition="Partition.")
@wanted("runs")
@grouped(
    HOW, "--chained", is_flag=True, help="For an active RUN: start if it ends short of its goal."
)
@grouped(HOW, "--tasks", metavar="SPEC", callback=_tasks, help="Only these array tasks: 0-3,7.")
@trust_option
@here_or_on
@grouped(HOW, "--dry-run", is_flag=True, help="Print only the script; submit nothing.")
@waiting_options
@json_option(submitted, rendered, group=AFTERWARDS)
def command(
    run: str,
    runs: str | None,
    trust: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
    here: bool,
    on: str | None,
    **asked: Any,
) -> int:
    """Continue an ended RUN from its newest checkpoint, in the same run directory.

    \b
      fsdpkit resume fsdp-t5-20261121-101500-3f2a
      fsdpkit resume 3f2a --nodes 4 --time 12:00:00
      fsdpkit resume 3f2a --chained

    Options not given stay as they were. Without any, a job of RUN that is held is released. A
    chained job does not start if the one before it ended for a reason that would recur, such as the
    same crash at the same step.
    """
    from fsdpkit.config.trust import items_of
    from fsdpkit.rendering.script import render
    from fsdpkit.scheduling.compiled_templates import compiled_templates
    from fsdpkit.scheduling.resuming import ResumeRequest, plan_resume, release_held, submit_resume
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.submission import leaked_variables

    def end(run: Run, first_attempt: int = 0) -> int:
        report(run, as_json)
        if wait or follow or at_once:
            with ending(run) if at_once else going_on(run.id):
                return outcome(run, follow=follow, first_attempt=first_attempt)
        return 0

    say_what_is_not_read()
    at_once = here or on is not None
    if here and on is not None:
        raise click.UsageError("--here is this shell's allocation, --on a hold: choose one.")
    opened = Run.open(run, runs=runs)
    request = ResumeRequest(here=here, on=on, **asked)
    if request == ResumeRequest() and not dry_run and (held := release_held(opened)):
        click.echo(f"fsdpkit: job {', '.join(held)} was held, and is released", err=True)
        return end(opened)
    plan = plan_resume(opened, request)
    say_where(plan)
    agreed = consent(trust, submits=not dry_run)
    agreed.to(items_of(plan.job, plan.site, plan.template))
    if dry_run:
        print_script(render(plan, opened.dir, compiled_templates()), plan, as_json)
        return 0
    if not at_once:
        say_what_is_left_out(leaked_variables())
    return end(submit_resume(opened, plan, agreed), 0 if plan.chained else plan.first_attempt)
