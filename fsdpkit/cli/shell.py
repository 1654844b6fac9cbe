"""`fsdpkit shell`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import on_run

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run


class _WithCommand(click.Command):
    """What stands after -- is the command, also where no run is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        left = super().parse_args(ctx, args[:at])
        ctx.params["words"] += tuple(args[at + 1 :])
        return left


@click.command("shell", cls=_WithCommand)
@on_run(copied=False)
@click.argument("words", metavar="[-- COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@click.option("--node", help="A node of the job, by name or number (default: the first).")
@click.option("--task", type=click.IntRange(0), help="Array task, where several run.")
def command(run: Run, words: tuple[str, ...], node: str | None, task: int | None) -> int:
    """Open a shell on a node of RUN while it runs (its id or a part of it, path, job number;
    default: your newest), or run a command there.

    \b
      fsdpkit shell fsdp-t5-20261121-101500-3f2a
      fsdpkit shell 3f2a --node 1 -- nvidia-smi
      fsdpkit shell -- hostname

    The modules, environment and variables of the job's script are active. The shell reads no
    start-up files, which might replace them; it takes nothing from the ranks, and ends with the
    job. FSDPKIT_VISIT=1 is set and the run's own directories are not, so nothing in it writes
    into the run.

    Exit status: that of the shell or command; 2 if the run has ended, has not begun, or is
    another user's; 66 for an unknown node; 69 if its agent is gone.
    """
    from fsdpkit.errors import SchedulerError, UsageError
    from fsdpkit.scheduling.shell import visit_of
    from fsdpkit.scheduling.visiting import running

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not words and not terminal:
        raise UsageError("a shell needs a terminal; without one, give a command: … -- COMMAND")
    visited = running(run, task)
    where = visited.node(node)
    visit = visit_of(visited, where, words, os.environ, terminal=terminal)
    if not words:
        click.echo(
            f"fsdpkit: on {where.name}, in job {visited.job_id}, with its environment; "
            "exit leaves the run as it is",
            err=True,
        )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (signal.SIGHUP, signal.SIGPIPE):  # who called may have ignored them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(visit.argv[0], visit.argv, visit.environ)
    except OSError as error:
        raise SchedulerError(f"{visit.argv[0]} cannot be run: {error.strerror}") from error
