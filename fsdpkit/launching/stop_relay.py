"""A request to stop, passed on to a node's ranks; and their end in time, if they do not answer it.

A script learns of it in one of two ways: it asks (`fsdpkit.stop_requested()`), or it has a handler
of its own for SIGUSR1 or SIGTERM. One that does neither would train until Slurm kills the whole
job, batch shell included, and nobody would be left to requeue it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fsdpkit.launching.stacks import RankProcess, catches
from fsdpkit.runs.heartbeat import HeartbeatDir

ENDED_IN_TIME = 143
"""Exit status (128 + SIGTERM) for ranks that were ended because the job's time is up."""
_TO_REQUEUE_S = 20.0
"""Between the ranks' end and the job's: agents leave, the batch shell decides, calls scontrol."""
_HARDLY_ANY_S = 10.0
"""With so little time left a script with a handler of its own is already saving."""


class StopRelay:
    """Passes the request on, records whether a rank looks for it, and knows when time is up."""

    def __init__(
        self, directory: HeartbeatDir, record: Callable[..., Any], signals: Collection[int] = ()
    ) -> None:
        """signals: that this agent has received; Slurm sends them to all processes of a step."""
        self._dir, self._record, self._signals = directory, record, signals
        self._ranks: Sequence[RankProcess] = ()
        self._warned: list[RankProcess] = []
        self._looked: bool | None = None
        self._handled = False
        self._left_s = 0.0
        self._deadline_s: float | None = None

    def started(self, ranks: Sequence[RankProcess]) -> None:
        """These ranks run now."""
        self._ranks, self._warned = ranks, []

    def pass_on(self, left_s: float = 0.0) -> None:
        """Tell the ranks; again with the seconds that are left, once these are known."""
        if self._looked is None:
            if signal.SIGTERM in self._signals:
                self._dir.terminated.touch()
            self._dir.stop.touch()
            self._warned = [rank for rank in self._ranks if _warn(rank.pid)]
            self._tell()
        if left_s:
            self._left_s = left_s
            self._deadline_s = time.monotonic() + left_s - min(_TO_REQUEUE_S, left_s / 2)

    def look(self) -> None:
        """Whether a rank has looked by now, or has no handler; to be called periodically."""
        if self._looked is False:
            self._tell()

    @property
    def left_by_handler(self) -> bool:
        """Whether a warned script has, or as yet may have, a handler of its own to leave by."""
        return any(not self._dir.unheard(rank.local_rank).exists() for rank in self._warned)

    def overdue(self) -> str | None:
        """A sentence once the job's time is up for ranks that do not answer the request."""
        if self._deadline_s is None or self._looked or time.monotonic() < self._deadline_s:
            return None
        if self._left_s < _HARDLY_ANY_S and self.left_by_handler:
            return None
        return (
            "the script did not answer the warning before the end, so its ranks were ended in time "
            "for the job to be queued again; they lose what they have not saved"
        )

    def _tell(self) -> None:
        found = self._dir.looks.exists(), self.left_by_handler
        if found != (self._looked, self._handled):
            self._looked, self._handled = found
            self._record(event="stop-passed-on", looked=self._looked, handler=self._handled)


def _warn(pid: int) -> bool:
    """Send the process the warning that it has a handler for; False if it has none. Python's ranks
    have one, which passes SIGUSR1 on to the script's own for SIGTERM (at_start/sitecustomize)."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        if catches(pid, number):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                return True
    return False
