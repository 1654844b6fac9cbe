"""`fsdpkit logs`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete_run, runs_option


@click.command("logs")
@click.argument("run", shell_complete=complete_run)
@runs_option
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Global rank.")
@click.option("--task", type=click.IntRange(0), help="Array task (default: the first).")
@click.option("--follow", is_flag=True, help="Go on printing until the run ends.")
def command(run: str, runs: str | None, rank: int, task: int | None, follow: bool) -> int:
    """Print a rank's output of RUN's newest attempt: standard output, then standard error.

    \b
      fsdpkit logs fsdp-t5-20261121-101500-3f2a --follow
      fsdpkit logs fsdp-t5-20261121-101500-3f2a --rank 5
    """
    from fsdpkit.errors import NotFoundError
    from fsdpkit.scheduling.run import Run

    opened = Run.open(run, runs=runs)
    record = opened.record
    if rank >= record.nodes * record.ranks_per_node:
        raise NotFoundError(
            f"{opened.id} has ranks 0 to {record.nodes * record.ranks_per_node - 1}"
        )
    if record.array and task is None:
        task = record.array[0]
    if follow:
        for line in opened.follow(rank, array_task=task):
            click.echo(line, nl=False)
    else:
        path = opened.rank_log(rank, array_task=task)
        if path.exists():
            click.echo(path.read_text(errors="replace"), nl=False)
    error_path = opened.rank_log(rank, array_task=task, stream="err")
    if error_path.exists():
        click.echo(error_path.read_text(errors="replace"), nl=False, err=True)
    if not opened.rank_log(rank, array_task=task).exists():
        for log in opened.batch_logs():
            click.echo(log.read_text(errors="replace"), nl=False)
        raise NotFoundError(f"rank {rank} of {opened.id} never started; above is the start-up log")
    return 0
