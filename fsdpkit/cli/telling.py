"""What becomes of a run, said on standard error while somebody waits for it: `--wait`, `--follow`.

Changes of state are lines of their own. On a terminal one more, which the next output takes the
place of, says how it stands: a queue or a long start is not taken for a command that hangs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click
import msgspec

from fsdpkit.cli.logs import print_lines
from fsdpkit.cli.terminal import passing
from fsdpkit.reporting.logs.following import follow
from fsdpkit.reporting.logs.lines import Batch, LineFilter
from fsdpkit.reporting.status.frame import line_of
from fsdpkit.reporting.status.looking import Watcher
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.watching import ASKING, View, changes, printed_line, progress_line
from fsdpkit.reporting.words import duration
from fsdpkit.scheduling.run import Run

_LOOK_S = 1.0
_SILENT_S = 5.0


def tell_until_over(run: Run, first_attempt: int | None) -> None:
    """Until the run has ended; with rank 0's output from that attempt on, of an array that of the
    first task. Raises SchedulerError, StorageError."""
    task = run.record.array[0] if run.record.array else None
    if first_attempt is not None:
        telling = _Telling(run, task)
        choice = LineFilter(
            first_attempt=first_attempt, streams=frozenset({"out"}), array_task=task
        )
        output = telling.beside(follow(run, choice, ended=telling.over))
        print_lines(output, lambda source: "", live=True)
    elif task is None:
        telling = _Telling(run, task)
        while not telling.over():
            time.sleep(_LOOK_S)


class _Telling:
    """Looks at a run, and says what is new."""

    def __init__(self, run: Run, array_task: int | None = None) -> None:
        self._watcher = Watcher(run, array_task)
        self._before: View | None = None
        self._began = self._said = time.monotonic()
        self._stands = False
        """Whether the terminal's newest line is the one that says how it stands."""

    def over(self) -> bool:
        """One look; whether the run is over. Raises SchedulerError, StorageError."""
        # Steps and lines are what the ranks print, not what this says beside it.
        seen = self._watcher.look()
        view = msgspec.structs.replace(seen, progress=TrainingProgress(), printed=None)
        new = [] if view.over else changes(self._before, view, time.time())
        if new or view.over:
            self._make_room()
        for one in new:
            click.echo(f"fsdpkit: {line_of(one)}", err=True)
        self._before = view
        silent_s = time.monotonic() - self._said
        if view.over:
            self._watcher.close()
        elif silent_s > _SILENT_S and sys.stderr.isatty():
            waited = duration(time.monotonic() - self._began)
            passing(f"{waited}: {_still(seen)}")
            self._stands = True
        return view.over

    def beside(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same, printed where the line stands that says how it stands."""
        for batch in batches:
            self._make_room()
            yield batch

    def _make_room(self) -> None:
        self._said = time.monotonic()
        if self._stands:
            passing("")
            self._stands = False


def _still(view: View) -> str:
    """What there is to say of a run of which nothing is new."""
    if view.state == ASKING:
        return "the scheduler has not answered yet"
    if view.printed is not None and view.progress.step is None:
        return f"{view.state}, {printed_line(view.printed)}"
    begun = view.attempt is not None
    words = progress_line(view.progress) if begun else view.why or "its script has not begun"
    return f"{view.state}, {words}{f', {view.starts}' if view.starts else ''}"
