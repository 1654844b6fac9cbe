"""How one process ended, and what that shows: the rule by which the agents decide and `diagnose`
tells.

In this order: the exception that nobody caught; for a process that aborted, the last words of
whoever aborted it; a usage message; then, told as `perhaps`, the last lines that it wrote. What a
process printed before that is no evidence, whatever words it has.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from fsdpkit.failures import exceptions, refusals
from fsdpkit.failures.last_words import LAST_LINES, last_line, last_words, refused_by_hydra
from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.failures.raised import exception_of, left_at
from fsdpkit.failures.stacks import current_thread
from fsdpkit.failures.tracebacks import (
    PrintedException,
    TracebackLine,
    ended_by,
    is_of_a_library,
    last_unless_it_went_on,
    lines_of,
)
from fsdpkit.failures.wording import is_of_gpu
from fsdpkit.runs.failures import Level
from fsdpkit.runs.raised import RaisedRecord

SEGV, BUS, ILL, FPE, ABRT, KILL, TERM = 139, 135, 132, 136, 134, 137, 143
STOPPED = 75
_LAST_SIGNAL = 128 + 64
"""Above it a status is one that the program chose, such as 247 of `exit(-9)`."""
_CRASHED = (SEGV, BUS, ILL, FPE)
_SENT = (KILL, TERM, *(128 + one for one in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)))
"""Somebody sent it; no process ends by it for a failure of its own."""


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the end of a rank's process."""

    status: int | None = None
    """Exit status, 128 + signal; None: nobody says how it ended, or whether."""
    record: str = ""
    """The exception that ended it, as its agent has put it on record."""
    raised: RaisedRecord | None = None
    """The exception that ended it, as it recorded that itself: then no text is asked for one."""
    err: str = ""
    """The end of its standard error."""
    out: str = ""


Where = Literal["raised", "record", "err", "out", "status"]


class Explanation(NamedTuple):
    """What explains an end, and in which of its texts that stands."""

    shown: Shown
    where: Where


def explain(end: ProcessEnd) -> Explanation | None:
    """What ended a rank's process; None: it ended well, as asked, or perhaps not by itself."""
    if end.status in (0, STOPPED):
        return None
    if (unflushed := _output_closed(end)) is not None:
        return unflushed
    by_exception = _by_exception(end)
    if end.status in _CRASHED:
        if by_exception is not None and _is_marked(end):
            return by_exception
        return _crash(end)
    if (
        by_exception is not None
        and by_exception.shown.sure
        and by_exception.shown.level == Level.OWN
    ):
        return by_exception
    if end.status in _SENT:
        return Explanation(_status(end.status, "unknown", Level.KILLED), "status")
    by_abort = _abort(end)
    if by_abort is not None and (
        by_exception is None or by_abort.shown.level > by_exception.shown.level
    ):
        return by_abort
    if by_exception is not None:
        return by_exception
    if end.status is None:
        return None
    return (
        _in_err(refusals.of_arguments(end.status, end.err))
        or _in_err(refused_by_hydra(end.err))
        or _child_killed(end)
        or _in_texts(end, lambda text: last_words(text, _LEFT))
        or (_in_texts(end, _logged) if end.status <= 128 else None)
        or _last_line(end)
        or Explanation(_left(end), "status")
    )


_NOT_FLUSHED = 120
"""Python's status where the rest of its output could not be written at the end."""
_OUTPUT_PATTERN = Pattern((), "Python, of its own standard output")
_OUTPUT = re.compile(r"^Exception ignored .*name='<std(?:out|err)>'.*\n(.+)$", re.MULTILINE)


def _output_closed(end: ProcessEnd) -> Explanation | None:
    """A process that did its work, and could not write the rest of its output."""
    told = _OUTPUT.search(end.err) if end.status == _NOT_FLUSHED else None
    if told is None:
        return None
    shown = exceptions.shown(_of_record(told[1]))
    cause = shown.cause if shown.level >= Level.OWN else "exception"
    words = f"its standard output could not be written at its end: {told[1].strip()}"
    return Explanation(Shown(cause, _OUTPUT_PATTERN, *told.span(1), words=words), "err")


def _by_exception(end: ProcessEnd) -> Explanation | None:
    printed = ended_by(end.err)
    if (caught := exception_of(end.raised)) is not None:
        return _by_raised(caught, printed, end)
    told = _of_record(end.record) if end.record else None
    if told is not None and (printed is None or not _same(printed, told)):
        raised = msgspec.structs.replace(told, begin=0, end=len(end.record.partition("\n")[0]))
        return Explanation(exceptions.shown(raised), "record")
    if printed is None or (end.status is None and not printed.sure):
        return None
    shown = exceptions.shown(printed)
    return Explanation(msgspec.structs.replace(shown, sure=printed.sure and shown.sure), "err")


def _by_raised(
    raised: PrintedException, printed: PrintedException | None, end: ProcessEnd
) -> Explanation:
    """The text only adds what stands above the exception, and where it is to be seen."""
    where: Where = "err"
    if printed is not None and _same(printed, raised):
        raised = _placed(raised, printed, printed)
    else:  # its hook prints it in another way, or nothing
        where, lines = "raised", lines_of(end.err.rstrip())[-LAST_LINES:]
        above = "\n".join(line.text for line in lines)
        raised = msgspec.structs.replace(raised, in_front=above)
    shown = exceptions.shown(raised)
    if shown.cause == "exception" and shown.raised is not None:
        shown = _of_a_group(shown, shown.raised, end)
    return Explanation(shown, where)


def _of_a_group(shown: Shown, raised: PrintedException, end: ProcessEnd) -> Shown:
    """A group is told with its first member."""
    if end.raised is not None and end.raised.chain[0].members and raised.before is not None:
        return msgspec.structs.replace(shown, words=f"{raised}: {raised.before}")
    return shown


def _placed(
    raised: PrintedException, printed: PrintedException | None, newer: PrintedException
) -> PrintedException:
    """With the places of a chain in the text; of what was not printed, where `newer` stands."""
    found = printed if printed is not None and _same(printed, raised) else None
    at, before = found or newer, raised.before
    before = _placed(before, found and found.before, at) if before is not None else None
    placed = msgspec.structs.replace(raised, begin=at.begin, end=at.end, before=before)
    if found is None:
        return placed
    # With what the process, or one of its own, had printed above it.
    return msgspec.structs.replace(
        placed, in_front=found.in_front, above=found.above, above_near=found.above_near
    )


def _same(one: PrintedException, other: PrintedException) -> bool:
    """Whether they are one exception, which a record names without its module."""
    return (one.name, _first(one)) == (other.name, _first(other))


def _first(raised: PrintedException) -> str:
    return raised.message.partition("\n")[0].strip()


_RECORD = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)


def _of_record(text: str) -> PrintedException:
    """`RuntimeError: words` as an agent writes it down."""
    match = _RECORD.match(text.strip())
    if match is None:
        return PrintedException(type="", message=text.strip())
    return PrintedException(type=match["type"], message=(match["message"] or "").strip())


def _is_marked(end: ProcessEnd) -> bool:
    recorded = end.raised is not None or bool(end.record)
    return recorded or any(line.marked for line in lines_of(end.err))


# Crashes and aborts


_BY_SIGNAL = Pattern((), "the kernel")
_TRACED = Pattern((), "faulthandler, of a signal")
_LEFT = Pattern((), "its exit status")


def _crash(end: ProcessEnd) -> Explanation:
    """A crash in native code: at which line of Python, where faulthandler says so."""
    words = in_words_of(end.status)
    lines = lines_of(end.err)
    for place, line in reversed(list(enumerate(lines))):
        if line.text.startswith("Fatal Python error: "):
            at = _where("\n".join(dumped.text for dumped in lines[place:]))
            shown = Shown("exception", _TRACED, line.begin, line.end, words=words + at)
            return Explanation(shown, "err")
    # So UCX says that nothing was behind an address: most often /dev/shm was full.
    unbacked = next((line.text for line in lines if "physical address" in line.text), None)
    if end.status == BUS and unbacked is not None:
        words = f"{words}: {unbacked.strip()}"
        memory = Shown("host-out-of-memory", _SHARED_MEMORY, 0, 0, words=words, sure=False)
        return Explanation(memory, "status")
    return Explanation(_status(end.status), "status")


_SHARED_MEMORY = Pattern((), "the kernel, of memory that a file was to back")


def _where(stacks: str) -> str:
    """The innermost call of what crashed, and that of the script which led there."""
    calls = current_thread(stacks)
    if not calls:
        return ""
    own = next((call for call in calls if not is_of_a_library(call.file)), calls[0])
    by = f", called at {own.file}:{own.line}" if own is not calls[0] else ""
    return f", at {calls[0]}{by}"


def _abort(end: ProcessEnd) -> Explanation | None:
    if end.status not in (ABRT, None):
        return None
    return _in_err(_aborted_by(end.err, ended=end.status is not None))


def _in_err(shown: Shown | None) -> Explanation | None:
    return None if shown is None else Explanation(shown, "err")


# Processes that left in order, and those of which only a number is known


_OF_A_KILLED_CHILD = re.compile(
    r"(?i)\b(?:return|exit)\s?(?:ed with )?(?:code|status|value):? ?=? ?(?:-9|137)\b|\bSIGKILL\b|"
    r"\bexitcode:? ?-9\b"
)


def _child_killed(end: ProcessEnd) -> Explanation | None:
    """A launcher within the script, whose own process was killed."""
    lines = [line for line in lines_of(end.err) if line.text.strip()]
    if not lines or not tells_of_a_killed_child(lines[-1].text):
        return None
    last = lines[-1]
    return Explanation(Shown("unknown", exceptions.CHILD_KILLED, last.begin, last.end), "err")


def tells_of_a_killed_child(words: str) -> bool:
    """Whether a process says that one which it had started was ended by SIGKILL."""
    return _OF_A_KILLED_CHILD.search(words) is not None


def _logged(text: str) -> Shown | None:
    """The last exception of a process that left by a status of its own and names no other error."""
    raised = last_unless_it_went_on(text)
    return None if raised is None else msgspec.structs.replace(exceptions.shown(raised), sure=False)


def _in_texts(end: ProcessEnd, judge: Callable[[str], Shown | None]) -> Explanation | None:
    if (shown := judge(end.err)) is not None:
        return Explanation(shown, "err")
    return None if (shown := judge(end.out)) is None else Explanation(shown, "out")


def _last_line(end: ProcessEnd) -> Explanation | None:
    if (found := last_line(end.err)) is None:
        return None
    line, like_an_error = found
    words = f"{_left(end).words}; its last line: {refusals.unframed(line.text)}"
    if like_an_error is not None:
        words += f" (before it: {refusals.unframed(like_an_error.text)})"
    shown = Shown("exception", _LEFT, line.begin, line.end, words=words, sure=False)
    return Explanation(shown, "err")


def _status(status: int | None, cause: str = "exception", level: Level = Level.OWN) -> Shown:
    place = Pattern((), "its exit status", level)
    if cause == "exception" and status is not None:
        place = _BY_SIGNAL if 128 < status <= _LAST_SIGNAL else _LEFT
    return Shown(cause, place, 0, 0, words=in_words_of(status))


def _left(end: ProcessEnd) -> Shown:
    """By its status, and where its script called sys.exit."""
    shown = _status(end.status)
    return msgspec.structs.replace(shown, words=f"{shown.words}{left_at(end.raised)}")


def in_words_of(status: int | None) -> str:
    """How a process ended, by its exit status."""
    if status is None:
        return "nobody says how it ended"
    if 128 < status <= _LAST_SIGNAL:
        number = status - 128
        with contextlib.suppress(ValueError):
            return f"ended by signal {number} ({signal.Signals(number).name})"
        return f"ended by signal {number}"
    return f"exit status {status}"


VAGUE = re.compile(r"exit status \d+$|ended by signal \d+|ended by SIG|stopped early as asked")
"""How an agent tells of an end that left no words; see `in_words_of`."""


@lru_cache(maxsize=4096)
def follows(message: str) -> bool:
    """Whether these are the words of a rank that only lost its peer, or waited for one in vain."""
    found = explain(ProcessEnd(status=1, record="" if VAGUE.match(message) else message))
    return found is not None and found.shown.level <= Level.WAITED


def told(end: ProcessEnd, found: Explanation | None) -> str:
    """What an agent records of an end: the words that explain it for certain, else how it ended."""
    shown = found.shown if found is not None and found.shown.sure else None
    if shown is not None and shown.raised is not None:
        return ": ".join(filter(None, (shown.raised.type, shown.raised.message)))
    if found is None or shown is None:
        return in_words_of(end.status)
    text = {"err": end.err, "out": end.out}.get(found.where, "")
    line = lines_of(text[shown.begin : shown.end])[0].text.strip()
    return (text and (shown.words or line)) or in_words_of(end.status)


_ABORT_LINES, _LAST_LINES = 120, 3
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)")
_THROWN = re.compile(r"^terminate called after throwing an instance of '([^']+)'")
_WATCHED = re.compile(
    r"Watchdog caught collective operation timeout|watchdog thread terminated with exception|"
    r"Exception \(either an error or timeout\) detected|heartbeat|watchdog (?:got )?stuck|"
    r"watchdog hang|Received a dump signal"
)


def _aborted_by(err: str, *, ended: bool) -> Shown | None:
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
