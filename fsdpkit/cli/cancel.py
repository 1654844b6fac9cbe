"""`fsdpkit cancel`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete_run, runs_option


@click.command("cancel")
@click.argument("run", shell_complete=complete_run)
@runs_option
def command(run: str, runs: str | None) -> int:
    """End RUN and all its array tasks, without a last checkpoint.

    \b
      fsdpkit cancel fsdp-t5-20261121-101500-3f2a
    """
    from fsdpkit.scheduling.run import Run

    opened = Run.open(run, runs=runs)
    state = opened.state()
    if state is not None and state.phase == "ended":
        click.echo(f"{opened.id} has ended already: {state.describe()}")
        return 0
    opened.cancel()
    click.echo(f"asked to end {opened.id} (job {opened.job_id})")
    return 0
