"""What broke in an attempt, as reported by the processes that broke: `fsdpkit logs --errors`.

Of a crash on 64 ranks one matters, and 63 report that they lost a peer. So failures are listed in
the order that launching.policy uses to choose the cause, follow-on errors are marked as such, and
identical ones are shown once. Why it broke is for `diagnosis`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fsdpkit.bounded import QUOTED, read_end
from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.failures.ends import follows
from fsdpkit.reporting.logs.lines import LineReader, position_of_last, text
from fsdpkit.runs.failures import Level
from fsdpkit.runs.history import Attempt, Failure, Launch
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_json
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
    message: str
    time_s: float = 0.0
    """Unix time, by the head node's clock."""
    lost_a_peer: bool = False
    """Whether it says no more than that."""
    follow_on: bool = False
    """It only lost a peer, and there is a failure that explains it."""
    same: tuple[str, ...] = ()
    """Others who reported the same."""
    details: tuple[str, ...] = ()
    """The traceback, or the end of the rank's standard error."""
    file: Path | None = None
    """Where the details are from."""


class LogErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the log of the batch shell, Slurm or a node."""

    file: Path
    lines: tuple[str, ...]


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
    broken = errors_of(attempt, ranks_per_node)
    alone = not broken and _ended_badly(attempt)
    logs = _log_errors(attempt, run, alone=alone) if broken or alone else []
    return FailedAttempt(attempt=attempt.number, broken=tuple(broken), logs=tuple(logs))


def _ended_badly(attempt: Attempt) -> bool:
    if attempt.ending is not None:
        return attempt.ending.cause != "done"
    if attempt.verdict is not None:
        return attempt.verdict.trouble is not None
    return not any(node.ready_s for node in attempt.nodes)


def errors_of(attempt: Attempt, ranks_per_node: int) -> list[LoggedFailure]:
    """The failures of an attempt, by launch, the first to fail first."""
    found: list[LoggedFailure] = []
    failures = [_by_one_clock(attempt, failure) for failure in attempt.failures]
    for place, launch in _places(attempt):
        number = None if launch is None else launch.number
        broken = [_recorded(f) for f in failures if _place(attempt, f) == place]
        if launch is not None and place is not None:
            broken += _only_in_error_files(attempt, place, ranks_per_node, broken)
            if launch.trouble_s is not None:
                broken = _with_verdict(broken, launch.message, launch.trouble_s)
        broken = [replace(one, launch=number) for one in broken]
        found += _ordered(broken, launch.message if launch else "", attempt)
    return found


def _places(attempt: Attempt) -> list[tuple[int | None, Launch | None]]:
    return [(None, None), *enumerate(attempt.launches)]


def _recorded(failure: Failure) -> LoggedFailure:
    """As an agent wrote it into `failures/`."""
    told = failure.record
    who, words = (told.who, told.words) if told else ("", failure.message)
    lost_a_peer = follows(words) if told is None or not told.cause else told.level <= Level.WAITED
    if failure.status == STOPPED_EARLY:
        words = _STOPPED
    return LoggedFailure(
        who=who,
        message=words,
        rank=failure.rank,
        time_s=failure.time_s,
        lost_a_peer=lost_a_peer,
    )


def _by_one_clock(attempt: Attempt, failure: Failure) -> Failure:
    """With the time by the head node's clock, which dates launches."""
    offsets = {n.number: n.findings.get("clock_offset_s") for n in attempt.nodes}
    own, head = offsets.get(failure.node), offsets.get(0)
    if isinstance(own, int | float) and isinstance(head, int | float):
        return replace(failure, time_s=failure.time_s - own + head)
    return failure


_STOPPED = "stopped early, as asked"


def _place(attempt: Attempt, failure: Failure) -> int | None:
    """Which launch a failure belongs to, as a place in `attempt.launches`."""
    begun = [i for i, launch in enumerate(attempt.launches) if launch.began_s <= failure.time_s]
    if not begun and failure.rank is not None and attempt.launches:
        return 0  # a rank that fails was started, whatever its node's clock says
    return begun[-1] if begun else None


_ERROR_FILE = re.compile(r"rank-(\d{1,9})(?:\.restart-(\d{1,9}))?\.", re.ASCII)


def _only_in_error_files(
    attempt: Attempt, place: int, ranks_per_node: int, known: Sequence[LoggedFailure]
) -> Iterator[LoggedFailure]:
    """Of each node the agent keeps the first failure; other ranks left their error files."""
    launch = attempt.launches[place]
    ranks = {broken.rank for broken in known}
    files = attempt.dir.glob("rank-*.error.json")
    found = (match for file in files if (match := _ERROR_FILE.match(file.name)))
    left = {int(m[1]) for m in found if int(m[2] or 0) == launch.number} - ranks
    for rank in sorted(r for r in left if r < len(launch.nodes) * ranks_per_node):
        told = _told(attempt.paths.rank_file(rank, "error.json", launch.number))
        if told is not None:
            who = f"rank {rank} on {attempt.node_of_rank(rank, ranks_per_node, place)}"
            yield LoggedFailure(
                who=who,
                message=told.message,
                rank=rank,
                time_s=told.time_s,
                lost_a_peer=follows(told.message),
            )


def _with_verdict(broken: list[LoggedFailure], message: str, time_s: float) -> list[LoggedFailure]:
    """The head node's agent may know what no rank could say: a node fell silent."""
    if any(_is(one, message) for one in broken) or not message:
        return broken
    who, colon, words = message.partition(": ")
    words, who = (words, who) if colon else (message, "")
    return [LoggedFailure(who=who, message=words, time_s=time_s), *broken]


def _is(broken: LoggedFailure, message: str) -> bool:
    return message in (broken.message, f"{broken.who}: {broken.message}")


def _ordered(broken: list[LoggedFailure], verdict: str, attempt: Attempt) -> list[LoggedFailure]:
    """The cause first, then by time; follow-on errors last. Identical ones are merged."""
    if any(one.message != _STOPPED for one in broken):
        broken = [one for one in broken if one.message != _STOPPED]
    own = any(not one.lost_a_peer for one in broken)
    broken.sort(key=lambda b: (not _is(b, verdict), b.lost_a_peer, b.time_s, b.rank or 0))
    groups: dict[str, list[LoggedFailure]] = {}
    for one in broken:
        groups.setdefault(_alike(one.message), []).append(one)
    found = []
    for first, *others in groups.values():
        merged = replace(
            first,
            follow_on=own and first.lost_a_peer,
            same=tuple(other.who for other in others),
        )
        found.append(merged if merged.follow_on else _with_details(merged, attempt))
    return found


def _alike(message: str) -> str:
    """The words without addresses and numbers, in which ranks differ that fail alike."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", message.partition("\n")[0])


# What a failing rank left


@dataclass(frozen=True)
class _Told:
    message: str
    traceback: tuple[str, ...]
    time_s: float


def _told(path: Path) -> _Told | None:
    """A torchelastic error file, as `record` in torch.distributed.elastic writes it."""
    try:
        told = read_json(path)["message"]
        if not isinstance(told, dict):
            return _Told(str(told), (), 0.0)
        more = told.get("extraInfo") or {}
        lines = str(more.get("py_callstack") or "").splitlines()
        time_s = float(more.get("timestamp") or 0.0) + 1.0  # in whole seconds, so not before others
        return _Told(str(told["message"]).strip(), tuple(lines), time_s)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _with_details(broken: LoggedFailure, attempt: Attempt) -> LoggedFailure:
    if broken.rank is None or broken.launch is None:
        return broken
    file = attempt.paths.rank_file(broken.rank, "error.json", broken.launch)
    told = _told(file)
    if told is not None and told.traceback:
        return replace(broken, details=told.traceback, file=file)
    file = attempt.paths.rank_file(broken.rank, "err", broken.launch)
    return replace(broken, details=tuple(end_of(file)), file=file)


def end_of(path: Path, count: int = _TAIL) -> list[str]:
    """The last lines of a log, without empty ones; none if it cannot be read."""
    with contextlib.suppress(OSError):
        reader = LineReader(path, position_of_last(path, count))
        return [line[:QUOTED] for line in [*reader.read(), *reader.rest()] if line.strip()]
    return []


# What the batch shell and the nodes said outside of ranks


_ERROR = re.compile(r"\berror:|^\S*fsdpkit: |oom[-_ ]kill", re.IGNORECASE)
_START = re.compile(r"^fsdpkit: \d+ nodes? .*, head ")
"""What the batch shell says when all is well."""


def _log_errors(attempt: Attempt, run: RunPaths, *, alone: bool) -> list[LogErrors]:
    """Errors in the logs of the batch shell, Slurm and the nodes, by file.

    A job's log holds all its attempts, so they may be of another one. alone: nothing else is known,
    so where no line looks like an error the end of the log is shown.
    """
    if attempt.job_id is None:
        return []
    found = []
    logs = [run.dir / f"slurm-{attempt.job_id}.log"]
    if alone:
        nodes = sorted(run.submitit.glob(f"{attempt.job_id}_*_log.err"))
        logs += [path for path in nodes if _size(path)][:_NODE_LOGS]
    for path in logs:
        lines = [line for line in _all_lines(path) if not _START.match(line)]
        bad = [line for line in lines if _ERROR.search(line)]
        shown = bad or (lines if alone else [])
        if shown:
            found.append(LogErrors(file=path, lines=tuple(shown[-_TAIL:])))
    return found


def _all_lines(path: Path) -> Iterable[str]:
    with contextlib.suppress(OSError):
        lines = read_end(path).splitlines()
        return [text(line[: 4 * QUOTED])[:QUOTED] for line in lines if line.strip()]
    return []


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
