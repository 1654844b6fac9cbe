"""`fsdpkit top`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.live import Frame, can_draw, show
from fsdpkit.cli.options import going_on, on_run

if TYPE_CHECKING:
    from fsdpkit.reporting.usage import NodeUsage, SampleReader
    from fsdpkit.runs.history import Attempt, History
    from fsdpkit.scheduling.run import Run

_PLAIN_ROWS = 1 << 20
"""A pipe has no height."""


@answer("fsdpkit.top/1")
def _usage(
    run: str, job_id: str | None, attempt: int, over: bool, nodes: Sequence[NodeUsage]
) -> None:
    """What each node of a run uses; silent and idle nodes first."""


@click.command("top")
@on_run()
@click.option("--task", type=click.IntRange(0), help="Array task (default: the first).")
@click.option("--once", is_flag=True, help="Print one table and exit; the default in a pipe.")
@click.option(
    "--every",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    show_default=True,
    help="Seconds between updates.",
)
@json_option(_usage, help="Print JSON once.")
def command(run: Run, task: int | None, once: bool, every: float, as_json: bool) -> int:
    """Show what each node of RUN uses: GPU, memory, CPU, network (its id or a part of it, path, job
    number; default: your newest).

    \b
      fsdpkit top fsdp-t5-20261121-101500-3f2a
      fsdpkit top 3f2a --once

    It reads the samples that each node writes, by default every 10 seconds, later less often.
    Silent and idle nodes come first. GPU memory is that of the fullest GPU; network traffic
    excludes RDMA. Ctrl-C stops top, not the run; top ends with the attempt.

    Exit status: 2 if the run has not begun.
    """
    from fsdpkit.reporting.usage import SampleReader, frame, usage_in, worst_first

    task = run.record.tasks_of(task)[0]
    reader, attempt = SampleReader(), _newest(run, task)
    if as_json:
        nodes = worst_first(usage_in(attempt, reader, time.time()))
        return _usage(run.id, attempt.job_id, attempt.number, _over(attempt), nodes)
    if once or not can_draw():
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        nodes = usage_in(attempt, reader, time.time())
        click.echo("\n".join(frame(_title(run, attempt), nodes, width, _PLAIN_ROWS)))
    else:
        with going_on(run.id):
            show(_frames(run, task, reader, every))
        click.echo(f"{run.id}: attempt {_newest(run, task).number} has ended")
    return 0


def _frames(run: Run, task: int | None, reader: SampleReader, every_s: float) -> Iterator[Frame]:
    """Until the newest attempt is over."""
    from rich.text import Text

    from fsdpkit.reporting.usage import frame, usage_in

    def draw(width: int, height: int) -> list[Text]:
        lines = frame(_title(run, attempt), nodes, width, height)
        return [
            Text(line, "bold" if n in (0, 2) else "", no_wrap=True) for n, line in enumerate(lines)
        ]

    while not _over(attempt := _newest(run, task)):
        nodes = usage_in(attempt, reader, time.time())
        yield draw, every_s


def _newest(run: Run, task: int | None) -> Attempt:
    """The newest attempt. Raises UsageError before the first."""
    from fsdpkit.errors import UsageError
    from fsdpkit.runs.history import history_of

    history: History = history_of(run.paths, run.record, task)
    if not history.attempts:
        raise UsageError(f"{run.id} has not begun, so no node has been measured")
    return history.attempts[-1]


def _over(attempt: Attempt) -> bool:
    nodes = attempt.nodes
    return attempt.ending is not None or (
        bool(nodes) and all(node.ended_s is not None for node in nodes)
    )


def _title(run: Run, attempt: Attempt) -> str:
    over = ", ended" if _over(attempt) else ""
    job = f"job {attempt.job_id}, " if attempt.job_id else ""
    return f"{run.id}: {job}attempt {attempt.number}{over}"
