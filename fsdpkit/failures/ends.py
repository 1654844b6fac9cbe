"""How one process ended, and what that shows: the rule by which the agents decide and `diagnose`
tells.

In this order: the exception that nobody caught; for a process that aborted, the last words of
whoever aborted it; a usage message; then, told as `perhaps`, the last lines that it wrote. What a
process printed before that is no evidence, whatever words it has.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from fsdpkit.failures import exceptions, languages, nccl, refusals, strerror
from fsdpkit.failures.advice.table import knows
from fsdpkit.failures.patterns import Level, Pattern, Shown
from fsdpkit.failures.tracebacks import (
    BEGINS,
    PrintedException,
    TracebackLine,
    behind_tracebacks,
    cut_off,
    ended_by,
    is_by_the_way,
    last_of_its_own,
    lines_of,
)

SEGV, BUS, ILL, FPE, ABRT, KILL, TERM = 139, 135, 132, 136, 134, 137, 143
STOPPED = 75
_LAST_SIGNAL = 128 + 64
"""Above it a status is one that the program chose, such as 247 of `exit(-9)`."""
_CRASHED = (SEGV, BUS, ILL, FPE)
_LAST_LINES = 15
_ABORT_LINES = 120


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the end of a rank's process."""

    status: int | None = None
    """Exit status, 128 + signal; None: nobody says how it ended, or whether."""
    record: str = ""
    """The exception in torchelastic's error file."""
    callstack: str = ""
    """Its traceback there."""
    err: str = ""
    """The end of its standard error."""
    out: str = ""


Where = Literal["record", "callstack", "err", "out", "status"]


class Explanation(NamedTuple):
    """What explains an end, and in which of its texts that stands."""

    shown: Shown
    where: Where


def explain(end: ProcessEnd) -> Explanation | None:
    """What ended a rank's process; None where it ended well, as it was asked to, or where nothing
    tells that it ended by itself."""
    if end.status in (0, STOPPED):
        return None
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
    if end.status in (KILL, TERM):
        return Explanation(_status(end.status, "unknown", Level.KILLED), "status")
    by_abort = _abort(end) if end.status in (ABRT, None) else None
    if by_abort is not None and (
        by_exception is None or by_abort.shown.level > by_exception.shown.level
    ):
        return by_abort
    if by_exception is not None:
        return by_exception
    if end.status is None:
        return None
    return (
        _refused(end)
        or _cut_off(end)
        or _hydra(end)
        or _by_json_line(end)
        or _child_killed(end)
        or _not_run(end)
        or _printed_to_out(end)
        or _last_words(end)
        or _logged(end)
        or _last_line(end)
        or Explanation(_status(end.status), "status")
    )


def _by_exception(end: ProcessEnd) -> Explanation | None:
    printed = _printed(end.err)
    told = _of_record(end.record) if end.record else None
    if told is not None and (printed is None or not _same(printed, told)):
        printed = None
    if (refused := refusals.on_record(end.status, end.record)) is not None:
        return Explanation(refused, "record")
    if told is not None and (end.callstack or printed is None):
        raised = msgspec.structs.replace(told, begin=0, end=len(end.record.partition("\n")[0]))
        if (traced := ended_by(end.callstack) or printed) is not None:
            raised = msgspec.structs.replace(raised, frames=traced.frames, before=traced.before)
        if printed is not None:
            raised = msgspec.structs.replace(raised, in_front=printed.in_front, above=printed.above)
        return Explanation(_with_warning(exceptions.shown(raised), end), "record")
    if printed is None or (end.status is None and not printed.sure):
        return None
    shown = _with_name_service(_with_warning(exceptions.shown(printed), end), end)
    return Explanation(msgspec.structs.replace(shown, sure=printed.sure and shown.sure), "err")


def _printed(err: str) -> PrintedException | None:
    """What ended the process by its standard error: of Python, or of another language if that
    stands behind it."""
    python, other = ended_by(err), languages.ended_by(err)
    if python is None or (other is not None and other.begin > python.begin):
        return other or python
    return python


def _same(one: PrintedException, other: PrintedException) -> bool:
    """Whether they are one exception, which a record names without its module."""
    return (one.name, _first(one)) == (other.name, _first(other))


def _first(raised: PrintedException) -> str:
    return raised.message.partition("\n")[0].strip()


_RECORD = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)


def _of_record(text: str) -> PrintedException:
    """`RuntimeError: words` as torchelastic writes it down."""
    match = _RECORD.match(text.strip())
    if match is None:
        return PrintedException(type="", message=text.strip())
    return PrintedException(type=match["type"], message=(match["message"] or "").strip())


def _is_marked(end: ProcessEnd) -> bool:
    return bool(end.record) or any(line.marked for line in lines_of(end.err))


def _with_warning(shown: Shown, end: ProcessEnd) -> Shown:
    """NCCL's own last warning, where the exception only says that something failed in NCCL."""
    raised = shown.raised
    if raised is None or "NCCL error" not in raised.message or shown.words is not None:
        return shown
    warned = nccl.explained(
        "\n".join(re.findall(r"^.*NCCL WARN .*$", end.err + "\n" + end.out, re.M))
    )
    if warned is None or warned.cause == "exception":
        return shown
    return msgspec.structs.replace(warned, begin=shown.begin, end=shown.end, raised=raised)


_NO_ADDRESS = re.compile(
    r"The IPv\d network addresses of \((.+?), \d+\) cannot be retrieved \(gai error: .*"
)


def _with_name_service(shown: Shown, end: ProcessEnd) -> Shown:
    """TCPStore's own warning, where the exception only says that it waited for the head in vain."""
    if shown.cause not in ("rendezvous-timeout", "connection-reset"):
        return shown
    if (warned := _NO_ADDRESS.search(end.err)) is None:
        return shown
    place = Pattern((), "torch's TCPStore, of a name that does not resolve")
    return msgspec.structs.replace(
        shown, cause="head-address", pattern=place, words=warned[0].rstrip(".")
    )


# Crashes and aborts


_FATAL = re.compile(r"^Fatal Python error: (.+)")
_INNERMOST = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)')
_SIGNALS = {
    SEGV: "ended by signal 11 (SIGSEGV)",
    BUS: "ended by signal 7 (SIGBUS)",
    ILL: "ended by signal 4 (SIGILL)",
    FPE: "ended by signal 8 (SIGFPE)",
    ABRT: "ended by signal 6 (SIGABRT)",
    KILL: "ended by signal 9 (SIGKILL)",
    TERM: "ended by signal 15 (SIGTERM)",
}
_BY_SIGNAL = Pattern((), "the kernel")
_TRACED = Pattern((), "faulthandler, of a signal")
_LEFT = Pattern((), "its exit status")


def _crash(end: ProcessEnd) -> Explanation:
    """A crash in native code: at which line of Python, where faulthandler says so."""
    words = in_words_of(end.status)
    lines = lines_of(end.err)
    for place, line in reversed(list(enumerate(lines))):
        if _FATAL.match(line.text):
            frames = (_INNERMOST.match(later.text) for later in _current_thread(lines[place:]))
            frame = next(filter(None, frames), None)
            at = f", at {frame[1]}:{frame[2]} in {frame[3]}" if frame else ""
            shown = Shown("exception", _TRACED, line.begin, line.end, words=words + at)
            return Explanation(shown, "err")
    return Explanation(_status(end.status), "status")


def _current_thread(lines: list[TracebackLine]) -> list[TracebackLine]:
    starts = [i for i, line in enumerate(lines) if line.text.startswith("Current thread ")]
    return lines[starts[0] :] if starts else lines


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


def _abort(end: ProcessEnd) -> Explanation | None:
    """The last words before abort(3): of a C++ exception, of glibc, of a watchdog."""
    lines = lines_of(end.err)[-_ABORT_LINES:]
    candidates: list[Shown] = []
    for place, line in enumerate(lines):
        if match := _WHAT.match(line.text):
            more = "\n".join(later.text for later in lines[place + 1 : place + 12])
            thrown = next(
                (
                    t[1]
                    for before in lines[max(0, place - 2) : place]
                    if (t := _THROWN.match(before.text))
                ),
                "",
            )
            candidates.append(_of_cpp(thrown, f"{match[1]}\n{more}", line))
        elif (match := _THROWN.match(line.text)) and not any(
            _WHAT.match(later.text) for later in lines[place + 1 : place + 3]
        ):
            if "c10::Dist" in match[1]:
                warned = "\n".join(re.findall(r"^.*NCCL WARN .*$", end.err, re.MULTILINE))
                candidates.append(_of_cpp(match[1], warned or "ncclRemoteError", line))
        elif _WATCHED.search(line.text):
            for found in exceptions.said(line.text) if "NCCL error" not in line.text else ():
                candidates.append(found.moved(line.begin))
                break
            else:
                thread = line.text.partition("terminated with exception: ")[2]
                if thread:
                    more = "\n".join(later.text for later in lines[place + 1 : place + 12])
                    candidates.append(_of_cpp("", f"{thread}\n{more}", line))
        elif end.status == ABRT and _ABORTED.search(line.text):
            particular = next(exceptions.said(line.text), None)
            plain = Shown("exception", _BY_SIGNAL, line.begin, line.end)
            candidates.append(particular.moved(line.begin) if particular else plain)
    if end.status is None:
        candidates = [one for one in candidates if one.cause == "hang"]
    if not candidates:
        return None
    candidates = [one for one in candidates if one.cause != "exception"] or candidates
    highest = max(one.level for one in candidates)
    return Explanation(next(one for one in candidates if one.level == highest), "err")


_OF_GPU = re.compile(r"(?i)cuda|\bhip|thrust|rmm")


def _of_cpp(thrown: str, text: str, line: TracebackLine) -> Shown:
    of_gpu = _OF_GPU.search(f"{thrown} {text.partition(chr(10))[0]}")
    kind = "MemoryError" if "bad_alloc" in thrown + text and not of_gpu else "RuntimeError"
    raised = PrintedException(type=kind, message=text, begin=line.begin, end=line.end)
    found = exceptions.shown(raised)
    return msgspec.structs.replace(found, raised=None, begin=line.begin, end=line.end)


# Processes that left in order, and those of which only a number is known


def _refused(end: ProcessEnd) -> Explanation | None:
    shown = refusals.of_arguments(end.status, end.err)
    return Explanation(shown, "err") if shown is not None else None


_CUT = Pattern((), "Python, of a log that ends too early")


def _cut_off(end: ProcessEnd) -> Explanation | None:
    frame = cut_off(end.err)
    if frame is None:
        return None
    words = f"its log ends within a traceback, at {frame}"
    last = max((line for line in lines_of(end.err) if line.text.strip()), key=lambda one: one.begin)
    shown = Shown("exception", _CUT, last.begin, last.end, words=words, sure=False)
    return Explanation(shown, "err")


_OF_HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1"
_HYDRA_PATTERN = Pattern((), "Hydra, of a configuration that it cannot put together")


def _hydra(end: ProcessEnd) -> Explanation | None:
    """Hydra prints no traceback of its own refusals, only of what the program raised."""
    later = behind_tracebacks(end.err)
    lines = [line for line in lines_of(later) if line.text.strip()]
    if not lines or not lines[-1].text.startswith(_OF_HYDRA):
        return None
    told = [line for line in lines[:-1][-_LAST_LINES:] if not _NOISE.search(line.text)]
    first = next((line for line in told if _LOOKS_LIKE_AN_ERROR.search(line.text)), None)
    if first is None:
        return None
    shown = Shown("settings", _HYDRA_PATTERN, first.begin, first.end)
    return Explanation(shown.moved(len(end.err) - len(later)), "err")


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


def _by_json_line(end: ProcessEnd) -> Explanation | None:
    """The exception in the last record of a logger that writes a JSON object a line."""
    for where, text in _texts(end):
        lines = [line for line in lines_of(text) if line.text.strip()][-_LAST_LINES:]
        last = next((one for one in reversed(lines) if one.text.lstrip().startswith("{")), None)
        if last is None:
            continue
        try:
            record = json.loads(last.text)
        except (ValueError, RecursionError):
            continue
        if str(record.get("level", record.get("levelname", "error"))).lower() not in _BAD_LEVELS:
            continue
        for value in record.values():
            raised = ended_by(value) if isinstance(value, str) and BEGINS in value else None
            if raised is not None:
                shown = exceptions.shown(raised)
                shown = msgspec.structs.replace(shown, begin=last.begin, end=last.end, sure=False)
                return Explanation(shown, where)
    return None


_BAD_LEVELS = frozenset({"error", "critical", "fatal", "exception"})


def _printed_to_out(end: ProcessEnd) -> Explanation | None:
    """A traceback at the end of standard output, where some loggers and wrappers print it."""
    raised = _printed(end.out)
    if raised is None or not _is_own_status(end):
        return None
    return Explanation(msgspec.structs.replace(exceptions.shown(raised), sure=False), "out")


def _logged(end: ProcessEnd) -> Explanation | None:
    """The last exception of a process that left by a status of its own and names no other error."""
    for where, text in _texts(end) if _is_own_status(end) else ():
        if (raised := last_of_its_own(text)) is not None:
            shown = msgspec.structs.replace(exceptions.shown(raised), sure=False)
            return Explanation(shown, where)
    return None


def _is_own_status(end: ProcessEnd) -> bool:
    return end.status is not None and end.status <= 128


def _texts(end: ProcessEnd) -> tuple[tuple[Where, str], ...]:
    return ("err", end.err), ("out", end.out)


def _not_run(end: ProcessEnd) -> Explanation | None:
    shown = refusals.of_a_shell(end.status, end.err)
    if shown is None or next(exceptions.said(end.err[shown.begin : shown.end]), None):
        return None
    return Explanation(shown, "err")


_NOISE = re.compile(
    r"Warning\b|^\[W\d|^W\d{4} |resource_tracker|^wandb: |NCCL INFO|^\W*$|^  warnings\.warn|\d+%\||"
    r"destroy_process_group|^Exception ignored|leaked semaphore|^\s{2,}\S|^\[I\d|^I\d{4} |"
    r"^nanobind: |^ - (?:leaked|\.\.\. skipped) |^See https?://"
)


def _last_words(end: ProcessEnd) -> Explanation | None:
    """The last lines of a process that left by a status of its own: perhaps they say why. Of those
    before the very last only lines that speak of an error or of leaving do."""
    for where, text in _texts(end):
        lines, offset = _last_lines(text)
        for place, line in enumerate(reversed(lines)):
            ends = _LOOKS_LIKE_AN_ERROR.search(line.text) or _LEAVES.search(line.text)
            if is_by_the_way(line.text) or (place > 0 and not ends):
                continue
            raised = PrintedException(type="", message=line.text, begin=line.begin, end=line.end)
            found = exceptions.shown(raised)
            if found.cause == "nan-loss" and not ends:
                continue
            if found.cause not in ("exception", "hang", "connection-reset") or knows(line.text):
                found = msgspec.structs.replace(found, raised=None, sure=False)
                return Explanation(found.moved(offset), where)
        last = next((line for line in reversed(lines) if not is_by_the_way(line.text)), None)
        if last is not None and _LOOKS_LIKE_AN_ERROR.search(last.text):
            shown = Shown("exception", _LEFT, last.begin, last.end, sure=False)
            return Explanation(shown.moved(offset), where)
    return None


def _last_line(end: ProcessEnd) -> Explanation | None:
    """Whatever it wrote last to standard error; it need have nothing to do with the end."""
    lines, offset = _last_lines(end.err)
    for line in reversed(lines):
        if not is_by_the_way(line.text):
            words = f"{in_words_of(end.status)}; its last line: {refusals.unframed(line.text)}"
            shown = Shown("exception", _LEFT, line.begin, line.end, words=words, sure=False)
            return Explanation(shown.moved(offset), "err")
    return None


def _last_lines(text: str) -> tuple[list[TracebackLine], int]:
    """Those behind all tracebacks, without noise, and where in the text they begin."""
    later = behind_tracebacks(text)
    lines = [line for line in lines_of(later) if not _NOISE.search(line.text)]
    return lines[-_LAST_LINES:], len(text) - len(later)


_LEAVES = re.compile(r"(?i)\b(?:stop|exit|abort|terminat|quit|leav|giv\w+ up|diverge)")
_LOOKS_LIKE_AN_ERROR = re.compile(
    r"(?i)error|fail|fatal|abort|exception|can(?:no|')t\b|could not|invalid|denied|not found|"
    r"no such|unable|unbound|conflict|refused|exceeded|fehl(?:er|geschlagen)|erreur|impossible|"
    r"verweigert|refusé"
)


def last_error(text: str, *, like_one: bool = True) -> TracebackLine | None:
    """The last line of a text that looks like an error and not like what followed from one.

    like_one: False for the very last line, if none looks like one.
    """
    lines = [line for line in lines_of(text) if not _NOISE.search(line.text)]
    lines = [line for line in lines if not is_by_the_way(line.text)][-_LAST_LINES:]
    for line in reversed(lines):
        like = _LOOKS_LIKE_AN_ERROR.search(line.text) or strerror.number_in(line.text)
        if like and not _FOLLOWED.search(line.text):
            return line
    return lines[-1] if lines and not like_one else None


_FOLLOWED = re.compile(
    r"(?i)^\W*(?:to \w+ |try |run |you can |consider )|"
    r"previous errors?\b|vorheriger Fehler|erreurs? précédente"
)


def _status(status: int | None, cause: str = "exception", level: Level = Level.OWN) -> Shown:
    place = Pattern((), "its exit status", level)
    if cause == "exception" and status is not None:
        place = _BY_SIGNAL if 128 < status <= _LAST_SIGNAL else _LEFT
    return Shown(cause, place, 0, 0, words=in_words_of(status))


def in_words_of(status: int | None) -> str:
    """How a process ended, by its exit status."""
    if status is None:
        return "nobody says how it ended"
    if 128 < status <= _LAST_SIGNAL:
        return _SIGNALS.get(status, f"ended by signal {status - 128}")
    return f"exit status {status}"


VAGUE = re.compile(r"exit status \d+$|ended by signal \d+|ended by SIG|stopped early as asked")
"""How an agent tells of an end that left no words; see `in_words_of`."""


@lru_cache(maxsize=4096)
def explain_record(status: int, message: str) -> Shown | None:
    """What ended a rank, by what its agent put on record."""
    found = explain(ProcessEnd(status=status, record="" if VAGUE.match(message) else message))
    return found.shown if found else None


def follows(message: str) -> bool:
    """Whether these are the words of a rank that only lost its peer, or waited for one in vain."""
    shown = explain_record(1, message)
    return shown is not None and shown.level <= Level.WAITED


def told(end: ProcessEnd) -> str:
    """What an agent puts on record of an end: the words that explain it for certain, else only how
    the process ended. `explain_record` finds the same in it again."""
    found = explain(end)
    if found is None or not found.shown.sure:
        return end.record or in_words_of(end.status)
    candidates = [end.record] if end.record else []
    if (raised := found.shown.raised) is not None:
        candidates.append(f"{raised.type}: {raised.message}" if raised.type else raised.message)
    if found.where in ("err", "out"):
        text = end.err if found.where == "err" else end.out
        line = text[found.shown.begin : found.shown.end]
        candidates.append(found.shown.words or _COLOURS_AND_MARKS.sub("", line).strip())
    shows = (found.shown.cause, found.shown.level)
    for words in candidates:
        again = explain_record(end.status or 1, words)
        if again is not None and (again.cause, again.level) == shows:
            return words
    return end.record or in_words_of(end.status)


_COLOURS_AND_MARKS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^\[rank\d+\]: ?")
