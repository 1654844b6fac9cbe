"""`fsdpkit release`."""

from __future__ import annotations

import click

from fsdpkit.cli.cancel import dry_run_option, say_what_would_end, would_end
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_hold, runs_option


@answer("fsdpkit.release/1")
def _released(run: str, job_id: str | None, had_ended: bool, state: str | None) -> None:
    """A hold that was asked to end. had_ended: it had before. state: in words, if it has ended."""


@click.command("release")
@click.argument("hold", shell_complete=complete_hold)
@runs_option
@dry_run_option
@json_option(_released, would_end)
def command(hold: str, runs: str | None, dry_run: bool, as_json: bool) -> int:
    """Give back the nodes of HOLD; runs that are on it end.

    \b
      fsdpkit release hold-20261127-101500-3f2a
    """
    from fsdpkit.errors import UsageError
    from fsdpkit.scheduling.run import Run

    run = Run.open(hold, runs=runs)
    if not run.record.holds:
        raise UsageError(f"{run.id} is no hold; to end a run: fsdpkit cancel {run.id}")
    if dry_run:
        return say_what_would_end(run, as_json)
    before = run.state()
    had_ended = before is not None and before.over
    if not had_ended:
        run.cancel(save=True)
    if as_json:
        _released(run.id, run.job_id, had_ended, before.describe() if before else None)
    elif had_ended:
        click.echo(f"{run.id} has ended already: {before.describe() if before else ''}")
    else:
        click.echo(f"{run.id} gives its nodes back")
    return 0
