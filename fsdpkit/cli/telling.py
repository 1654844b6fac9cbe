"""What becomes of a run, said on standard error while somebody waits for it: `--wait`, `--follow`.

Changes of state are lines of their own. On a terminal one more, which the next output takes the
place of, says how it stands: a queue or a long start is not taken for a command that hangs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import click
import msgspec

from fsdpkit.cli.terminal import at_work
from fsdpkit.reporting.logs.following import follow
from fsdpkit.reporting.logs.lines import Batch, LineFilter, Tail
from fsdpkit.reporting.status.frame import line_of
from fsdpkit.reporting.status.looking import Watcher
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.watching import (
    ASKING,
    View,
    changes,
    printed_line,
    progress_line,
    view_of,
)
from fsdpkit.runs.history import history_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState

_LOOK_S = 1.0


def tell_until_over(run: Run) -> None:
    """Until the run has ended. Raises SchedulerError, StorageError."""
    telling = _Telling(run)
    with at_work(telling.how_it_stands):
        while not telling.over():
            time.sleep(_LOOK_S)


def follow_told(
    run: Run, choice: LineFilter, *, tail: Tail = None, changes: bool = True
) -> Iterator[Batch]:
    """The lines of a run until it has ended, and beside them how it stands. Raises as `follow`.

    changes: whether its changes of state become lines."""
    telling = _Telling(run, choice.array_task, changes)
    with at_work(telling.how_it_stands):
        yield from follow(run, choice, tail=tail, ended=telling.over)


class _Telling:
    """Looks at a run, and says what is new."""

    def __init__(self, run: Run, array_task: int | None = None, changes: bool = True) -> None:
        self._watcher, self._changes = Watcher(run, array_task), changes
        self._before = self._seen = View(run="", state=ASKING)

    def over(self) -> bool:
        """One look; whether the run is over. Raises SchedulerError, StorageError."""
        # Steps and lines are what the ranks print, not what this says beside it.
        self._seen = self._watcher.look()
        view = msgspec.structs.replace(self._seen, progress=TrainingProgress(), printed=None)
        if view.over:
            self._watcher.close()
        elif self._changes:
            for one in changes(self._before, view, time.time()):
                click.echo(f"fsdpkit: {line_of(one)}", err=True)
        self._before = view
        return view.over

    def how_it_stands(self) -> str:
        return _how_it_stands(self._seen)


@contextlib.contextmanager
def telling_how_it_stands(run: Run) -> Iterator[Callable[[JobState], None]]:
    """While a run is waited for whose states are heard, each of which is given to this."""
    newest: JobState | None = None

    def hear(state: JobState) -> None:
        nonlocal newest
        newest = state

    def words() -> str:
        history = history_of(run.paths, run.record)
        return _how_it_stands(view_of(run.id, newest, history, size=run.record.nodes))

    with at_work(words):
        yield hear


def _how_it_stands(view: View) -> str:
    """What there is to say of a run of which nothing is new."""
    if view.state == ASKING:
        return "the scheduler has not answered yet"
    if view.printed is not None and view.progress.step is None:
        return f"{view.state}, {printed_line(view.printed)}"
    words = view.start or view.why or "its script has not begun"
    if view.progress.step is not None:
        words = progress_line(view.progress)
    return f"{view.state}, {words}{f', {view.starts}' if view.starts else ''}"
