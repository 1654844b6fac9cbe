"""`fsdpkit watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.live import Frame, can_draw, show
from fsdpkit.cli.options import going_on, on_run

if TYPE_CHECKING:
    from fsdpkit.reporting.status.looking import Watcher
    from fsdpkit.reporting.status.status_record import Phase, Printed
    from fsdpkit.reporting.status.watching import RunEvent, View
    from fsdpkit.runs.printed_words import PrintedText
    from fsdpkit.scheduling.run import Run


@answer("fsdpkit.watch/1", is_last=False)
def _change(
    run: str,
    job_id: str | None,
    time_s: float,
    state: str,
    step: int | None,
    steps: int | None,
    words: PrintedText,
    printed: Printed | None,
) -> None:
    """Something new in a run that is watched; each is an object of its own.

    state: the run's by now, as Slurm calls it, with what belongs to it. step: steps that are done
    by now, by what was logged, of `steps` in all. words: what is new, for a person. printed: what
    the output of rank 0 says by now, in the script's own words and as read from them.
    """


@answer("fsdpkit.watch-end/1")
def _ended(
    run: str,
    job_id: str | None,
    state: str,
    exit_status: int,
    why: PrintedText,
    phase: Phase,
) -> None:
    """The end of a run that was watched: the last object.

    exit_status: the run's own, and that of `watch`. why: in a sentence; `fsdpkit diagnose` has
    more. phase: as `status` says it.
    """


@click.command("watch")
@on_run()
@click.option("--task", type=click.IntRange(0), help="Array task (default: the first).")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between updates; the scheduler is polled less and less often.",
)
@json_option(_change, _ended, help="Print JSON: one object per change, the end last.")
def command(run: Run, task: int | None, every: float, as_json: bool) -> int:
    """Watch RUN (its id or a part, path, job number; default: your newest) until it ends, then
    say why.

    \b
      fsdpkit watch fsdp-t5-20261121-101500-3f2a
      fsdpkit watch fsdp-t5-20261121-101500-3f2a | tee watched.txt

    Ctrl-C stops watching, not the run. Without a terminal each change is printed as a line. Exit
    status: the job's own, as with --wait; 75 if it stopped on request with its work saved, 70 if
    it is unknown whether it did any work.
    """
    from fsdpkit.reporting.status.frame import summary
    from fsdpkit.reporting.status.looking import Watcher, diagnosis_of

    task = run.record.tasks_of(task)[0]
    watcher = Watcher(run, task)
    try:
        with going_on(run.id):
            if can_draw() and not as_json:
                show(_frames(watcher, every))
                view = watcher.look()
            else:
                view = _printed(watcher, every, _print_json if as_json else _print_line)
    finally:
        watcher.close()
    why = diagnosis_of(run, task)
    if as_json:
        status = view.exit_status or 0
        _ended(view.run, view.job_id, view.state, status, why, view.phase)
    else:
        click.echo("\n".join(summary(view, why)))
    return view.exit_status or 0


def _pause_s(view: View, every_s: float) -> float:
    """Short until the scheduler has answered for the first time."""
    from fsdpkit.reporting.status.watching import ASKING

    return min(every_s, 0.5) if view.state == ASKING else every_s


def _printed(watcher: Watcher, every_s: float, tell: Callable[[View, RunEvent], None]) -> View:
    """A line a change, for a pipe, a program, a file or a terminal that cannot draw."""
    from fsdpkit.reporting.status.watching import changes

    before: View | None = None
    while True:
        view = watcher.look()
        for one in changes(before, view, time.time()):
            tell(view, one)
        if view.over:
            return view
        before = view
        time.sleep(_pause_s(view, every_s))


def _print_line(_: View, one: RunEvent) -> None:
    from fsdpkit.reporting.status.frame import line_of

    click.echo(line_of(one))


def _print_json(view: View, one: RunEvent) -> None:
    at, of = view.progress.step, view.progress.steps
    _change(view.run, view.job_id, one.time_s, view.state, at, of, one.words, view.printed)


def _frames(watcher: Watcher, every_s: float) -> Iterator[Frame]:
    """Until the run is over."""
    from fsdpkit.reporting.status.frame import frame

    while not (view := watcher.look()).over:
        yield partial(frame, view), _pause_s(view, every_s)
