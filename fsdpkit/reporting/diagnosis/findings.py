"""Which causes each process of an attempt shows by what it said of its end. Pure.

A process is listened to in this order: the exception that ended it, with its traceback; the end of
its log, where it left no words of its own; its exit status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from fsdpkit.failures.causes import CAUSES
from fsdpkit.failures.patterns import Level, Sign, Speaker
from fsdpkit.launching.policy import follows
from fsdpkit.reporting.diagnosis.checks import CHECKS
from fsdpkit.reporting.diagnosis.evidence import Attempt
from fsdpkit.reporting.diagnosis.sources import WHO, Voice
from fsdpkit.runs.log_ends import Text

_MOST_WORDS = 160
_SHORT = 4096


class Quote(msgspec.Struct, frozen=True):
    """Where it is written."""

    file: Path | None
    line: int | None
    text: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that somebody's words show."""

    cause: str
    level: Level
    words: str
    quote: Quote | None = None
    rank: int | None = None
    node: str | None = None
    time_s: float | None = None
    action: str | None = None


def findings_of(attempt: Attempt) -> list[Finding]:
    """All causes that anything known of the attempt shows, in no order."""
    found = [*_by_scheduler(attempt), *_by_ending(attempt), *_by_facts(attempt)]
    for voice in attempt.voices:
        found += _by_voice(voice)
    if (verdict := attempt.verdict) is not None and verdict.trouble is not None:
        told = _told_by_verdict(verdict.trouble.message, verdict.trouble.status, attempt.files[1])
        whose = (told.rank, told.node)
        if not any(v.message and (v.rank, v.node) == whose for v in attempt.voices):
            found += _by_voice(told)
    return found


def _told_by_verdict(message: str, status: int, file: Path | None) -> Voice:
    """The agents' verdict as one more voice, for where their records are lost."""
    who = WHO.match(message)
    rank = int(who["rank"]) if who and who["rank"] else None
    text = who["told"] if who else message
    return Voice(
        kind="agent" if rank is None else "rank",
        node=who["node"] if who else None,
        rank=rank,
        status=status,
        message=Text(text, file, None),
    )


def _by_scheduler(attempt: Attempt) -> Iterator[Finding]:
    job = attempt.job
    if job is None or job.state is None:
        return
    state = job.state
    for cause in CAUSES.values():
        if state.state in cause.states:
            by = f" by {state.cancelled_by}" if state.cancelled_by else ""
            words = by if cause.name == "cancelled" else f"Slurm's state is {state.state}"
            quote = Quote(None, None, f"{state.source}: job {job.id} {state.describe()}")
            yield Finding(cause=cause.name, level=Level.OUTSIDE, words=words, quote=quote)


def _by_ending(attempt: Attempt) -> Iterator[Finding]:
    """How the batch shell summed it up; without Slurm's word it may have taken srun's end of the
    bystanders for a warning."""
    ending = attempt.ending
    for cause in CAUSES.values():
        if ending is not None and ending.cause in cause.endings:
            asked = "Slurm warned of the end" not in ending.why
            yield Finding(
                cause=cause.name,
                level=Level.OUTSIDE if asked else Level.SUMMED_UP,
                words="" if cause.name == "cancelled" else ending.why,
                quote=Quote(attempt.files[0], None, ending.why),
            )


def _by_facts(attempt: Attempt) -> Iterator[Finding]:
    for cause, check in CHECKS.items():
        for fact in check(attempt):
            seen = fact.seen_in
            yield Finding(
                cause=cause,
                level=fact.level,
                words=fact.words,
                quote=Quote(seen.file, seen.line, _printable(seen.text.split("\n")[0]))
                if seen
                else None,
                rank=fact.rank,
                node=fact.node,
            )


def _by_voice(voice: Voice) -> Iterator[Finding]:
    """Its last words count; without words of its own, what its log shows; else its status."""
    if voice.status == 75 or voice.status == 143:
        return  # stopped as it was asked, or ended with the others
    for text in filter(None, (voice.message, voice.traceback)):
        if shown := shown_by(_unindented(text.text), voice.kind):
            yield _finding(shown[0], text, voice)
            return
    message = voice.message
    says_nothing = message is None or _VAGUE.match(message.text) is not None
    if says_nothing and (voice.kind != "rank" or voice.status is not None or _raised(voice)):
        found = [(shown, log) for log in voice.logs for shown in _in_log(log, voice)]
        yield from (_finding(shown, log, voice) for shown, log in found)
        if found:
            return
    if voice.status is None and message is None:
        return
    yield from _by_status(voice)


_VAGUE = re.compile(r"exit status \d+$|ended by signal \d+|ended by SIG")
"""What an agent says of a rank that left no exception."""
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$")
_RAISED = Sign((), "Python, as the last line of a traceback")


def _raised(voice: Voice) -> bool:
    """Whether a rank of which nobody says how it ended has an exception as its last words."""
    return any(_last_exception(log) is not None for log in voice.logs)


def _last_exception(log: Text) -> tuple[int, int] | None:
    """Where the last line of the last traceback is, if hardly anything comes behind it."""
    lines = log.text.rstrip().split("\n")
    begin = len(log.text.rstrip())
    for line in reversed(lines[-20:]):
        begin -= len(line)
        if _EXCEPTION.match(line):
            return begin, begin + len(line)
        begin -= 1
    return None


class Shown(msgspec.Struct, frozen=True):
    """A place in a text that shows a cause."""

    cause: str
    sign: Sign
    begin: int
    end: int
    node: str | None = None

    def moved(self, by: int) -> Shown:
        return msgspec.structs.replace(self, begin=self.begin + by, end=self.end + by)


def shown_by(text: str, speaker: Speaker) -> tuple[Shown, ...]:
    """The causes that a text shows, the more particular first: for each the first place."""
    # The same few words come from a thousand ranks; the ends of logs all differ, and are large.
    return _known(text, speaker) if len(text) <= _SHORT else tuple(_search(text, speaker))


@lru_cache(maxsize=4096)
def _known(text: str, speaker: Speaker) -> tuple[Shown, ...]:
    return tuple(_search(text, speaker))


def _search(text: str, speaker: Speaker) -> Iterator[Shown]:
    for cause in CAUSES.values():
        for sign in cause.signs:
            if speaker in sign.by and (place := sign.found_in(text)):
                yield Shown(cause.name, sign, *place)
                break


def _in_log(log: Text, voice: Voice) -> Iterator[Shown]:
    """What a log shows: of a process that raised, what the exception shows; of a rank nothing else,
    for ranks also write of what they got over."""
    place = _last_exception(log)
    if place is None or voice.kind != "rank":
        yield from shown_by(log.text, voice.kind)
    if place is not None:
        begin, end = place
        chain = _unindented(log.text[_first_of_chain(log.text, begin) :])
        start = len(log.text) - len(chain)
        last, all_of_them = shown_by(log.text[begin:], voice.kind), shown_by(chain, voice.kind)
        if last:
            yield last[0].moved(begin)
        elif all_of_them:
            yield all_of_them[0].moved(start)
        else:
            yield Shown("exception", _RAISED, begin, end)


_CHAINED = ("During handling of the above exception", "the direct cause of the following exception")


def _first_of_chain(text: str, last: int) -> int:
    """Where the first traceback begins of those that led to the exception at `last`."""
    begin = text.rfind("Traceback (most recent", 0, last)
    while any(words in text[max(0, begin - 200) : begin] for words in _CHAINED):
        begin = text.rfind("Traceback (most recent", 0, begin)
    return max(begin, 0)


def _unindented(text: str) -> str:
    """A traceback without its frames, whose source lines quote any words; as long as before."""
    return _FRAMES.sub(lambda match: " " * len(match[0]), text)


_FRAMES = re.compile(r"^(?:\[rank\d+\]: )?[ \t]{2,}.*$", re.MULTILINE)


def _finding(shown: Shown, text: Text, voice: Voice) -> Finding:
    line = text.text[shown.begin : shown.end]
    return Finding(
        cause=shown.cause,
        level=shown.sign.level,
        words=in_words(line),
        quote=Quote(text.file, _line(text, shown.begin), _printable(line)),
        rank=voice.rank,
        node=shown.node or voice.node,
        time_s=voice.time_s,
        action=shown.sign.action,
    )


def _line(text: Text, position: int) -> int | None:
    """An exception in a JSON file is on the line that the file has."""
    if text.file is not None and text.file.suffix == ".json":
        return text.line
    return text.line_at(position)


def _by_status(voice: Voice) -> Iterator[Finding]:
    message = voice.message or Text(f"exit status {voice.status}", None, None)
    cause, level = "exception", Level.OWN
    if follows(message.text):
        cause, level = "connection-reset", Level.LOST_PEER
    if voice.status == 137 and _VAGUE.match(message.text):
        cause, level = "unknown", Level.KILLED
    for one in CAUSES.values():
        if voice.status in one.statuses:
            cause = one.name
    line = message.text.strip().split("\n")[0]
    yield Finding(
        cause=cause,
        level=level,
        words=in_words(line),
        quote=Quote(message.file, message.line, _printable(line)),
        rank=voice.rank,
        node=voice.node,
        time_s=voice.time_s,
    )


def in_words(line: str) -> str:
    """A line of a log without what says who or which line of C++ wrote it, and not too long."""
    text = _WHO_WROTE_IT.sub("", _printable(line))
    text = _IN_CPP.sub("", text.removeprefix("check before training failed: ")).strip()
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1].rstrip() + "…"


_WHO_WROTE_IT = re.compile(r"^(?:\[rank\d+\]:|rank \d+:|fsdpkit: [\w.-]+:|what\(\):)\s*")
_IN_CPP = re.compile(r"\[/\S+\.\w+:\d+\] ")


def _printable(line: str) -> str:
    """Without what could take over a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line).strip()
