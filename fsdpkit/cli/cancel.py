"""`fsdpkit cancel`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete_run, runs_option


@click.command("cancel")
@click.argument("run", shell_complete=complete_run)
@runs_option
@click.option("--save", is_flag=True, help="Let what runs save a checkpoint first.")
@click.option("--wait", is_flag=True, help="Wait for the end.")
def command(run: str, runs: str | None, save: bool, wait: bool) -> int:
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
        click.echo(f"{opened.id} has ended already: {state.describe()}")
        return 0
    asked = opened.cancel(save=save)
    if asked:
        click.echo(
            f"asked {opened.id} (job {', '.join(asked)}) to save a checkpoint and to stop\n"
            f"  to end it without: fsdpkit cancel {opened.id}"
        )
    else:
        click.echo(f"asked to end {opened.id} (job {opened.job_id})")
    if wait:
        state = opened.wait()
        click.echo(f"{opened.id}: {state.describe()}")
    return 0
