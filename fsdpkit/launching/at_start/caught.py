"""What a rank leaves behind when an exception ends it: one line of JSON in the node's memory.

What it prints may be cut off by a full disk, drawn by a hook of the script's own, or mixed with
what others print. Here the exception itself is kept: types, messages, error numbers, calls, and
what led to it. The agent copies the file (rank_files.py); runs/raised.py reads it. What a process
prints, its exit status and the order in which it ends remain as they are.

A script that is forked from the fork server is called by program.py, which passes its last
exception to `record`. One that is started anew is called by the interpreter: it gets a hook, and if
the script replaces that, the exception which the interpreter keeps is recorded at exit. SystemExit
passes both, and nothing that could see it would leave tracebacks as they are: of such a rank its
status and its last lines tell (failures/ends.py).

Runs in whatever Python the rank has (3.7 or later), and imports little before something fails.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_CHARACTERS = 8192
"""Of a message: half of them its begin, half its end."""
_MOST_EXCEPTIONS = 12
_OUTERMOST, _INNERMOST = 8, 32
_AS_ASKED = (0, 75)
"""Statuses of a rank that is done, or has stopped because it was asked to (errors.py)."""
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Rank:
    """The process whose exceptions are recorded. Its forked children are other processes."""

    def __init__(self, error_file: str) -> None:
        self.file = error_file + ".raised"
        self.process = os.getpid()
        self.ended = False

    def begins_to_end(self) -> bool:
        """Whether this is that process, and has not recorded its end."""
        if self.process != os.getpid() or self.ended:
            return False
        self.ended = True
        return True

    def write(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        number = os.open(self.file, flags, 0o600)
        try:
            os.write(number, line)
        finally:
            os.close(number)


_rank: _Rank | None = None


def begin() -> None:
    """From now on this process's exceptions are recorded, if it is a rank and not one of those that
    a rank starts; a crash in native code prints the line of Python where it happened."""
    global _rank
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not error_file:  # started otherwise than by an agent
        return
    _print_crashes()
    if os.getsid(0) == os.getpid():  # each rank has a session of its own
        _rank = _Rank(error_file)


def _print_crashes() -> None:
    try:
        import faulthandler

        if not faulthandler.is_enabled():
            faulthandler.enable()
    # In a subinterpreter; without standard error.
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
        return


def watch_interpreter() -> None:
    """Record what the interpreter finds that nobody caught."""
    then = sys.excepthook

    def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
        if _last() is error:  # else the script calls the hook, and goes on
            record(error, trace)
        then(kind, error, trace)

    def at_exit() -> None:  # the script has a hook of its own
        error = _last()
        if error is not None:
            record(error, error.__traceback__)

    if _rank is not None:
        # Libraries look whether the hook is still Python's own, and put up theirs only then.
        if sys.__excepthook__ is then:
            sys.__excepthook__ = excepthook
        sys.excepthook = excepthook
        atexit.register(at_exit)


def _last() -> BaseException | None:
    """What nobody caught, as the interpreter keeps it before it calls the hook."""
    return getattr(sys, "last_value", None)


def record(error: BaseException, trace: Any) -> None:
    """Write the line. Raises nothing: an end without a record is still the same end."""
    rank = _rank
    try:
        status = _status(error)
        if rank is None or status in _AS_ASKED or _would_import_after_an_interrupt(error):
            return
        if not rank.begins_to_end():
            return
        import json
        import time

        chain = _chain(error, trace, set())
        line = {"status": status, "time_ns": time.time_ns(), "chain": chain}
        rank.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    except BaseException:
        return


def _would_import_after_an_interrupt(error: BaseException) -> bool:
    """Modules that evaluate text when loaded make Python forget to end by the signal."""
    return isinstance(error, KeyboardInterrupt) and "json" not in sys.modules


def _status(error: BaseException) -> int:
    """With which the interpreter ends."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return int(code or 0) & 0xFF
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _chain(error: BaseException, trace: Any, known: set[int]) -> list[dict[str, Any]]:
    """The exception and those that led to it, as the interpreter would print them, newest first."""
    found: list[dict[str, Any]] = []
    link: BaseException | None = error
    while link is not None and id(link) not in known and len(known) < _MOST_EXCEPTIONS:
        known.add(id(link))
        described = _described(link, trace)
        found.append(described)
        members = getattr(link, "exceptions", None)
        if isinstance(members, tuple):
            some = [one for one in members[:_MOST_EXCEPTIONS] if isinstance(one, BaseException)]
            within = [_chain(one, one.__traceback__, known) for one in some]
            described["members"] = [one for one in within if one]
        described["meant"] = link.__cause__ is not None
        unsaid = link.__context__ if not link.__suppress_context__ else None
        link = link.__cause__ if described["meant"] else unsaid
        trace = link.__traceback__ if link is not None else None
    return found


def _described(error: BaseException, trace: Any) -> dict[str, Any]:
    kind = type(error)
    module = kind.__module__
    bare = not isinstance(module, str) or module in ("builtins", "__main__")
    name = kind.__qualname__ if bare else module + "." + kind.__qualname__
    frames, own = _calls(trace)
    described: dict[str, Any] = {"type": _clean(name, 300), "message": _message(error)}
    if isinstance(error, OSError) and kind.__str__ is OSError.__str__:  # else of another numbering
        described["errno"] = error.errno if isinstance(error.errno, int) else None
    place = error.filename if isinstance(error, SyntaxError) else None
    if isinstance(error, SyntaxError) and isinstance(place, str) and place[:1] != "<":
        own = [_clean(place, 1000), error.lineno or 0, "<module>"]
        frames.append(own)
    described.update(frames=frames, own=own, source=_source(own))
    return described


def _source(call: Any) -> str:
    """The line of code; empty where it cannot be read."""
    try:
        import linecache

        return _clean(linecache.getline(call[0], call[1]).strip(), 200)
    except Exception:
        return ""


def _message(error: BaseException) -> str:
    told: Any = error.code if isinstance(error, SystemExit) else error
    if isinstance(error, SystemExit) and (told is None or isinstance(told, int)):
        return ""
    if isinstance(error, SyntaxError):
        told = error.msg
    parts = []
    for part in (told, *(getattr(error, "__notes__", None) or ())):
        try:
            parts.append(str(part))
        except BaseException:
            parts.append("<exception str() failed>")
    return _clean("\n".join(parts) if len(parts) > 1 else parts[0], _MOST_CHARACTERS)


def _calls(trace: Any) -> tuple[list[Any], Any]:
    """The outermost and innermost calls of a traceback; the innermost that is no library's."""
    found, own = [], None
    while trace is not None:
        code = trace.tb_frame.f_code
        call = [code.co_filename, trace.tb_lineno or 0, code.co_name]
        if call[0][:1] != "<" and not any(part in call[0] for part in (*_LIBRARIES, _HERE)):
            own = call
        found.append(call)
        trace = trace.tb_next
    kept = found[:_OUTERMOST] + found[_OUTERMOST:][-_INNERMOST:]
    if own is not None and not any(call is own for call in kept):
        kept.insert(_OUTERMOST, own)
    for call in kept:
        call[0], call[2] = _clean(call[0], 1000), _clean(call[2], 200)
    return kept, own


def _clean(text: str, most: int) -> str:
    """The begin and the end of a long text, as what can be written as UTF-8."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
