"""`fsdpkit resume`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete_run, going_on, runs_option, say_what_is_not_read
from fsdpkit.cli.trusting import require_trust, trust_option


@click.command("resume")
@click.argument("run", shell_complete=complete_run)
@click.option("--nodes", type=click.IntRange(1, 10_000), help="Nodes.")
@click.option("--gpus", type=click.IntRange(1, 64), help="GPUs (ranks) per node.")
@click.option("--time", help="Time limit: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.")
@click.option("--partition", help="Partition.")
@click.option("--account", help="Account (project) to charge.")
@click.option("--spare", type=click.IntRange(0, 1000), help="Nodes more, to replace a lost one.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the job.")
@click.option(
    "--chained", is_flag=True, help="While RUN goes on: start if it ends short of its goal."
)
@runs_option
@trust_option
@click.option("--dry-run", is_flag=True, help="Print the script, and only it; submit nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the job's own status.")
@click.option("--follow", is_flag=True, help="Print rank 0's output until the end; implies --wait.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    run: str,
    nodes: int | None,
    gpus: int | None,
    time: str | None,
    partition: str | None,
    account: str | None,
    spare: int | None,
    sets: tuple[str, ...],
    chained: bool,
    runs: str | None,
    trust: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Continue RUN, which has ended, from its newest checkpoint, in the same run directory.

    \b
      fsdpkit resume fsdp-t5-20261121-101500-3f2a
      fsdpkit resume 3f2a --nodes 4 --time 12:00:00
      fsdpkit resume 3f2a --chained

    What is not given stays as it was. A chained job does not start where the one before ended for
    something that would only come back, such as the same crash at the same step.
    """
    from fsdpkit.cli.submit import (
        outcome,
        print_output,
        print_script,
        report,
        say_what_is_left_out,
        say_where,
    )
    from fsdpkit.rendering.script import render
    from fsdpkit.scheduling.resuming import Changes, plan_resume, submit_resume
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.submission import leaked_variables

    say_what_is_not_read()
    opened = Run.open(run, runs=runs)
    changes = Changes(nodes, gpus, time, partition, account, spare, sets, chained)
    plan = plan_resume(opened, changes)
    say_where(plan)
    require_trust(plan, trust, submits=not dry_run)
    if dry_run:
        print_script(render(plan, opened.dir), as_json)
        return 0
    say_what_is_left_out(leaked_variables())
    resumed = submit_resume(opened, plan)
    report(resumed, as_json)
    if wait or follow:
        with going_on(resumed.id):
            if follow:
                print_output(resumed, 0 if plan.chained else plan.first_attempt)
            return outcome(resumed)
    return 0
