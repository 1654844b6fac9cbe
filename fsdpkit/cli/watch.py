"""`fsdpkit watch`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import chosen, complete_run, going_on, runs_option

if TYPE_CHECKING:
    from fsdpkit.reporting.status.looking import Watcher
    from fsdpkit.reporting.status.watching import Happening, View


@click.command("watch")
@click.argument("run", required=False, shell_complete=complete_run)
@runs_option
@click.option("--task", type=click.IntRange(0), help="Array task (default: the first).")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between updates; the scheduler is polled less and less often.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one object per change, the end last."
)
def command(
    run: str | None, runs: str | None, task: int | None, every: float, as_json: bool
) -> int:
    """Watch RUN (its path, id, or a unique part of it; default: your newest) until it ends, then
    say why.

    \b
      fsdpkit watch fsdp-t5-20261121-101500-3f2a
      fsdpkit watch fsdp-t5-20261121-101500-3f2a | tee watched.txt

    Ctrl-C stops watching, not the run. Without a terminal each change is printed as a line. Exit
    status: the job's own, as with --wait; 75 if it stopped on request with its work saved, 70 if
    it is unknown whether it did any work.
    """
    from fsdpkit.cli.watch_frame import summary
    from fsdpkit.reporting.status.looking import Watcher, diagnosis_of
    from fsdpkit.scheduling.run import Run

    opened = Run.open(chosen(run, runs), runs=runs, copied=True)
    task = opened.record.tasks_of(task)[0]
    watcher = Watcher(opened, task)
    try:
        with going_on(opened.id):
            if can_draw() and not as_json:
                view = _drawn(watcher, every)
            else:
                view = _printed(watcher, every, _print_json if as_json else _print_line)
    finally:
        watcher.close()
    why = diagnosis_of(opened, task)
    if as_json:
        from fsdpkit.cli.json_output import print_answer
        from fsdpkit.cli.json_reports import WatchEnded

        status = view.exit_status or 0
        answer = WatchEnded(
            run=view.run, job_id=view.job_id, state=view.state, exit_status=status, why=why
        )
        print_answer(answer)
    else:
        click.echo("\n".join(summary(view, why)))
    return view.exit_status or 0


def can_draw() -> bool:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    terminal = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return sys.stdout.isatty() and terminal and encoding.startswith("utf")


def _pause_s(view: View, every_s: float) -> float:
    """Until the scheduler has said its first word, nobody waits for long."""
    from fsdpkit.reporting.status.watching import ASKING

    return min(every_s, 0.5) if view.state == ASKING else every_s


def _printed(watcher: Watcher, every_s: float, tell: Callable[[View, Happening], None]) -> View:
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


def _print_line(_: View, one: Happening) -> None:
    from fsdpkit.cli.watch_frame import line_of

    click.echo(line_of(one))


def _print_json(view: View, one: Happening) -> None:
    from fsdpkit.cli.json_output import print_item
    from fsdpkit.cli.json_reports import Change

    print_item(
        Change(
            run=view.run,
            job_id=view.job_id,
            time_s=one.time_s,
            state=view.state,
            step=view.progress.step,
            steps=view.progress.steps,
            words=one.words,
            printed=view.printed,
        )
    )


def _drawn(watcher: Watcher, every_s: float) -> View:
    """On the terminal's other screen, so that what was there before comes back in the end."""
    from rich.console import Group
    from rich.live import Live

    from fsdpkit.cli.terminal import console
    from fsdpkit.cli.watch_frame import frame

    screen = console()
    with until_resized() as wait, Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            view = watcher.look()
            if view.over:
                return view
            until_s = time.monotonic() + _pause_s(view, every_s)
            while (left_s := until_s - time.monotonic()) > 0:
                lines = frame(view, screen.size.width, screen.size.height, time.time())
                live.update(Group(*lines), refresh=True)
                wait(left_s)


@contextlib.contextmanager
def until_resized() -> Iterator[Callable[[float], None]]:
    """Waits so many seconds, or until the terminal's size has changed. A SIGTERM ends Python in
    order, so that the terminal is put right."""
    # The signal itself writes, at C's level: a handler in Python may have to wait until `select`
    # is over, if the signal comes between the interpreter's last look and the call.
    told, tell = os.pipe()
    for end in (told, tell):
        os.set_blocking(end, False)
    written_before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def wait(timeout_s: float) -> None:
        if select.select([told], [], [], timeout_s)[0]:
            os.read(told, 4096)

    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)),
    }
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(written_before)
        os.close(told)
        os.close(tell)
