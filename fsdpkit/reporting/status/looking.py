"""Looks at a running run repeatedly: what is new on disk, what the scheduler says.

A look happens every few seconds, so it must cost little: files that grow are read on from where the
last look ended, small files are read again only if one of them changed, and the scheduler is asked
in a separate thread, so that a stalled one delays nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from pathlib import Path

from fsdpkit.errors import FsdpkitError, NotFoundError, StorageError
from fsdpkit.reporting.logs.lines import LineReader, last_written, position_of_last
from fsdpkit.reporting.printable import printable
from fsdpkit.reporting.staged import stage_of
from fsdpkit.reporting.status.printed import pattern_of, points_in, printed_by, tails
from fsdpkit.reporting.status.progress import TrainingProgress, progress_of
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.status.watching import (
    Curves,
    View,
    ended_on_record,
    events_of,
    view_of,
)
from fsdpkit.reporting.timeline import TimelineSpan, timeline_of
from fsdpkit.reporting.usage import NodeUsage, SampleReader, usage_in
from fsdpkit.runs.history import history_of
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.reading import build_types, table_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.scheduling.asking import UNHEARD_S, Pace
from fsdpkit.scheduling.opened import lost
from fsdpkit.scheduling.outcome import settle_s
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import Standing, States, decisive, standings
from fsdpkit.scheduling.states import JobState

_MOST_NODES = 64
"""Whose samples are read."""
_MOST_LINES = 50


class Watcher:
    """Looks at one run, or at one task of an array, again and again."""

    def __init__(
        self, run: Run, array_task: int | None = None, *, ask_s: float | None = None
    ) -> None:
        self.run, self._task = run, array_task
        self._job = table_in(run.paths.job)
        self._scheduler = _Scheduler(run, Pace(ask_s))
        self._ending = run.newest_ending(array_task)
        self._curves, self._log = Curves(), _Log(run, array_task)
        self._metrics = LineReader(run.paths.task(array_task).metrics, newest=True)
        self._samples = SampleReader()
        self._marks: object = None
        self._heard = time.monotonic()
        self._losses: dict[tuple[float | None, int | None], float | None] = {}
        self._progress = TrainingProgress()
        self._history = history_of(run.paths, run.record, array_task)
        self._spans: list[TimelineSpan] = []

    def look(self) -> View:
        """What there is now. Raises what the scheduler's client raised, or StorageError."""
        ending = self.run.newest_ending(self._task)
        if ending != self._ending:
            self._ending = ending
            self._scheduler.ask_now()
        standing, asked = self._scheduler.newest()
        record = standing.record if standing else self.run.record
        states = standing.states if standing else {}
        job_id, state = self._mine(decisive(record, states) if standing else {})
        self._read_small_files(record, states, asked)
        grown = self._read_metrics()
        if grown:
            self._progress = progress_of(self._history, self._job)
        printed = printed_by(self._history, self._job, record.nodes * record.ranks_per_node)
        return view_of(
            self.run.id,
            state,
            self._history,
            job_id=job_id or record.job_id,
            task=None if self._task is None else self._task_in_words(record),
            standing=standing,
            size=record.nodes,
            progress=self._progress,
            curves=self._read_losses(printed) or self._curves.curves(),
            printed=printed,
            stage=stage_of(
                self._history,
                record.nodes,
                running=state is not None and state.phase == "running",
            ),
            memory_bytes=self._curves.memory_bytes,
            straggler=self._curves.straggler,
            used=self._read_samples(),
            events=tuple(events_of(self._spans)),
            lines=self._log.read(),
            over=self._is_over(state, standing),
        )

    def close(self) -> None:
        """No more questions."""
        self._scheduler.stop()

    def _mine(self, states: States) -> tuple[str | None, JobState | None]:
        for job_id, state in states.items():
            if self._task in (None, task_of(job_id)):
                return job_id, state
        return None, None

    def _task_in_words(self, record: RunRecord) -> str:
        return f"task {self._task} of {len(record.array_tasks or ())}"

    def _is_over(self, state: JobState | None, standing: Standing | None) -> bool:
        if state is not None or standing is None or not standing.answered:
            self._heard = time.monotonic()
        elif ended_on_record(self._history):
            return True
        elif time.monotonic() - self._heard > UNHEARD_S:
            raise lost(self.run, standing, self._task)
        if state is None or state.phase != "ended":
            return False
        return self._scheduler.unchanged_s() >= settle_s(state)

    def _read_small_files(self, record: RunRecord, states: States, asked: int) -> None:
        """The history, when the scheduler has said something or a file of it has changed."""
        attempts = self.run.paths.task(self._task).attempts()
        newest = self.run.paths.task(self._task).attempt(attempts[-1]) if attempts else None
        names = ("orders.jsonl", "verdict.json", "ending.json", "failures", "stage.json")
        marks = (asked, attempts, [_mark(newest.dir / name) for name in names] if newest else None)
        if marks == self._marks:
            return
        self._marks = marks
        self._history = history_of(self.run.paths, record, self._task)
        self._spans = timeline_of(record, self._history, states)
        self._progress = progress_of(self._history, self._job)

    def _read_metrics(self) -> bool:
        grown = False
        while True:
            lines = self._metrics.read()
            for line in lines:
                self._curves.add(line)
            grown |= bool(lines)
            if not self._metrics.more:
                return grown

    def _read_losses(self, printed: Printed | None) -> dict[str, tuple[float | None, ...]]:
        """Of a script that logs nothing: what its output has shown since this look began."""
        if printed is None or printed.loss is None or self._progress.step is not None:
            return {}
        ends, pattern = tails(self._history, printed.rank), pattern_of(self._job)
        for point in points_in(ends, pattern, time.time()):
            self._losses[point.epoch, point.step] = point.loss
        return {"loss": tuple(self._losses.values())}

    def _read_samples(self) -> tuple[NodeUsage, ...]:
        if not self._history.attempts:
            return ()
        found = usage_in(self._history.attempts[-1], self._samples, time.time(), _MOST_NODES)
        return tuple(node for node in found if node.time_s is not None)


class _Log:
    """The newest lines of rank 0, whichever start of it is the newest."""

    def __init__(self, run: Run, array_task: int | None) -> None:
        self._run, self._task = run, array_task
        self._reader: LineReader | None = None
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def read(self) -> tuple[str, ...]:
        path = self._path()
        with contextlib.suppress(OSError):
            if path is not None and (self._reader is None or self._reader.path != path):
                self._reader = LineReader(path, position_of_last(path, _MOST_LINES), newest=True)
                self._lines.clear()
            while self._reader is not None:
                for line in self._reader.read():
                    self._lines.extend(map(printable, last_written(line)))
                if not self._reader.more:
                    break
        return tuple(self._lines)

    def _path(self) -> Path | None:
        with contextlib.suppress(NotFoundError):
            path = self._run.rank_log(0, array_task=self._task)
            if path.exists():
                return path
        with contextlib.suppress(StorageError, NotFoundError):
            self._run = Run(
                self._run.dir, load(self._run.dir, copied=True)
            )  # it may have been resumed
        logs = self._run.batch_logs()
        if self._task is not None:
            logs = [log for log in logs if task_of(log.stem.removeprefix("slurm-")) == self._task]
        return next(reversed(logs), None)


class _Scheduler:
    """Asks how the run stands, in a thread, at a pace that begins anew when there is news."""

    def __init__(self, run: Run, pace: Pace) -> None:
        self._run, self._pace = run, pace
        self._lock, self._wake, self._stopped = threading.Lock(), threading.Event(), False
        self._standing: Standing | None = None
        self._asked, self._since, self._answered = 0, time.monotonic(), time.monotonic()
        self._error: Exception | None = None
        build_types()
        threading.Thread(target=self._ask, name="fsdpkit-states", daemon=True).start()

    def newest(self) -> tuple[Standing | None, int]:
        """The last answer, and how many there have been. Raises what asking raised."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._standing, self._asked

    def unchanged_s(self) -> float:
        """For how long the answer has been the same each time."""
        with self._lock:
            return self._answered - self._since

    def ask_now(self) -> None:
        """Ask now: something has happened about which the scheduler may know more."""
        self._pace.news()
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def _ask(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                record = self._run.record
                with contextlib.suppress(StorageError, NotFoundError):
                    record = load(self._run.dir, copied=True)  # somebody may have resumed it
                standing = standings([(self._run.paths, record)])[0]
                with self._lock:
                    self._answered = time.monotonic()
                    if self._standing is None or standing.states != self._standing.states:
                        self._since = self._answered
                    self._standing, self._asked = standing, self._asked + 1
            except Exception as error:
                with self._lock:
                    self._error = error
                return
            self._wake.wait(self._pace.pause_s())


def diagnosis_of(run: Run, array_task: int | None = None) -> str:
    """Why it ended as it did, in one sentence."""
    from fsdpkit.reporting.diagnosis.diagnose import diagnose
    from fsdpkit.reporting.diagnosis.evidence import MustRead, gather

    try:
        return diagnose(gather(Run.open(run.dir, copied=True), MustRead(array_task))).sentence
    except FsdpkitError as error:
        return f"it could not be diagnosed: {error}"


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
