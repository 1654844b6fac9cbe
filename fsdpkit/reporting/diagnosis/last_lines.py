"""Where all ranks of a job stood when it was ended from outside, by what each printed last. Pure.

A job that reached its time limit, was cancelled or hung has no exception. If no rank ever counted a
step, or all said the same last, that is where it stood.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from fsdpkit.config.units import format_bytes
from fsdpkit.failures.last_words import is_noise
from fsdpkit.failures.tracebacks import counts_a_step, is_by_the_way, lines_of, without_numbers
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.findings import Finding, Quote, in_words
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.reporting.words import duration
from fsdpkit.runs.log_ends import LogText
from fsdpkit.runs.printed_when import Ago

_SAY_LITTLE = frozenset({"hang", "time-limit", "cancelled"})
"""Causes that say nothing of what the ranks did."""


def where_all_stood(attempt: AttemptEvidence, cause: str) -> tuple[str, Quote] | None:
    """A clause, and the line that it rests on; None where the cause says enough, or the ranks made
    steps and said different things, unless that was long ago, or nothing."""
    if (staging := attempt.staging) is not None:
        told = f"it was still copying {format_bytes(staging.bytes)} to its nodes"
        return told, Quote(None, None, f"stage.json: {staging.so_far}")
    stepped, silent = _stepped(attempt), _long_silent(attempt)
    if cause not in _SAY_LITTLE or (stepped and cause != "hang" and not silent):
        return None
    ranks = [v for v in attempt.voices if v.kind == "rank" and v.logs]
    said = [(v, last) for v in ranks if (last := last_line(v, "err", "out")) is not None]
    if not said:
        return None
    alike = Counter(without_numbers(last.text) for _, last in said)
    words, count = alike.most_common(1)[0]
    voice, line = next((v, last) for v, last in said if without_numbers(last.text) == words)
    all_alike = 1 < count == len(ranks)
    if stepped and not silent and (not all_alike or counts_a_step(line.text)):
        return None
    whose = "every rank's" if all_alike else f"rank {voice.rank}'s"
    told = f"{whose} last line{_long_ago(voice, line)} was: {in_words(line.text)}"
    quote = Quote(line.file, line.line, in_words(line.text))
    return (told if stepped else f"no rank logged a step, and {told}"), quote


def what_it_got_over(attempt: AttemptEvidence, first: Finding) -> tuple[str, Quote] | None:
    """Of a rank that left with a status alone: the last line that it wrote, long before."""
    voice = next((v for v in attempt.voices if v.kind == "rank" and v.rank == first.rank), None)
    alone = voice is not None and _STATUS_ALONE.match(first.words)
    line = last_line(voice, "err") if voice is not None and alone else None
    if voice is None or line is None or not (when := _long_ago(voice, line)):
        return None
    words = in_words(line.text)
    return f"the last it had said{when} was: {words}", Quote(line.file, line.line, words)


_STATUS_ALONE = re.compile(r"(?:exit status|ended by signal) \d+")
_SOME_TIME_S = 60.0


def _ago(voice: Voice, line: LogText) -> Ago | None:
    if voice.when is None or voice.rank is None or line.file is None:
        return None
    return voice.when.ago(voice.rank, line.file, line.begin + 1)


def _long_ago(voice: Voice, line: LogText) -> str:
    """How long before the end it was written, between commas; empty if unknown, or of late."""
    ago = _ago(voice, line)
    if ago is None or ago.seconds < _SOME_TIME_S:
        return ""
    steps = f" and {ago.steps:,} step{'s' * (ago.steps > 1)}" if ago.steps else ""
    return f", {duration(ago.seconds)}{steps} before the end,"


def _long_silent(attempt: AttemptEvidence) -> bool:
    """Whether no rank has said anything or made a step for half of the time."""
    ranks = [voice for voice in attempt.voices if voice.kind == "rank"]
    seen_s = max((voice.when.seen_s for voice in ranks if voice.when is not None), default=0.0)
    last = [(voice, _last_of(log)) for voice in ranks for log in voice.logs]
    agos = [_ago(voice, line) for voice, line in last if line is not None]
    long_s = max(_SOME_TIME_S, seen_s)
    return bool(agos) and all(a and not a.steps and 2 * a.seconds >= long_s for a in agos)


def _stepped(attempt: AttemptEvidence) -> bool:
    """Whether a step was made, or one may have been logged in what was not read."""
    trouble, ending = attempt.verdict and attempt.verdict.trouble, attempt.ending
    if (trouble and (trouble.step or 0) > 0) or (ending and ending.step):
        return True
    logs = [log for v in attempt.voices if v.kind == "rank" for log in v.logs]
    return any(log.line != 1 or _counts(log.text) for log in logs)


def _counts(text: str) -> bool:
    """A warning that names a step counts none."""
    return any(counts_a_step(line.text) for line in lines_of(text) if not is_by_the_way(line.text))


def last_line(voice: Voice, *kinds: Literal["err", "out"]) -> LogText | None:
    """The last line that says anything, of the first of these logs that has one."""
    logs = filter(None, map(voice.log, kinds))
    return next(filter(None, map(_last_of, logs)), None)


_OF_THE_END = re.compile(
    r"^Traceback \(|^terminate called|^\[E\d{4} |^Fatal Python error|SIGTERM|[Ss]ignal:? 15|"
    r"^KeyboardInterrupt|^Terminated|Received signal"
)
"""With which a process begins to tell that it was asked to end, or gave up."""


def _last_of(log: LogText) -> LogText | None:
    """The last line before it was ended; what it says of that is no place where it stood."""
    lines = [line for line in lines_of(log.text) if line.text.strip()]
    ended = [place for place, line in enumerate(lines) if _OF_THE_END.search(line.text)]
    went_on = [place for place, line in enumerate(lines) if counts_a_step(line.text)]
    of_the_end = [place for place in ended if place > max(went_on, default=-1)]
    for line in reversed(lines[: of_the_end[0]] if of_the_end else lines):
        if "%|" in line.text or not is_noise(line.text):
            begin = log.begin + log.size(line.begin)
            return LogText(line.text.strip(), log.file, log.line_at(line.begin), begin)
    return None
