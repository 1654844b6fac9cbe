"""The last words before abort(3): of a C++ exception, of NCCL's watchdog."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from fsdpkit.failures import exceptions
from fsdpkit.failures.patterns import Shown
from fsdpkit.failures.tracebacks import PrintedException, TracebackLine, lines_of
from fsdpkit.failures.wording import is_of_gpu
from fsdpkit.runs.failures import Level

_ABORT_LINES, _LAST_LINES = 120, 3
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)")
_THROWN = re.compile(r"^terminate called after throwing an instance of '([^']+)'")
_WATCHED = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception|"
    r"Exception \(either an error or timeout\) detected|heartbeat|watchdog (?:got )?stuck|"
    r"watchdog hang|Received a dump signal"
)


def aborted_by(err: str, *, ended: bool) -> Shown | None:
    """What a process said before it aborted, the most particular first; if none of them has a known
    form, what its last lines show of a peer that it lost. ended: whether it is known that the
    process ended, else only a hang counts."""
    lines = _before_a_dump(lines_of(err))[-_ABORT_LINES:]
    if not ended:  # then it may only have been asked to dump by one that waited
        lines = [line for line in lines if "Received a dump signal" not in line.text]
    found = [one for place in range(len(lines)) if (one := _of_line(lines, place)) is not None]
    if not ended:
        found = [one for one in found if one.cause == "hang"]
    found = [one for one in found if one.cause != "exception"] or found
    if ended and not found:
        found = [one for line in lines[-_LAST_LINES:] if (one := _of_a_peer(line)) is not None]
    highest = max((one.level for one in found), default=None)
    return next((one for one in found if one.level == highest), None)


def _before_a_dump(lines: list[TracebackLine]) -> list[TracebackLine]:
    """Without the stacks that faulthandler writes behind the last words of who aborted."""
    dumps = [at for at, line in enumerate(lines) if line.text.startswith("Fatal Python error: ")]
    return lines[: dumps[-1] + 1] if dumps else lines


def _of_line(lines: Sequence[TracebackLine], place: int) -> Shown | None:
    line = lines[place]
    if match := _WHAT.match(line.text):
        before = (_THROWN.match(one.text) for one in lines[max(0, place - 2) : place])
        thrown = next(filter(None, before), None)
        return _of_cpp(thrown[1] if thrown else "", f"{match[1]}\n{_more(lines, place)}", line)
    if not _WATCHED.search(line.text):
        return None
    said = exceptions.said(line.text) if "NCCL error" not in line.text else iter(())
    if (found := next(said, None)) is not None:
        return found.moved(line.begin)
    thread = line.text.partition("terminated with exception: ")[2]
    return _of_cpp("", f"{thread}\n{_more(lines, place)}", line) if thread else None


def _of_a_peer(line: TracebackLine) -> Shown | None:
    raised = PrintedException(type="", message=line.text, begin=line.begin, end=line.end)
    found = msgspec.structs.replace(exceptions.shown(raised), raised=None)
    return found if found.level <= Level.WAITED else None


def _more(lines: Sequence[TracebackLine], place: int) -> str:
    return "\n".join(later.text for later in lines[place + 1 : place + 12])


def _of_cpp(thrown: str, text: str, line: TracebackLine) -> Shown:
    of_gpu = is_of_gpu(PrintedException(type=thrown, message=text.partition("\n")[0]))
    kind = "MemoryError" if "bad_alloc" in thrown + text and not of_gpu else "RuntimeError"
    raised = PrintedException(type=kind, message=text, begin=line.begin, end=line.end)
    found = exceptions.shown(raised)
    return msgspec.structs.replace(found, raised=None, begin=line.begin, end=line.end)
