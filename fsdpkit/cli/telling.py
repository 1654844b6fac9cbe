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


def tell_until_over(run: Run, first_attempt: int = 0) -> None:
    """Until the run has ended, from that attempt on. Raises SchedulerError, StorageError."""
    telling = _Telling(run, first_attempt=first_attempt)
    with at_work(telling.how_it_stands):
        while not telling.over():
            time.sleep(_LOOK_S)


def follow_told(
    run: Run, choice: LineFilter, *, tail: Tail = None, changes: bool = True
) -> Iterator[Batch]:
    """The lines of a run until it has ended, and beside them how it stands. Raises as `follow`.

    changes: whether its changes of state become lines."""
    telling = _Telling(run, choice.array_task, changes, choice.first_attempt)
    with at_work(telling.how_it_stands):
        yield from follow(run, choice, tail=tail, ended=telling.over)


@contextlib.contextmanager
def telling_states(run: Run) -> Iterator[Callable[[JobState], None]]:
    """While a run is waited for whose states are heard, each of which is given to this."""
    said = _Said()

    def hear(state: JobState) -> None:
        if state.phase != "ended":
            record, history = run.record, history_of(run.paths, run.record)
            task = f"{len(record.array)} tasks" if record.array else None
            said.show(
                view_of(run.id, state, history, job_id=run.job_id, size=record.nodes, task=task)
            )

    with at_work(said.how_it_stands):
        yield hear


class _Said:
    """What was said of a run so far."""

    def __init__(self, changes: bool = True, first_attempt: int = 0) -> None:
        self._changes, self._resumed = changes, first_attempt > 0
        self._before = self._seen = View(run="", state=ASKING)

    def show(self, seen: View) -> None:
        """Say what is new."""
        # Steps and lines are what the ranks print, not what this says beside it.
        view = msgspec.structs.replace(seen, progress=TrainingProgress(), printed=None)
        if self._resumed:  # what was before is no news
            self._before = msgspec.structs.replace(self._before, events=view.events)
            self._resumed = False
        if self._changes and not view.over:
            for one in changes(self._before, view, time.time()):
                click.echo(f"fsdpkit: {line_of(one)}", err=True)
        self._before, self._seen = view, seen

    def how_it_stands(self) -> str:
        """Of a run of which nothing is new."""
        view = self._seen
        if view.state == ASKING:
            return "the scheduler has not answered yet"
        if view.printed is not None and view.progress.step is None:
            return f"{view.state}, {printed_line(view.printed)}"
        words = view.start or view.why or view.task or "its script has not begun"
        if view.progress.step is not None:
            words = progress_line(view.progress)
        return f"{view.state}, {words}{f', {view.starts}' if view.starts else ''}"


class _Telling(_Said):
    """Looks at a run itself."""

    def __init__(
        self,
        run: Run,
        array_task: int | None = None,
        changes: bool = True,
        first_attempt: int = 0,
    ) -> None:
        super().__init__(changes, first_attempt)
        self._watcher = Watcher(run, array_task)

    def over(self) -> bool:
        """One look; whether the run is over. Raises SchedulerError, StorageError."""
        self.show(view := self._watcher.look())
        if view.over:
            self._watcher.close()
        return view.over
