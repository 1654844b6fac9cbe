"""How programs in other languages than Python print the error that ended them, and MPI libraries.

Each has a headline and a mark that only an end has: a stack of goroutines, R's `Execution halted`.
Without the mark, or where the process goes on behind it, the headline proves nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsdpkit.failures.tracebacks import (
    PrintedException,
    TracebackLine,
    goes_on,
    is_aftermath,
    lines_of,
)

_MOST_LINES = 60
_MOST_OTHERS = 3
"""Lines of other processes that may stand behind the end."""


class _Language(NamedTuple):
    signs: tuple[str, ...]
    """Words of the mark: where none is in a text, no line of it needs to be looked at."""
    headline: re.Pattern[str]
    """Of an error; group `message`, and `type` where the language prints one."""
    mark: re.Pattern[str]
    """On this line or a later one: the process was ended by it."""
    behind: re.Pattern[str]
    """What else may follow, besides what any process prints that is on its way out."""


_GO = _Language(
    ("goroutine ", "runtime stack:"),
    re.compile(r"^(?P<message>(?:panic|fatal error|runtime): .+)"),
    re.compile(r"^goroutine \d+ |^runtime stack:"),
    re.compile(r"^[\w./*()-]+\(.*\)$|^created by |^exit status \d+|^\[signal |^r\w+ +0x"),
)
_RUST = _Language(
    ("panicked at ",),
    re.compile(r"^(?P<message>thread '.*' (?:\(\d+\) )?panicked at .+)"),
    re.compile(r"^thread '.*' (?:\(\d+\) )?panicked at "),
    re.compile(r"^note: |^stack backtrace:|^ +\d+: "),
)
_JULIA = _Language(
    ("Stacktrace:",),
    re.compile(r"^ERROR: (?:LoadError: )*(?:(?P<type>[A-Z]\w*): |(?=\S))(?P<message>.+)"),
    re.compile(r"^Stacktrace:"),
    re.compile(r"^in expression starting at |^caused by: "),
)
_R = _Language(
    ("Execution halted", "Ausführung angehalten", "Exécution arrêtée"),
    re.compile(r"^(?P<message>(?:Error|Fehler|Erreur)(?: in .+ : ?.*|: .+))"),
    re.compile(r"^Execution halted|^Ausführung angehalten|^Exécution arrêtée"),
    re.compile(r"^(?:Calls|In addition|Warning messages?): |^\d: "),
)
_FORTRAN = _Language(
    ("Fortran runtime error: ",),
    re.compile(r"^(?P<message>Fortran runtime error: .+)"),
    re.compile(r"^Fortran runtime error: "),
    re.compile(r"^Error termination|^#\d+ "),
)
_JAVA = _Language(
    ('Exception in thread "main" ',),
    re.compile(
        r"^Exception in thread \"main\" (?P<type>[\w.$]+(?:Error|Exception))(?:: (?P<message>.*))?$"
    ),
    re.compile(r"^\tat |^Exception in thread \"main\" "),
    re.compile(r"^Caused by: |^\tat |^\t\.\.\. \d+ more"),
)
_MPICH = _Language(
    ("Abort(",),
    re.compile(r"^(?P<message>Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): .+)"),
    re.compile(r"^Abort\(\d+\) on node |^[A-Za-z_]\w+\(\d+\)\.*: "),
    re.compile(r"^[A-Za-z_]\w+\(.*\): "),
)
_OPEN_MPI = _Language(
    ("MPI_ERRORS_ARE_FATAL",),
    re.compile(r"^\[\S+:\d+\] \*\*\* (?P<message>MPI_ERR_\w+: .+)"),
    re.compile(r"^\[\S+:\d+\] \*\*\* MPI_ERRORS_ARE_FATAL"),
    re.compile(r"^\[\S+:\d+\] \*\*\*"),
)
_LANGUAGES = (_GO, _RUST, _JULIA, _R, _FORTRAN, _JAVA, _MPICH, _OPEN_MPI)


def ended_by(text: str) -> PrintedException | None:
    """The error of another language that ended the process which wrote the text."""
    spoken = [one for one in _LANGUAGES if any(sign in text for sign in one.signs)]
    if not spoken:
        return None
    lines = [line for line in lines_of(text) if line.text.strip()]
    found = (_one(language, lines) for language in spoken)
    return max(filter(None, found), key=lambda raised: raised.begin, default=None)


def _one(language: _Language, lines: list[TracebackLine]) -> PrintedException | None:
    places = [place for place, line in enumerate(lines) if language.headline.match(line.text)]
    if not places:
        return None
    first = _first_of_block(places)
    block = [line.text for line in lines[first : first + _MOST_LINES]]
    marked = [at for at, text in enumerate(block) if language.mark.match(text)]
    if not marked:
        return None
    last = marked[-1] + (1 if block[marked[-1]].endswith(":") else 0)
    behind = [line.text for line in lines[first + last + 1 :]]
    others = [text for text in behind if not _belongs(language, text)]
    if len(others) > _MOST_OTHERS or any(map(goes_on, others)):
        return None
    match = language.headline.match(block[0])
    assert match is not None
    named = match.groupdict()
    kind, words = named.get("type") or "", named["message"] or ""
    if not kind and (called := re.match(r"^([A-Z]\w+Error)\(\)$", words)):
        kind, words = called[1], "()"
    said = block[1 : marked[0]] if marked[0] else block[1 : last + 1]
    message = "\n".join([words, *(text.strip() for text in said)]).strip()
    return PrintedException(
        type=kind,
        message=message,
        begin=lines[first].begin,
        end=lines[first].end,
    )


def _first_of_block(places: list[int]) -> int:
    """Of the last headlines that follow one another directly, the first."""
    first = places[-1]
    for place in reversed(places[:-1]):
        if place != first - 1:
            break
        first = place
    return first


def _belongs(language: _Language, text: str) -> bool:
    return bool(language.behind.match(text)) or is_aftermath(text)
