"""The lines of a run as they are written, across restarts, requeues and resumes, until it ends.

Polls, because NFS does not notify about another node's writes: it checks the sizes of all files,
and opens only those that have grown. Sizes that a client may answer from its cache are fetched from
the server from time to time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from fsdpkit.reporting.logs.lines import (
    Batch,
    LineFilter,
    LineReader,
    LogSource,
    Tail,
    sources_of,
    start_of,
)
from fsdpkit.runs.record import load
from fsdpkit.scheduling.run import Run

_LOOK_S = 0.5
"""Between two looks while lines come."""
_QUIET_S = 2.0
"""Between two looks at the most."""
_OPENED = 64
"""Quiet files opened a look, in turn: an NFS client may say for a minute that a file is as it was,
but asks when the file is opened."""
_LATE_S = 60.0
"""How long a launch's files are looked at when the next launch has begun."""


def follow(
    run: Run,
    choice: LineFilter,
    *,
    ended: Callable[[], bool],
    tail: Tail = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Batch]:
    """Lines in the order in which they are found, each once; returns when the run has ended.

    ended: asked before each look whether this is the last. tail: how much of files that are there
    already. Raises StorageError, OSError, and what `ended` raises.
    """
    logs = _Logs(run, choice)
    logs.find(tail)
    pause_s = _LOOK_S
    while True:
        began = time.monotonic()
        last = ended() or logs.superseded
        came = False
        logs.find()
        for batch in logs.read(everything=last):
            came = True
            yield batch
        if last:
            return
        # With thousands of files or a slow file system, polling takes at most a tenth of the time
        # while nothing arrives.
        longer_s = max(pause_s * 1.25, 9 * (time.monotonic() - began))
        pause_s = _LOOK_S if came else min(longer_s, _QUIET_S)
        if not logs.behind:
            sleep(pause_s)


class _Logs:
    """The files that are followed, how far each was read, and which are finished."""

    def __init__(self, run: Run, choice: LineFilter) -> None:
        self._run, self._choice = run, choice
        self._readers: dict[LogSource, LineReader] = {}
        self._done: set[LogSource] = set()
        self._newest = (-1, -1)
        self._leave_at: float | None = None
        self._turns: Iterator[LogSource] = iter(())
        self.behind = False
        """Whether the last look left something that could have been read."""

    @property
    def superseded(self) -> bool:
        """Whether an attempt began that is later than those asked for."""
        last = self._choice.last_attempt
        attempts = self._run.paths.task(self._choice.array_task).attempts()
        return last is not None and bool(attempts) and attempts[-1] > last

    def find(self, tail: Tail = "all") -> None:
        """Take up files that have appeared."""
        record = load(self._run.dir, copied=True) if self._choice.batch else self._run.record
        new = [
            source
            for source in sources_of(self._run.paths, record, self._choice)
            if source not in self._readers and source not in self._done
        ]
        for source in new:
            self._readers[source] = LineReader(source.path, start_of(source.path, tail))
        if new:
            self._readers = dict(sorted(self._readers.items(), key=lambda item: item[0].place))
            self._turns = cycle(list(self._readers))

    def read(self, *, everything: bool) -> Iterator[Batch]:
        """What is new since the last look. everything: also an incomplete last line."""
        yield from self._finish_earlier_launches()
        self.behind = False
        turn = set(islice(self._turns, _OPENED))
        for source, reader in self._readers.items():
            if everything or reader.more or source in turn or _size(source.path) != reader.position:
                yield from _lines(source, reader, everything)
                self.behind |= reader.more

    def _finish_earlier_launches(self) -> Iterator[Batch]:
        """When ranks have been restarted, first print the end of the previous launch."""
        newest = max(
            ((s.attempt, s.launch) for s in self._readers if not s.is_batch), default=self._newest
        )
        earlier = [s for s in self._readers if not s.is_batch and (s.attempt, s.launch) < newest]
        if newest != self._newest:
            self._newest = newest
            self._leave_at = time.monotonic() + _LATE_S
            for source in earlier:
                yield from _lines(source, self._readers[source], everything=True)
        elif self._leave_at is not None and time.monotonic() > self._leave_at:
            self._leave_at = None
            for source in earlier:
                yield from _lines(source, self._readers.pop(source), everything=True)
                self._done.add(source)
            self._choice = replace(self._choice, first_attempt=max(0, self._newest[0]))
            self._turns = cycle(list(self._readers))


def _lines(source: LogSource, reader: LineReader, everything: bool) -> Iterator[Batch]:
    while True:
        lines = reader.read()
        if everything and not reader.more:
            lines += reader.rest()
        if lines:
            yield source, lines
        if not everything or not reader.more:
            return


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
