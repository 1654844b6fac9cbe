"""What the ranks printed, line by line: which files were asked for, and the lines in them.

Ranks write bytes; this module splits them into lines in the same way however they arrive, so a
followed log has the same lines as one read at the end. `following` follows them; `error_lines` says
what counts as an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.bounded import LINE_BYTES, TAIL_BYTES, open_regular
from fsdpkit.errors import UsageError
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord

Stream = Literal["out", "err"]

_CHUNK = 1 << 18
_LONG = 4096


@dataclass(frozen=True)
class LogSource:
    """One file with lines."""

    attempt: int
    """Of the batch shell's log the first that it tells of."""
    launch: int
    rank: int
    """-1: the batch shell."""
    stream: Stream
    path: Path

    @property
    def is_batch(self) -> bool:
        return self.rank < 0

    @property
    def place(self) -> tuple[int, int, int, bool]:
        """What sources sort by: attempt, launch, rank, standard output first."""
        return self.attempt, self.launch, self.rank, self.stream == "err"


Batch = tuple[LogSource, list[str]]
"""Lines of one file that come together, without their ends."""


@dataclass(frozen=True)
class LineFilter:
    """What a person wants to read."""

    ranks: frozenset[int] | None = frozenset({0})
    """None: all."""
    first_attempt: int = 0
    last_attempt: int | None = None
    """None: and all that come."""
    launch: int | None = None
    """One start of the ranks within an attempt; None: all."""
    streams: frozenset[Stream] = frozenset({"out", "err"})
    batch: bool = False
    """The batch shell's log, too."""
    array_task: int | None = None

    def attempts(self, numbers: Iterable[int]) -> list[int]:
        """Those of these attempts that were asked for."""
        last = self.last_attempt
        return [n for n in numbers if n >= self.first_attempt and (last is None or n <= last)]


def parse_ranks(text: str) -> frozenset[int]:
    """Ranks as in `5` or `0-3,7`. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip(), re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--rank {text!r}: write ranks as in 5, 0-3 or 0-3,7")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


# Which files


def sources_of(paths: RunPaths, record: RunRecord, choice: LineFilter) -> list[LogSource]:
    """The requested files that exist by now, in order."""
    found = _batch_logs(paths, record, choice) if choice.batch else []
    task = paths.task(choice.array_task)
    for number in choice.attempts(task.attempts()):
        found += _of_attempt(number, task.attempt(number), choice)
    return sorted(found, key=lambda source: source.place)


def _of_attempt(number: int, attempt: AttemptPaths, choice: LineFilter) -> Iterator[LogSource]:
    for rank, launch, kind, path in attempt.rank_files(choice.ranks):
        if kind in choice.streams and choice.launch in (None, launch):
            yield LogSource(number, launch, rank, "out" if kind == "out" else "err", path)


def _batch_logs(paths: RunPaths, record: RunRecord, choice: LineFilter) -> list[LogSource]:
    """One file a job, which holds all attempts of the job."""
    found = []
    jobs = record.jobs
    for job, later in zip(jobs, [*jobs[1:], None], strict=True):
        begins, ends = job.first_attempt, later.first_attempt - 1 if later else None
        if ends is not None and ends < choice.first_attempt:
            continue
        if choice.last_attempt is not None and begins > choice.last_attempt:
            continue
        task = "" if choice.array_task is None else f"_{choice.array_task}"
        path = paths.dir / f"slurm-{job.job_id}{task}.log"
        if path.exists():
            found.append(LogSource(begins, 0, -1, "out", path))
    return found


# Bytes to lines


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    r"""The whole lines in `data` without their ends, and the rest, which may go on.

    A line ends with `\n` or `\r\n`. One longer than 4 KiB also ends at its next `\r`, so that a
    progress bar, which only ever writes over itself, is seen now and then; one longer than 1 MiB
    ends there. Cutting the data in two anywhere and carrying the rest over gives the same lines.
    """
    *lines, rest = data.split(b"\n")
    lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
    if any(len(line) > _LONG for line in lines):
        lines = [piece for line in lines for piece in _pieces(line)]
    if len(rest) > _LONG:
        end = b"\r" if rest.endswith(b"\r") else b""  # perhaps part of a line end: not known yet
        *pieces, body = _pieces(rest[: len(rest) - len(end)])
        return lines + pieces, body + end
    return lines, rest


def _pieces(line: bytes) -> Iterator[bytes]:
    start = 0
    while len(line) - start > _LONG:
        at = line.find(b"\r", start + _LONG, start + LINE_BYTES)
        if at >= 0:
            yield line[start:at]
            start = at + 1
        elif len(line) - start > LINE_BYTES:
            yield line[start : start + LINE_BYTES]
            start += LINE_BYTES
        else:
            break
    yield line[start:]


class LineReader:
    """Reads a file that grows, from `position` (bytes) on. Holds no file open between reads."""

    def __init__(self, path: Path, position: int = 0, *, newest: bool = False) -> None:
        self.path = path
        self.position = position
        self._newest = newest
        self.more = False
        """Whether the last read may have left something."""
        self._held = b""

    def read(self) -> list[str]:
        """Lines completed since the last call, of at most 256 KiB. A file that has become shorter
        was rewritten, and is read from its start. Of what is `newest`, no more than TAIL_BYTES are
        read on: what lies before is passed over. Raises OSError, except for a file that is gone."""
        data, size = _read_at(self.path, self.position)
        if size < self.position:
            self.position, self._held = 0, b""
            data, size = _read_at(self.path, 0)
        if self._newest and size - self.position > TAIL_BYTES:
            self.position, self._held = position_within(self.path), b""
            data, size = _read_at(self.path, self.position)
        self.position += len(data)
        self.more = bool(data) and self.position < size
        lines, self._held = split_lines(self._held + data)
        return [text(line) for line in lines]

    def rest(self) -> list[str]:
        """What follows the last line end, when nothing more will be written."""
        held, self._held = self._held, b""
        return [text(held)] if held else []


def _read_at(path: Path, position: int) -> tuple[bytes, int]:
    """Some bytes from there on, perhaps fewer than there are, and the file's size."""
    try:
        with open_regular(path) as file:
            file.seek(position)
            return file.read(_CHUNK), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return b"", position


def text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def position_of_last(path: Path, count: int) -> int:
    """Where the last `count` lines of a file begin, in bytes; an unfinished last line counts. A
    file without line ends is not read through: no line has more than LINE_BYTES (split_lines), nor
    do many of them have that."""
    with open_regular(path) as file:
        size = start = file.seek(0, os.SEEK_END)
        farthest = min(count * LINE_BYTES, max(TAIL_BYTES, count * _LONG))
        lowest = max(0, size - farthest) if count > 0 else size
        while start > lowest:
            start = max(lowest, 2 * start - size - _CHUNK)
            file.seek(start)
            block = file.read(size - start)
            at = len(block) - block.endswith(b"\n")
            for _ in range(count):
                at = block.rfind(b"\n", 0, at)
                if at < 0:
                    break
            else:
                return start + at + 1
    return lowest


def position_within(path: Path) -> int:
    """Where the first whole line of the last TAIL_BYTES begins; 0 in a file of no more."""
    with open_regular(path) as file:
        start = file.seek(0, os.SEEK_END) - TAIL_BYTES
        if start <= 0:
            return 0
        file.seek(start - 1)  # the byte before may end a line
        at = file.read(LINE_BYTES).find(b"\n")
        return start if at < 0 else start + at


Tail = int | Literal["all"] | None
"""How much of a file to read: so many last lines, all of it, or at most its last TAIL_BYTES."""


def start_of(path: Path, tail: Tail) -> int:
    """Where to begin to read, in bytes. Raises OSError."""
    if tail == "all":
        return 0
    return position_within(path) if tail is None else position_of_last(path, tail)


# Lines of files that are read once


def lines_of(source: LogSource, tail: Tail = None) -> Iterator[Batch]:
    """The lines of one file. Raises OSError."""
    reader = LineReader(source.path, start_of(source.path, tail))
    reader.more = True
    while reader.more:
        yield source, reader.read()
    yield source, reader.rest()


def in_order(sources: Iterable[LogSource], tail: Tail = None) -> Iterator[Batch]:
    """File after file."""
    for source in sources:
        yield from lines_of(source, tail)


# Carriage returns


def written(line: str) -> list[str]:
    """Every version of a line that carriage returns overwrote, in order."""
    return line.rstrip("\r").split("\r")


def last_written(line: str) -> list[str]:
    """Its final version: for a progress bar, how far it came."""
    return written(line)[-1:]
