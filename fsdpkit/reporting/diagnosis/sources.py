"""The log sources of an attempt's end: ranks, the nodes' agents, the batch shell.

Reads what `launching` wrote (failures/, what ranks raised) and the ends of the logs. For an attempt
with several launches it reads the last one: the run recovered from the earlier ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.bounded import NODES_READ, RANKS_READ
from fsdpkit.failures.ends import ProcessEnd, explain, tells_of_a_killed_child
from fsdpkit.failures.exceptions import CHILD_KILLED
from fsdpkit.failures.raised import exception_of
from fsdpkit.runs.failures import SHELLS_MARK, FailureRecord, read_record
from fsdpkit.runs.history import Attempt, Failure
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.log_ends import LogText, end_of, newest_part, part_from, without
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.raised import RaisedRecord, read_raised
from fsdpkit.runs.rank_ends import RankEnd, read_rank_ends

_ALL_BYTES = 32 << 20
"""Shared by the ranks' logs of an attempt."""
_LOG_BYTES = 64 << 10
_LAST_WORDS = 4096
"""Characters of a log in which its end is looked for, where that is asked of each rank."""


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an attempt, and what is known of its end. None: not read."""

    kind: Literal["rank", "agent", "batch"]
    node: str | None = None
    rank: int | None = None
    status: int | None = None
    """How it ended: its exit status, 128 + signal. None: nobody says, it may have been ended."""
    time_s: float | None = None
    """When it failed, Unix time by the clock of the run directory's file server."""
    message: LogText | None = None
    """Its last words: the exception that ended it, or what its agent says of its end."""
    told: FailureRecord | None = None
    """What its agent, or a shell, has put on record of its end."""
    raised: RaisedRecord | None = None
    """The exception that ended it, as it recorded that itself."""
    raised_text: LogText | None = None
    """The same in words."""
    logs: tuple[LogText, ...] = ()
    stacks: LogText | None = None
    """Where its threads were when it made no step any more."""
    when: PrintedWhen | None = None
    """When it printed what."""

    def log(self, kind: Literal["err", "out"]) -> LogText | None:
        """Its standard error or output, as far as read."""
        of_kind = (log for log in self.logs if log.file is None or log.file.suffix == f".{kind}")
        return next(of_kind, None)

    @property
    def lost_a_child(self) -> bool:
        """Whether its last words say that a process of its own is gone, and not why."""
        err = self.log("err")
        words = [self.message.text if self.message else "", err.text[-_LAST_WORDS:] if err else ""]
        return self.status not in (None, 0) and LOST_A_CHILD.search("\n".join(words)) is not None

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, or by its last words a process that it had started."""
        if self.status in (None, 0, 137):
            return self.status == 137
        message, err = (text.text if text else "" for text in (self.message, self.log("err")))
        if not tells_of_a_killed_child(f"{message}\n{err[-_LAST_WORDS:]}"):
            return False
        end = ProcessEnd(status=self.status, raised=self.raised, err=err or message)
        found = explain(end)
        return found is not None and found.shown.pattern is CHILD_KILLED


LOST_A_CHILD = re.compile(
    r"exited unexpectedly|BrokenProcessPool|terminated abruptly|abruptly died|"
    r"unexpectedly terminated"
)
"""How pools of processes, torch's DataLoader and datasets' map say that one of theirs is gone."""


def voices_of(
    attempt: Attempt, run: RunPaths, ranks_per_node: int, *, newest: bool = True
) -> list[Voice]:
    """All log sources of the attempt's last launch. newest: whether the logs that all attempts of
    its job append to end with this one."""
    number = attempt.launches[-1].number if attempt.launches else 0
    names = _names(attempt)
    offsets = attempt.clock_offsets
    by_time = sorted(attempt.standing_failures, key=lambda failure: failure.time_s)
    found = [_of_failure(failure, names, offsets) for failure in by_time]
    found = _with_files(found, attempt, number, offsets, ranks_per_node)
    found = _with_ends(found, attempt, number, offsets, ranks_per_node)
    if newest and attempt.job_id is not None:
        for voice in [*_of_nodes(run, attempt.job_id, names), *batch_voices(run, attempt.job_id)]:
            _add(voice, found)
    return found


def _add(voice: Voice, found: list[Voice]) -> None:
    """Add a voice of a log, unless it repeats what its own voice says; what only the log could
    hold, for the disk was full, becomes the rank's own."""
    if voice.message is not None:
        for place, known in enumerate(found):
            if (known.kind, known.rank, known.node) != (voice.kind, voice.rank, voice.node):
                continue
            if known.message is None and known.kind == "rank":
                found[place] = msgspec.structs.replace(known, message=voice.message)
            if known.message is not None or known.kind == "rank":
                return
    found.append(voice)


def _names(attempt: Attempt) -> dict[int, str]:
    """The nodes' names by index, as far as they are recorded."""
    names = {node.number: node.name for node in attempt.nodes if node.name}
    for failure in attempt.failures:
        if failure.record is not None:
            names.setdefault(failure.node, failure.record.name)
    return names


def _of_failure(failure: Failure, names: Mapping[int, str], offsets: Mapping[str, float]) -> Voice:
    told = failure.record
    node = names.get(failure.node)
    return Voice(
        kind="agent" if failure.rank is None else "rank",
        node=node,
        rank=failure.rank,
        status=failure.status,
        time_s=failure.time_s - offsets.get(node or "", 0.0),
        message=LogText(told.words if told else failure.message, failure.file),
        told=told,
    )


def _with_files(
    found: list[Voice],
    attempt: Attempt,
    launch: int,
    offsets: Mapping[str, float],
    ranks_per_node: int,
) -> list[Voice]:
    """The same with what the ranks' own files hold, and the ranks of which only files speak."""
    known = {voice.rank: place for place, voice in enumerate(found) if voice.rank is not None}
    files = _rank_files(attempt.paths, launch)
    order = sorted(files, key=lambda r: (r not in known, "raised.json" not in files[r], r))
    order = order[:RANKS_READ]
    most = min(_LOG_BYTES, _ALL_BYTES // max(1, 2 * len(order)))
    for rank in order:
        node = attempt.node_of_rank(rank, ranks_per_node) if ranks_per_node else None
        voice = found[known[rank]] if rank in known else Voice(kind="rank", rank=rank, node=node)
        voice = _with_raised(voice, files[rank].get("raised.json"), offsets)
        logs = (files[rank].get(kind) for kind in ("err", "out"))
        ends = (_end(log, most, failed=rank in known) for log in logs if log is not None)
        stacks = files[rank].get("stacks")
        voice = msgspec.structs.replace(
            voice,
            logs=tuple(end for end in ends if end is not None),
            stacks=end_of(stacks, _LOG_BYTES) if stacks else None,
        )
        if rank in known:
            found[known[rank]] = voice
        else:
            found.append(voice)
    return found


def _end(log: Path, most_bytes: int, *, failed: bool) -> LogText | None:
    """The end of a rank's log; if that holds no traceback which torch marked as nobody's to catch,
    and much was said after one, the part of the log that begins with it."""
    end = end_of(log, most_bytes)
    if end is None or not failed or _MARKED in end.text or end.line == 1:
        return end
    return part_from(log, _MARKED.encode(), _SEARCHED_BYTES, most_bytes) or end


_MARKED = "]: Traceback (most recent call last)"
_SEARCHED_BYTES = 8 << 20


def _with_ends(
    found: list[Voice],
    attempt: Attempt,
    launch: int,
    offsets: Mapping[str, float],
    ranks_per_node: int,
) -> list[Voice]:
    """The same with how the ranks ended of which torchelastic kept no record; and those that ended
    well and wrote nothing, whom the others may have waited for."""
    ends: dict[int, RankEnd] = {}
    for node in attempt.nodes[:NODES_READ]:
        with contextlib.suppress(OSError):
            ends |= read_rank_ends(attempt.paths.node_events(node.number), launch)

    def with_end(voice: Voice) -> Voice:
        end = ends.get(-1 if voice.rank is None else voice.rank)
        if voice.kind != "rank" or voice.status is not None or end is None or end.killed:
            return voice
        time_s = end.time_s - offsets.get(voice.node or "", 0.0)
        return msgspec.structs.replace(voice, status=end.status, time_s=time_s)

    known = {voice.rank for voice in found}
    silent = [
        Voice(
            kind="rank",
            rank=rank,
            node=attempt.node_of_rank(rank, ranks_per_node) if ranks_per_node else None,
        )
        for rank, end in sorted(ends.items())[:RANKS_READ]
        if rank not in known and end.status == 0 and not end.killed
    ]
    return [with_end(voice) for voice in (*found, *silent)]


def _rank_files(attempt: AttemptPaths, launch: int) -> dict[int, dict[str, Path]]:
    """Of each rank the files of one launch, by kind."""
    found: dict[int, dict[str, Path]] = {}
    with contextlib.suppress(OSError):
        for rank, restart, kind, path in attempt.rank_files():
            if restart == launch:
                found.setdefault(rank, {})[kind] = path
    return found


def _with_raised(voice: Voice, file: Path | None, offsets: Mapping[str, float]) -> Voice:
    """The exception by which the rank says that it ended, and when."""
    record = read_raised(file) if file is not None else None
    raised = exception_of(record)
    if record is None:
        return voice
    ahead_s = offsets.get(voice.node or "", 0.0)
    text = LogText(str(raised), file) if raised is not None else None
    return msgspec.structs.replace(
        voice,
        status=record.status if voice.status is None else voice.status,
        time_s=record.time_ns / 1e9 - ahead_s if voice.time_s is None else voice.time_s,
        message=text if voice.message is None else voice.message,
        raised=record,
        raised_text=text,
    )


def _of_nodes(run: RunPaths, job_id: str, names: Mapping[int, str]) -> list[Voice]:
    """What each node's own log adds: the shell around the agent, the agent, slurmstepd."""
    found = []
    files = sorted(run.submitit.glob(f"{job_id}_*_log.err"), key=lambda file: file.name)
    most = min(_LOG_BYTES, _ALL_BYTES // max(1, 2 * len(files)))
    for file in files[:NODES_READ]:
        number = file.name.removeprefix(f"{job_id}_").removesuffix("_log.err")
        if not number.isdecimal():
            continue
        ends = (end_of(path, most) for path in (file, file.with_suffix(".out")))
        logs = [_newest(without(end, "rank 0: ")) for end in ends if end is not None]
        node = names.get(int(number)) or _name_in(logs)
        found.append(Voice(kind="agent", node=node, logs=tuple(_own(log) for log in logs)))
        found += (voice for log in logs for voice in _told_in(log))
    return found


def batch_voices(run: RunPaths, job_id: str) -> list[Voice]:
    """The batch shell's log, and the failures that it tells of."""
    end = end_of(run.dir / f"slurm-{job_id}.log", 4 * _LOG_BYTES)
    if end is None:
        return []
    log = _newest(end)
    return [Voice(kind="batch", logs=(_own(log),)), *_told_in(log)]


_BEGINS = r"^fsdpkit: (?:\d+ nodes? \(|one node \(|node \d+ \(|\S+: ready, )"
_ENDS = r"CANCELLED AT \S+|^fsdpkit: to go on[:,] "
_REQUEUED = (
    r"DUE TO JOB REQUEUE|^fsdpkit: .*; queued again|^fsdpkit: node \d+ \(\S+\), start \d+ of job |"
    r"^fsdpkit: a node did not start its part in time"
)


def _newest(text: LogText) -> LogText:
    return newest_part(text, _BEGINS, _ENDS, _REQUEUED)


def _name_in(logs: Iterable[LogText]) -> str | None:
    for log in logs:
        if match := re.search(
            r"^fsdpkit: node \d+ \(([\w.-]+)\) at|^fsdpkit: ([\w.-]+): ready,|"
            r"^slurmstepd-([\w.-]+): ",
            log.text,
            re.MULTILINE,
        ):
            return next(name for name in match.groups() if name)
    return None


_RECORD = re.compile(
    rf"^fsdpkit: (?:(?P<agents>\{{.*\}})|[\w.-]+: (?P<words>.*)\n{SHELLS_MARK}(?P<shells>.*))$",
    re.M,
)
_OF_FSDPKIT = re.compile(r"^fsdpkit: .*", re.M)


def _told_in(log: LogText) -> Iterator[Voice]:
    """Records in a log: a shell's, and an agent's that could not be written elsewhere."""
    for match in _RECORD.finditer(log.text):
        told = read_record(match["agents"] or match["shells"])
        if told is None:
            continue
        if match["words"]:
            told = msgspec.structs.replace(told, words=match["words"])
        place = log.part(*match.span("agents" if match["agents"] else "words"))
        yield Voice(
            kind="agent" if told.rank is None else "rank",
            node=told.name,
            rank=told.rank,
            message=msgspec.structs.replace(place, text=told.words),
            told=told,
        )


def _own(log: LogText) -> LogText:
    """The log without what fsdpkit says in it of others."""
    return LogText(_OF_FSDPKIT.sub("", log.text), log.file, log.line)
