"""What broke in an attempt, as reported by the processes that broke: `fsdpkit logs --errors`.

Of a crash on 64 ranks one matters, and 63 report that they lost a peer. So failures are listed in
the order that launching.policy uses to choose the cause, follow-on errors are marked as such, and
identical ones are shown once. The evidence is that of `diagnosis`, which says why it broke.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fsdpkit.bounded import LINE_BYTES, QUOTED, TAIL_BYTES, read_end
from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.failures.ends import follows, in_words_of
from fsdpkit.failures.tracebacks import without_numbers
from fsdpkit.reporting.diagnosis.sources import Voice, voices_of
from fsdpkit.reporting.logs.lines import text
from fsdpkit.reporting.printable import one_line
from fsdpkit.runs.failures import Level
from fsdpkit.runs.history import Attempt
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.printed_words import PrintedText
from fsdpkit.runs.record import RunRecord

_TAIL = 20
"""Lines of a log that is shown for want of anything better."""
_NODE_LOGS = 3


class LoggedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, or several with the same words. `rank` null: of a node, or as the words say."""

    launch: int | None = None
    """Null: before the ranks were started."""
    who: str
    """`rank 3 on node2`; a node's name; empty where the words say it."""
    rank: int | None = None
    message: PrintedText
    time_s: float = 0.0
    """Unix time, by the clock of the run directory's file server."""
    lost_a_peer: bool = False
    """Whether it says no more than that."""
    follow_on: bool = False
    """It only lost a peer, and there is a failure that explains it."""
    same: tuple[str, ...] = ()
    """Others who reported the same."""
    details: tuple[PrintedText, ...] = ()
    """The end of the rank's standard error."""
    file: Path | None = None
    """Where the details are from."""


class LogErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the log of the batch shell, Slurm or a node."""

    file: Path
    lines: tuple[PrintedText, ...]


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What broke in one attempt, the first to fail first; false if nothing is on record."""

    attempt: int
    broken: tuple[LoggedFailure, ...]
    logs: tuple[LogErrors, ...]

    def __bool__(self) -> bool:
        return bool(self.broken or self.logs)


def errors_in(attempt: Attempt, run: RunPaths, record: RunRecord) -> FailedAttempt:
    """What the agents, the ranks and the batch shell recorded about a failed attempt."""
    jobs = [job for job in record.jobs if job.first_attempt <= attempt.number]
    ranks_per_node = max(jobs, key=lambda job: job.first_attempt, default=record).ranks_per_node
    broken = errors_of(attempt, run, ranks_per_node)
    alone = not broken and _ended_badly(attempt)
    logs = _log_errors(attempt, run, alone=alone) if broken or alone else []
    return FailedAttempt(attempt=attempt.number, broken=tuple(broken), logs=tuple(logs))


def _ended_badly(attempt: Attempt) -> bool:
    if attempt.ending is not None:
        return attempt.ending.cause != "done"
    if attempt.verdict is not None:
        return attempt.verdict.trouble is not None
    return not any(node.ready_s for node in attempt.nodes)


def errors_of(attempt: Attempt, run: RunPaths, ranks_per_node: int) -> list[LoggedFailure]:
    """The failures of an attempt, by launch, the first to fail first."""
    found: list[LoggedFailure] = []
    for place, launch in [(None, None), *enumerate(attempt.launches)]:
        until = replace(
            attempt,
            launches=() if place is None else attempt.launches[: place + 1],
            failures=tuple(f for f in attempt.failures if attempt.place_of(f) == place),
        )
        voices = voices_of(until, run, ranks_per_node, newest=False)
        if launch is None:  # then files of ranks are of a later launch
            voices = [voice for voice in voices if voice.kind == "agent"]
        broken = [_failure_of(voice) for voice in voices if voice.message or voice.status]
        if launch is not None and launch.trouble_s is not None:
            broken = _with_verdict(broken, launch.message, launch.trouble_s)
        number = None if launch is None else launch.number
        broken = [replace(one, launch=number) for one in broken]
        found += _ordered(broken, launch.message if launch else "")
    return found


_STOPPED = "stopped early, as asked"


def _failure_of(voice: Voice) -> LoggedFailure:
    told, words = voice.told, voice.message.text if voice.message else in_words_of(voice.status)
    node = (told.name if told else voice.node) or ""
    details, file = _details(voice)
    return LoggedFailure(
        who=node if voice.rank is None else f"rank {voice.rank} on {node}",
        message=_STOPPED if voice.status == STOPPED_EARLY else words.strip(),
        rank=voice.rank,
        time_s=voice.time_s or 0.0,
        lost_a_peer=told.level <= Level.WAITED if told and told.cause else follows(words),
        details=tuple(details),
        file=file,
    )


def _details(voice: Voice) -> tuple[Sequence[str], Path | None]:
    if (err := voice.log("err")) is None:
        return (), None
    lines = [line[:QUOTED] for line in err.text.splitlines() if line.strip()]
    return lines[-_TAIL:], err.file


def _with_verdict(broken: list[LoggedFailure], message: str, time_s: float) -> list[LoggedFailure]:
    """The head node's agent may know what no rank could say: a node fell silent."""
    if any(_is(one, message) for one in broken) or not message:
        return broken
    who, colon, words = message.partition(": ")
    words, who = (words, who) if colon else (message, "")
    return [LoggedFailure(who=who, message=words, time_s=time_s), *broken]


def _is(broken: LoggedFailure, message: str) -> bool:
    return message in (broken.message, f"{broken.who}: {broken.message}")


def _ordered(broken: list[LoggedFailure], verdict: str) -> list[LoggedFailure]:
    """The cause first, then by time; follow-on errors last. Identical ones are merged."""
    if any(one.message != _STOPPED for one in broken):
        broken = [one for one in broken if one.message != _STOPPED]
    own = any(not one.lost_a_peer for one in broken)
    broken.sort(key=lambda b: (not _is(b, verdict), b.lost_a_peer, b.time_s, b.rank or 0))
    groups: dict[str, list[LoggedFailure]] = {}
    for one in broken:
        groups.setdefault(without_numbers(one.message.partition("\n")[0]), []).append(one)
    found = []
    for first, *others in groups.values():
        merged = replace(first, same=tuple(other.who for other in others))
        if own and first.lost_a_peer:
            merged = replace(merged, follow_on=True, details=(), file=None)
        found.append(merged)
    return found


def first_words(failure: str | None, log: Path) -> list[str]:
    """The first failure, else the last lines of the batch shell's log; and where that is."""
    if not log.exists():
        return [f"first failure: {one_line(failure)}"] if failure else []
    said = [f"first failure: {one_line(failure)}"] if failure else _lines(log, LINE_BYTES)[-3:]
    return [*said, f"start-up log: {log}"]


# What the batch shell and the nodes said outside of ranks


_ERROR = re.compile(r"\berror:|^\S*fsdpkit: |oom[-_ ]kill", re.IGNORECASE)
_START = re.compile(r"^fsdpkit: \d+ nodes? .*, head ")
"""What the batch shell says when all is well."""


def _log_errors(attempt: Attempt, run: RunPaths, *, alone: bool) -> list[LogErrors]:
    """Errors in the logs of the batch shell, Slurm and the nodes, by file. A job's log holds all
    its attempts, so they may be of another one. alone: nothing else is known, so where no line
    looks like an error the end of the log is shown."""
    if attempt.job_id is None:
        return []
    found = []
    logs = [run.dir / f"slurm-{attempt.job_id}.log"]
    if alone:
        nodes = sorted(run.submitit.glob(f"{attempt.job_id}_*_log.err"))
        logs += [path for path in nodes if _size(path)][:_NODE_LOGS]
    for path in logs:
        lines = [line for line in _lines(path) if not _START.match(line)]
        bad = [line for line in lines if _ERROR.search(line)]
        shown = bad or (lines if alone else [])
        if shown:
            found.append(LogErrors(file=path, lines=tuple(shown[-_TAIL:])))
    return found


def _lines(path: Path, most_bytes: int = TAIL_BYTES) -> list[str]:
    with contextlib.suppress(OSError):
        lines = read_end(path, most_bytes).splitlines()
        return [text(line[: 4 * QUOTED])[:QUOTED] for line in lines if line.strip()]
    return []


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
