"""The last lines of a process that left by a status of its own: perhaps they say why."""

from __future__ import annotations

import re

import msgspec

from fsdpkit.failures import exceptions
from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.failures.tracebacks import (
    PrintedException,
    TracebackLine,
    behind_tracebacks,
    is_by_the_way,
    lines_of,
)

LAST_LINES = 15
_NOISE = re.compile(
    r"Warning\b|^\[W\d|^W\d{4} |resource_tracker|^wandb: |NCCL INFO|^\W*$|^  warnings\.warn|\d+%\||"
    r"destroy_process_group|^Exception ignored|leaked semaphore|^\s{2,}\S|^\[I\d|^I\d{4} |"
    r"^nanobind: |^ - (?:leaked|\.\.\. skipped) |^See https?://"
)


def is_noise(text: str) -> bool:
    """Whether a line is one that programs print at any time, and that explains nothing."""
    return bool(_NOISE.search(text))


def last_words(text: str, left: Pattern) -> Shown | None:
    """Of the lines before the very last only those that speak of an error or of leaving count.
    left: of words that show no cause."""
    lines, offset = _last_lines(text)
    said = [line for line in reversed(lines) if not is_by_the_way(line.text)]
    newest = next((line for line in said if tells_an_end(line.text)), None)
    for line in said:
        if (found := _shown(line, last=line is lines[-1])) is not None:
            return found.moved(offset)
    if said and newest is said[0]:
        return Shown("exception", left, newest.begin, newest.end, sure=False).moved(offset)
    return None


def _shown(line: TracebackLine, *, last: bool) -> Shown | None:
    ends = tells_an_end(line.text)
    if not (ends or last):
        return None
    raised = PrintedException(type="", message=line.text, begin=line.begin, end=line.end)
    found = exceptions.shown(raised)
    if found.cause == "nan-loss" and not ends:
        return None
    if found.cause not in ("exception", "hang", "connection-reset"):
        return msgspec.structs.replace(found, raised=None, sure=False)
    return None


_OF_HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1"
_HYDRA = Pattern((), "Hydra, of a configuration that it cannot put together")


def refused_by_hydra(text: str) -> Shown | None:
    """Hydra prints no traceback of its own refusals, only of what the program raised."""
    lines, offset = _last_lines(text)
    if not lines or not lines[-1].text.startswith(_OF_HYDRA):
        return None
    by_the_way = [place for place, line in enumerate(lines) if is_by_the_way(line.text)]
    told = lines[by_the_way[-1] + 1 if by_the_way else 0 : -1]
    first = next((line for line in told if looks_like_an_error(line.text)), None)
    return Shown("settings", _HYDRA, first.begin, first.end).moved(offset) if first else None


def last_line(text: str) -> tuple[TracebackLine, TracebackLine | None] | None:
    """The last that was written, and the last that looks like an error, if that is another."""
    lines, offset = _last_lines(text)
    lines = [
        msgspec.structs.replace(line, begin=line.begin + offset, end=line.end + offset)
        for line in lines
        if not is_by_the_way(line.text)
    ]
    like = [line for line in lines if looks_like_an_error(line.text)]
    if not lines:
        return None
    return lines[-1], like[-1] if like and like[-1] is not lines[-1] else None


def _last_lines(text: str) -> tuple[list[TracebackLine], int]:
    """Those behind all tracebacks, without noise, and where in the text they begin."""
    later = behind_tracebacks(text)
    lines = [line for line in lines_of(later) if not _NOISE.search(line.text)]
    return lines[-LAST_LINES:], len(text) - len(later)


_LEAVES = re.compile(r"(?i)\b(?:stop|exit|abort|terminat|quit|leav|giv\w+ up|diverge)")


def tells_an_end(text: str) -> bool:
    return looks_like_an_error(text) or bool(_LEAVES.search(text))


_LOOKS_LIKE_AN_ERROR = re.compile(
    r"(?i)error|fail|fatal|abort|panic|exception|can(?:no|')t\b|could not|invalid|denied|not found|"
    r"no such|unable|unbound|conflict|refused|exceeded|fehl(?:er|geschlagen)|erreur|impossible|"
    r"verweigert|refusé"
)


def looks_like_an_error(text: str) -> bool:
    return bool(_LOOKS_LIKE_AN_ERROR.search(text))


def last_error(text: str, *, like_one: bool = True) -> TracebackLine | None:
    """The last line of a text that looks like an error and not like what followed from one.
    like_one: False for the very last line, if none looks like one."""
    lines = [line for line in lines_of(text) if not _NOISE.search(line.text)]
    lines = [line for line in lines if not is_by_the_way(line.text)][-LAST_LINES:]
    for line in reversed(lines):
        if looks_like_an_error(line.text) and not _FOLLOWED.search(line.text):
            return line
    return lines[-1] if lines and not like_one else None


_FOLLOWED = re.compile(
    r"(?i)^\W*(?:to \w+ |try |run |you can |consider )|"
    r"previous errors?\b|vorheriger Fehler|erreurs? précédente"
)
