"""What a training's own output says: the newest line of a rank, and the step, loss and rate that
common trainers print. For a person to see; nothing is decided by it, and what fsdpkit.log recorded
takes precedence over it.

The end of a rank's standard output and error is read, whatever their size, and of each line the
first `_LONGEST` characters, within a budget of time. printed_lines.py knows what a line says.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from fsdpkit.bounded import read_end
from fsdpkit.config.linear_regex import compiled
from fsdpkit.reporting.printable import one_line
from fsdpkit.reporting.status.printed_lines import (
    OF_TORCH,
    PrintedNumbers,
    numbers_in,
    numbers_in_groups,
)
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.runs.history import History
from fsdpkit.runs.reading import open_regular
from fsdpkit.runs.samples import decoded

TAIL_BYTES = 1 << 16
_FAR_BYTES = 1 << 20
"""Looked through where the last 64 KiB have no step."""
_MOST_LINES = 400
_LONGEST = 400
_BUDGET_S = 0.5
"""For the lines of one rank, each time that a run is looked at."""
_SETTLED_S = 2.0
"""After so long without more, a line without an end is taken for whole."""


class Tail(NamedTuple):
    """The end of a file that a rank prints into."""

    data: bytes
    whole: bool
    """Whether that is all of the file."""
    written_s: float
    """When it last grew, Unix time."""


# From the files


def printed_by(history: History, job: Mapping[str, Any], ranks: int) -> Printed | None:
    """What the newest launch of a training has printed; None if nothing. `ranks`: how many it
    has; Megatron's trainers, for example, print on the last one."""
    found: Printed | None = None
    for rank in dict.fromkeys((0, max(0, ranks - 1))):
        one = printed_in(tails(history, rank), pattern_of(job), time.time(), rank)
        if one is not None and (one.place or found is None):
            found = one
        if found is not None and found.place:
            break
    if found is not None and not found.words and pattern_of(job) is None:
        found = _from_farther_back(history, found)
    if found is None or found.step is None:
        steps = _optimizer_steps(history)
        if steps is not None:
            found = msgspec.structs.replace(found or Printed(), optimizer_steps=steps)
    return found


def _optimizer_steps(history: History) -> int | None:
    """As the newest sample has it that has any, of the first nodes."""
    if not history.attempts:
        return None
    attempt = history.attempts[-1]
    for node in attempt.nodes[:_MOST_NODES]:
        with contextlib.suppress(OSError):
            samples = decoded(read_end(attempt.paths.node_samples(node.number), TAIL_BYTES))
            steps = [one.optimizer_steps for one in samples if one.optimizer_steps is not None]
            if steps:
                return steps[-1]
    return None


_MOST_NODES = 4
"""With the first rank of each node the same steps are made."""


def _from_farther_back(history: History, found: Printed) -> Printed:
    """Where much is printed between two steps: what the newest lines that may name one say."""
    far = tails(history, found.rank, _FAR_BYTES)
    if all(len(tail.data) <= TAIL_BYTES for tail in far):
        return found
    few = []
    for tail in far:
        pieces = [*filter(bytes.strip, _ENDS.split(tail.data)[not tail.whole :])]
        *kept, last = pieces or [b""]
        kept = [*filter(_MAY_COUNT.search, kept), last, b""]
        few.append(tail._replace(data=b"\n".join(kept)))
    one = printed_in(few, None, time.time(), found.rank)
    if one is None or not one.words:
        return found
    return msgspec.structs.replace(one, line=found.line, printed_s=found.printed_s)


def tails(history: History, rank: int = 0, most: int = TAIL_BYTES) -> list[Tail]:
    """The ends of the rank's output in the newest launch, of standard output first."""
    if not history.attempts:
        return []
    attempt = history.attempts[-1]
    launch = attempt.launches[-1].number if attempt.launches else 0
    files = [attempt.paths.rank_file(rank, kind, launch) for kind in STREAMS]
    return [tail for file in files if (tail := _tail(file, most)) is not None]


STREAMS: tuple[Literal["out"], Literal["err"]] = ("out", "err")


def _tail(file: Path, most: int) -> Tail | None:
    with contextlib.suppress(OSError), open_regular(file) as opened:
        found = os.fstat(opened.fileno())
        opened.seek(max(0, found.st_size - most))
        return Tail(opened.read(most), found.st_size <= most, found.st_mtime)
    return None


def pattern_of(job: Mapping[str, Any]) -> str | None:
    metrics = job.get("metrics")
    pattern = metrics.get("pattern") if isinstance(metrics, Mapping) else None
    return pattern if isinstance(pattern, str) else None


# Pure


def printed_in(
    tails: Sequence[Tail], pattern: str | None, now_s: float, rank: int = 0
) -> Printed | None:
    """What the ends of a rank's files say; None if they are empty."""
    newest_first = sorted(tails, key=lambda tail: -tail.written_s)
    lines = [found for tail in newest_first if (found := lines_in(tail, now_s))]
    if not lines:
        return None
    own = [[line for line in stream if not OF_TORCH.match(line)] for stream in lines]
    lines = [stream for stream in own if stream] or lines
    numbers, remark = _numbers(lines, pattern)
    return Printed(
        rank=rank,
        line=one_line(lines[0][-1]),
        printed_s=newest_first[0].written_s,
        remark=remark,
        **{name: value for name, value in numbers._asdict().items() if name in _TOLD},
    )


_TOLD = frozenset(Printed.__struct_fields__)


_ENDS = re.compile(rb"[\r\n\x08]+")


def lines_in(tail: Tail, now_s: float, most: int = _MOST_LINES) -> list[str]:
    """Its lines and the versions of its bars, oldest first; what is still being written only if
    it is a whole bar, or has been there for a while."""
    pieces = _ENDS.split(tail.data)
    unfinished = pieces.pop()
    pieces = pieces if tail.whole else pieces[1:]
    settled = now_s - tail.written_s > _SETTLED_S
    if settled or _BAR_ENDS.search(unfinished) or not any(map(bytes.strip, pieces)):
        pieces.append(unfinished)
    texts = (_CSI.sub("", p[: 4 * _LONGEST].decode(errors="replace")) for p in pieces[-most:])
    return [text[:_LONGEST] for text in texts if text.strip()]


_MAY_COUNT = re.compile(rb"(?i)step|iter|epoch|update|batch|loss|\d\s*/\s*\d|\dit \[")
_BAR_ENDS = re.compile(rb"%\|[^|]*\| *\S+ \[[^\]]*\] *$")
_CSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def points_in(
    tails: Sequence[Tail], pattern: str | None, now_s: float, most_lines: int = _MOST_LINES
) -> list[PrintedNumbers]:
    """Losses with a step or an epoch, of the output that has the most of them, oldest first: those
    with a step, if there are any. `most_lines` also bounds the time."""
    budget_s = _BUDGET_S * min(4.0, most_lines / _MOST_LINES)
    found: list[PrintedNumbers] = []
    for tail in tails:
        points: list[PrintedNumbers] = []
        with contextlib.suppress(TimeoutError, ValueError):
            read = _reader(pattern, budget_s)
            for one in map(read, lines_in(tail, now_s, most_lines)):
                if one.loss is not None and (one.step is not None or one.epoch is not None):
                    points.append(one)
        stepped = [point for point in points if point.step is not None]
        found = max(found, stepped or points, key=len)
    return found


Reader = Callable[[str], "PrintedNumbers"]


def _reader(pattern: str | None, budget_s: float) -> Reader:
    """Reads a line, and nothing in it once the budget is spent. Raises ValueError for a pattern
    that is none; what it returns for one raises TimeoutError then, and from then on."""
    deadline = time.monotonic() + budget_s
    if pattern is None:
        return lambda line: numbers_in(line) if time.monotonic() < deadline else PrintedNumbers()
    regex = compiled(pattern)

    def read(line: str) -> PrintedNumbers:
        if pattern in _SLOW:
            raise TimeoutError
        try:
            return numbers_in_groups(regex.search(line, deadline) or {})
        except TimeoutError:
            _SLOW.add(pattern)
            raise

    return read


_SLOW: set[str] = set()
"""Patterns that took too long once, which this process does not use again."""


def _numbers(
    streams: Sequence[Sequence[str]], pattern: str | None
) -> tuple[PrintedNumbers, str | None]:
    found, why = PrintedNumbers(), "it matches no line at the end of the output"
    try:
        read = _reader(pattern, _BUDGET_S)
        found = _newest(map(read, reversed(lines)) for lines in streams)
    except TimeoutError:
        why = f"it takes more than {_BUDGET_S} s for the end of the output"
    except ValueError as error:
        why = str(error)
    said = pattern is None or found != PrintedNumbers()
    return found, None if said else f"[metrics] pattern: {why}"


def _newest(streams: Iterable[Iterable[PrintedNumbers]]) -> PrintedNumbers:
    """The newest step, loss and rate, each from the line that has it. An unnamed bar that came to
    its end before anything else was printed may have been one of the preparations."""
    found = PrintedNumbers()
    over: set[int | None] = set()
    followed = False
    for lines in streams:
        for one in lines:
            if one.unnamed is not None and followed and one.step == one.unnamed:
                over.add(one.unnamed)
            if one.unnamed in over:
                continue
            followed = True
            earlier = one.epoch is not None and (found.epoch or 0) > one.epoch
            if one.step is not None and found.step is None and not earlier:
                found = found._replace(step=one.step, total=one.total)
            if one.epoch is not None and found.epoch is None:
                found = found._replace(epoch=one.epoch, epochs=one.epochs)
            if one.has_loss and not found.has_loss:
                found = found._replace(loss=one.loss, has_loss=True)
            if one.rate is not None and found.rate is None:
                found = found._replace(rate=one.rate, rate_unit=one.rate_unit)
            if found.step is not None and found.has_loss and found.rate is not None:
                return found
    return found
