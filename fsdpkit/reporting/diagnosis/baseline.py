"""What a rank said that explains nothing, since ranks that did not fail said it as well, or since
it went on for many steps itself. Pure.

Every log begins with a dozen warnings that look like errors. Those that a rank got over which
merely lost its peers, or was ended with them, are no reason for another one to fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from fsdpkit.failures.ends import STOPPED, TERM
from fsdpkit.failures.tracebacks import TracebackLine, lines_of, without_numbers
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.log_ends import LogText

_SILENT = (None, TERM, STOPPED)


def baseline_of(bystanders: Sequence[Voice], failed: Sequence[Voice]) -> frozenset[str]:
    """The lines, without their numbers, that ranks printed which were struck by nothing themselves:
    of one that was ended all but its last, for what it said last it may not have got over; none if
    one that failed said the same last."""
    last_words = {_last(log) for voice in failed for log in voice.logs}
    return frozenset(
        without_numbers(line.text)
        for voice in bystanders
        for log in voice.logs
        if voice.status not in _SILENT or _last(log) not in last_words
        for line in _got_over(log.text, voice.status)
    )


def _last(log: LogText) -> str:
    return next(
        (without_numbers(text) for text in reversed(log.text.split("\n")) if text.strip()), ""
    )


_IN_THE_END = ("Traceback (", "terminate called", "[E1", "[E0", "Fatal Python error")
"""With which a process begins to tell how it lost its peers."""


def _got_over(text: str, status: int | None) -> Iterator[TracebackLine]:
    lines = [line for line in lines_of(text) if line.text.strip()]
    before = [*itertools.takewhile(lambda line: not line.text.startswith(_IN_THE_END), lines)]
    return filter(_is_plain, before[:-1] if status in _SILENT and before == lines else before)


def _is_plain(line: TracebackLine) -> bool:
    """Whether it is no part of a traceback."""
    return not line.marked and bool(line.text.strip()) and not line.text[0].isspace()


def without(voice: Voice, baseline: frozenset[str]) -> Voice:
    """The same rank with blanks in place of such lines, so that all others stay where they are."""
    logs = tuple(msgspec.structs.replace(log, text=_blanked(log, baseline)) for log in voice.logs)
    return msgspec.structs.replace(voice, logs=logs)


def _blanked(log: LogText, baseline: frozenset[str]) -> str:
    parts, end = [], 0
    for line in lines_of(log.text):
        if _is_plain(line) and without_numbers(line.text) in baseline:
            parts += [log.text[end : line.begin], " " * (line.end - line.begin)]
            end = line.end
    return "".join([*parts, log.text[end:]])


# What a rank got over itself


def of_late(voice: Voice) -> Voice:
    """The same rank with blanks in place of what it said long before its end, many steps ago."""
    if voice.when is None or voice.rank is None:
        return voice
    logs = tuple(voice.when.of_late(voice.rank, log) for log in voice.logs)
    return voice if logs == voice.logs else msgspec.structs.replace(voice, logs=logs)
