"""Which of a node's failures came first, and where the batch shell finds it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fsdpkit.errors import STOPPED_EARLY, FsdpkitError, NotMetError
from fsdpkit.launching.job_log import say
from fsdpkit.runs import log_ends
from fsdpkit.runs.failures import HUNG, FailureRecord, Level, bounded, in_a_line
from fsdpkit.runs.layout import AttemptPaths, error_file, raised_beside
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.raised import RaisedRecord, read_raised

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    from fsdpkit.failures.ends import ProcessEnd

_HUNG_STATUS = 124
"""Exit status for ranks that made no progress, as timeout(1) has it."""
_MOST_OF_A_NAME = 1000
_MONITOR_NS = 100_000_000  # torchrun checks its ranks every tenth of a second
_LAST_BYTES = 64 << 10
"""How much of a rank's standard error its agent reads."""


class TrainingEnded(FsdpkitError):
    """The training ended with a status other than 0; the job ends with the same one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


def own_failure(error: BaseException, rule: str = "", status: int | None = None) -> FailureRecord:
    """What ended the agent's own work just now, rather than a rank. status: what the job is to end
    with, if the error has none of its own."""
    cause, level = _cause_of(error)
    own = isinstance(error, FsdpkitError)
    words = str(error) if own else f"{type(error).__name__}: {error}"
    return FailureRecord(
        by="agent",
        rule=rule,
        status=getattr(error, "exit_code", status or 1),
        cause=cause,
        level=level,
        words=bounded(words),
        exception=type(error).__name__,
        time_ns=time.time_ns(),
    )


def _cause_of(error: BaseException) -> tuple[str, int]:
    if isinstance(error, FsdpkitError):
        return error.cause, Level.WAITED if isinstance(error, NotMetError) else Level.OWN
    from fsdpkit.failures.exceptions import shown  # many regular expressions: only on failure
    from fsdpkit.failures.tracebacks import PrintedException

    kind = type(error)
    found = shown(
        PrintedException(type=f"{kind.__module__}.{kind.__qualname__}", message=str(error))
    )
    return found.cause, found.level


def judged(rule: str, cause: str, status: int, words: str, **more: Any) -> FailureRecord:
    """What an agent has seen, of itself, of the head node or of a rank."""
    now_ns = time.time_ns()
    return FailureRecord(
        by="agent", rule=rule, cause=cause, status=status, words=words, time_ns=now_ns, **more
    )


def hang_failure(found: str, blamed: tuple[int, str] | None) -> FailureRecord:
    """A hang as a failure, of the rank to blame if one stands out (`RankHeartbeats.blame`)."""
    if blamed is None:
        words = f"{found}, waiting for other ranks"
        return judged(HUNG, "hang", _HUNG_STATUS, words, level=Level.WAITED)
    rank, why = blamed
    if not found.startswith(f"rank {rank} ") and why.startswith("it "):
        why = f"rank {rank} {why.removeprefix('it ')}"
    return judged(HUNG, "hang", _HUNG_STATUS, f"{found}; {why}", rank=rank)


def first_failure(
    error: ChildFailedError,
    attempt: AttemptPaths,
    launch: int,
    memory: Path,
    ranks: Iterable[int] = (),
    when: PrintedWhen | None = None,
) -> FailureRecord:
    """The failure that explains the others among this node's ranks; of several, the first.

    A rank that ended without a record of its own did so at most one look before now.

    memory: where ranks record their exceptions, for the disk may have been too full for a copy.
    ranks: all of this node, for one that takes long to end may have failed first. when: how much
    they had printed at which time, for what they got over did not end them.
    """
    from fsdpkit.failures.ends import explain, told  # many regular expressions: only on failure

    def end_of(rank: int, failure: ProcessFailure | None = None) -> ProcessEnd:
        raised = read_raised(raised_beside(error_file(memory, rank, launch)))
        text = log_ends.end_of(attempt.rank_file(rank, "err", launch), _LAST_BYTES)
        if text is not None and when is not None:
            text = when.of_late(rank, text)
        return _end_of_rank(failure, raised, text.text if text else "")

    now_ns = time.time_ns()
    ends = []
    for rank, failure in error.failures.items():
        end = end_of(rank, failure)
        seen_ns = end.raised.time_ns if end.raised else 0
        ends.append((seen_ns or now_ns - _MONITOR_NS, rank, end))
    first_ns = min(time_ns for time_ns, *_ in ends)
    others = {rank: end_of(rank) for rank in ranks if rank not in error.failures}
    ends += _still_ending(others, first_ns)
    found = []
    for time_ns, rank, end in ends:
        explained = explain(end)
        level = explained.shown.level if explained else Level.LOST_PEER
        found.append((-level, time_ns, rank, end, explained))
    _, time_ns, rank, end, explained = min(found, key=lambda one: one[:3])
    words, shown = told(end, explained), explained.shown if explained else None
    if end.status == STOPPED_EARLY:
        words = "stopped early as asked, after saving a checkpoint"
    raised = shown.raised if shown else None
    frame = raised.own_frame if raised else None
    return FailureRecord(
        by="rank",
        rank=rank,
        status=end.status or 1,
        cause=shown.cause if shown else "",
        level=shown.level if shown else Level.OWN,
        sure=shown.sure if shown else True,
        words=bounded(words),
        exception=raised.type[:_MOST_OF_A_NAME] if raised else "",
        place=f"{frame.file[-_MOST_OF_A_NAME:]}:{frame.line}" if frame else "",
        time_ns=time_ns,
    )


def with_kernels_word(failure: FailureRecord, oom_kills: int) -> FailureRecord:
    """The failure, explained by the kernel where only a signal is known that ended the rank.
    oom_kills: processes of the job that it killed for want of memory since the launch began."""
    if failure.level != Level.KILLED or oom_kills < 1:
        return failure
    return msgspec.structs.replace(
        failure,
        by="agent",
        cause="host-out-of-memory",
        level=Level.OWN,
        words=f"{failure.words}; the kernel killed {oom_kills} of the job's processes for want of "
        "memory",
    )


def _still_ending(
    ends: Mapping[int, ProcessEnd], before_ns: int
) -> Iterator[tuple[int, int, ProcessEnd]]:
    """When it failed, rank and end of those that recorded an exception before the first was seen to
    be gone; what they record later, they may raise because they are asked to end."""
    for rank, end in ends.items():
        if end.raised is not None and 0 < end.raised.time_ns < before_ns:
            yield end.raised.time_ns, rank, end


def _end_of_rank(
    failure: ProcessFailure | None, raised: RaisedRecord | None, err: str
) -> ProcessEnd:
    from fsdpkit.failures.ends import ProcessEnd

    if failure is None:
        return ProcessEnd(status=raised.status if raised else None, raised=raised, err=err)
    code = failure.exitcode
    status = 128 - code if code < 0 else code
    return ProcessEnd(status=status, raised=raised, err=err)


@contextlib.contextmanager
def keep_room(room: Path) -> Iterator[None]:
    """Let a file hold room for a record: what ends the ranks may be that the disk is full."""
    with contextlib.suppress(OSError):
        room.write_bytes(os.urandom(_ROOM_BYTES))  # which no file system makes smaller
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            room.unlink()


_ROOM_BYTES = 64 << 10


def record_failure(
    failure: FailureRecord, attempt: AttemptPaths, node: int, name: str
) -> TrainingEnded:
    """Write the failure where the batch shell looks for the first one, if need be into the room
    that was kept for it; the exception to raise. Else it goes into this node's log."""
    failure = msgspec.structs.replace(failure, name=name)
    rank = "" if failure.rank is None else f"-rank-{failure.rank}"
    path = attempt.failures / f"{failure.time_ns:020}-node-{node}{rank}"
    try:
        _write(path, in_a_line(failure), attempt.node_room(node))
    except OSError as error:
        say(f"{path} cannot be written: {error.strerror}", sys.stderr)
        say(in_a_line(failure), sys.stderr)
    return TrainingEnded(failure.message, failure.status)


def _write(path: Path, text: str, room: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        room.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
