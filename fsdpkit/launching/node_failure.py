"""Which of a node's failures came first, and where the batch shell finds it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdpkit.errors import STOPPED_EARLY, FsdpkitError
from fsdpkit.launching.policy import WAITING
from fsdpkit.runs.layout import AttemptPaths, raised_beside
from fsdpkit.runs.log_ends import end_of
from fsdpkit.runs.raised import RaisedRecord, read_raised

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    from fsdpkit.failures.ends import ProcessEnd

HUNG = 124
"""Exit status for ranks that made no progress, as timeout(1) has it."""
_MONITOR_NS = 100_000_000  # torchrun checks its ranks every tenth of a second
_LAST_BYTES = 64 << 10
"""How much of a rank's standard error its agent reads."""


class TrainingEnded(FsdpkitError):
    """The training ended with a status other than 0; the job ends with the same one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


@dataclass(frozen=True)
class NodeFailure:
    """One failure on this node: `time_ns` decides which of a run's failures came first."""

    status: int
    message: str
    time_ns: int
    rank: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> NodeFailure:
        """What ended the agent's own work just now, rather than a rank."""
        own = isinstance(error, FsdpkitError)
        words = str(error) if own else f"{type(error).__name__}: {error}"
        return cls(getattr(error, "exit_code", 1), words, time.time_ns())


def hang_failure(found: str, blamed: tuple[int, str] | None) -> NodeFailure:
    """A hang as a failure, of the rank to blame if one stands out (`Pulse.blame`)."""
    if blamed is None:
        return NodeFailure(HUNG, f"{found}, {WAITING}", time.time_ns())
    rank, why = blamed
    if not found.startswith(f"rank {rank} ") and why.startswith("it "):
        why = f"rank {rank} {why.removeprefix('it ')}"
    return NodeFailure(HUNG, f"{found}; {why}", time.time_ns(), rank)


def first_failure(error: ChildFailedError, attempt: AttemptPaths, launch: int) -> NodeFailure:
    """The failure that explains the others among this node's ranks; of several, the first.

    torchelastic keeps whole seconds; the rank's own record and the error file's time are finer. A
    rank that ended without either did so at most one look before now.
    """
    from fsdpkit.failures.ends import explain, told  # 130 regular expressions: only on failure
    from fsdpkit.failures.patterns import Level

    now_ns = time.time_ns()
    found = []
    for rank, failure in error.failures.items():
        end = _end_of_rank(failure, attempt, rank, launch)
        shown = explain(end)
        level = shown.shown.level if shown else Level.LOST_PEER
        found.append((-level, _ended_ns(failure, end.raised, now_ns), rank, end))
    _, time_ns, rank, end = min(found, key=lambda one: one[:3])
    message = told(end)
    if end.status == STOPPED_EARLY:
        message = "stopped early as asked, after saving a checkpoint"
    return NodeFailure(end.status or 1, message, time_ns, rank)


def _end_of_rank(
    failure: ProcessFailure, attempt: AttemptPaths, rank: int, launch: int
) -> ProcessEnd:
    from fsdpkit.failures.ends import ProcessEnd

    text = end_of(attempt.rank_file(rank, "err", launch), _LAST_BYTES)
    code = failure.exitcode
    own = attempt.rank_file(rank, "raised.json", launch)
    return ProcessEnd(
        status=128 - code if code < 0 else code,
        record=_told_by_rank(failure) or "",
        # The disk may have been too full for a copy.
        raised=read_raised(raised_beside(failure.error_file)) or read_raised(own),
        err=text.text if text else "",
    )


def _ended_ns(failure: ProcessFailure, raised: RaisedRecord | None, now_ns: int) -> int:
    if raised is not None and raised.time_ns:
        return raised.time_ns
    try:
        return os.stat(failure.error_file).st_mtime_ns
    except OSError:
        return now_ns - _MONITOR_NS


def _told_by_rank(failure: ProcessFailure) -> str | None:
    """The exception in the rank's error file; None if it wrote none (torch then says <NONE>)."""
    told = failure.error_file_data.get("message")
    text = told.get("message") if isinstance(told, dict) else None
    return str(text).removesuffix(": ").strip() if text else None  # of one without words


def record_failure(
    failure: NodeFailure, attempt: AttemptPaths, node: int, name: str
) -> TrainingEnded:
    """Write the failure where the batch shell looks for the first one; the exception to raise."""
    who = name if failure.rank is None else f"rank {failure.rank} on {name}"
    line = f"{who}: {failure.message}"
    rank = "" if failure.rank is None else f"-rank-{failure.rank}"
    path = attempt.failures / f"{failure.time_ns:020}-node-{node}{rank}"
    try:
        path.write_text(f"{failure.status} {line}\n", encoding="utf-8")
    except OSError as error:
        line += f" (and {path} cannot be written: {error.strerror})"
    return TrainingEnded(line, failure.status)
