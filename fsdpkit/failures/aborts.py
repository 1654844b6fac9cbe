"""The last words before abort(3): of a C++ exception, of glibc, of NCCL's watchdog."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from fsdpkit.failures import exceptions
from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.failures.tracebacks import PrintedException, TracebackLine, lines_of
from fsdpkit.failures.wording import is_of_gpu

_ABORT_LINES = 120
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)")
_THROWN = re.compile(r"^terminate called after throwing an instance of '([^']+)'")
_ABORTED = re.compile(
    r"free\(\): |double free|malloc\(\): |malloc_consolidate|corrupted |realloc\(\): |"
    r"munmap_chunk\(\)|stack smashing detected|buffer overflow detected|Assertion [`'].*failed|"
    r"Assertion failed|^Fatal Python error: (?!Aborted)|LLVM ERROR|Check failed: |"
    r"terminate called without an active exception|pure virtual method called|"
    r"memory allocation of \d+ bytes failed|Received a dump signal|"
    r"^\[\S+:\d+ *:\d+:\d+\] +\w+\.c(?:c|pp)?:\d+ "
)
_WATCHED = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception|"
    r"Exception \(either an error or timeout\) detected|heartbeat|watchdog (?:got )?stuck|"
    r"watchdog hang"
)


def aborted_by(err: str, by_signal: Pattern, *, ended: bool, by_abort: bool) -> Shown | None:
    """What a process said before it aborted, the most particular first.

    by_signal: of words that show no cause. ended: whether it is known that the process ended, else
    only a hang counts; by_abort: whether it was by SIGABRT.
    """
    lines = _before_a_dump(lines_of(err))[-_ABORT_LINES:]
    found = [
        shown
        for place in range(len(lines))
        if (shown := _of_line(lines, place, err, by_signal if by_abort else None)) is not None
    ]
    if not ended:
        found = [one for one in found if one.cause == "hang"]
    found = [one for one in found if one.cause != "exception"] or found
    highest = max((one.level for one in found), default=None)
    return next((one for one in found if one.level == highest), None)


def _before_a_dump(lines: list[TracebackLine]) -> list[TracebackLine]:
    """Without the stacks that faulthandler writes behind the last words of who aborted."""
    dumps = [at for at, line in enumerate(lines) if line.text.startswith("Fatal Python error: ")]
    return lines[: dumps[-1] + 1] if dumps else lines


def _of_line(
    lines: Sequence[TracebackLine], place: int, err: str, by_signal: Pattern | None
) -> Shown | None:
    line = lines[place]
    if match := _WHAT.match(line.text):
        before = (_THROWN.match(one.text) for one in lines[max(0, place - 2) : place])
        thrown = next(filter(None, before), None)
        return _of_cpp(thrown[1] if thrown else "", f"{match[1]}\n{_more(lines, place)}", line)
    if match := _THROWN.match(line.text):
        told = any(_WHAT.match(later.text) for later in lines[place + 1 : place + 3])
        if told or "c10::Dist" not in match[1]:
            return None
        warned = "\n".join(re.findall(r"^.*NCCL WARN .*$", err, re.MULTILINE))
        return _of_cpp(match[1], warned or "ncclRemoteError", line)
    if _WATCHED.search(line.text):
        said = exceptions.said(line.text) if "NCCL error" not in line.text else iter(())
        if (found := next(said, None)) is not None:
            return found.moved(line.begin)
        thread = line.text.partition("terminated with exception: ")[2]
        return _of_cpp("", f"{thread}\n{_more(lines, place)}", line) if thread else None
    if by_signal is not None and _ABORTED.search(line.text):
        particular = next(exceptions.said(line.text), None)
        plain = Shown("exception", by_signal, line.begin, line.end)
        return particular.moved(line.begin) if particular else plain
    return None


def _more(lines: Sequence[TracebackLine], place: int) -> str:
    return "\n".join(later.text for later in lines[place + 1 : place + 12])


def _of_cpp(thrown: str, text: str, line: TracebackLine) -> Shown:
    of_gpu = is_of_gpu(PrintedException(type=thrown, message=text.partition("\n")[0]))
    kind = "MemoryError" if "bad_alloc" in thrown + text and not of_gpu else "RuntimeError"
    raised = PrintedException(type=kind, message=text, begin=line.begin, end=line.end)
    found = exceptions.shown(raised)
    return msgspec.structs.replace(found, raised=None, begin=line.begin, end=line.end)
