"""Which causes each process of an attempt shows by what it logged about its end. Pure.

A rank is judged by the rule in failures/ends.py, the same one its agent used; agents, the batch
shell and Slurm's daemons by the lines that they are known to write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fsdpkit.failures import exceptions
from fsdpkit.failures.causes import CAUSES, shown_in
from fsdpkit.failures.ends import STOPPED, TERM, VAGUE, ProcessEnd, Where, explain
from fsdpkit.failures.last_words import last_error
from fsdpkit.failures.patterns import Shown, Speaker
from fsdpkit.failures.tracebacks import PrintedException, ended_by, last_unless_it_went_on
from fsdpkit.failures.wording import outside_not_reached
from fsdpkit.reporting.diagnosis.baseline import baseline_of, of_late, without
from fsdpkit.reporting.diagnosis.checks import CHECKS
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import FailureRecord, Level
from fsdpkit.runs.log_ends import LogText
from fsdpkit.runs.outcomes import WARNING
from fsdpkit.runs.printed_words import PrintedText

_MOST_WORDS = 160


class Quote(msgspec.Struct, frozen=True):
    """Where it is written."""

    file: Path | None
    line: int | None
    text: PrintedText

    def place(self, directory: Path) -> str:
        """`ranks/0.err:12`, below the run's directory; empty without a file."""
        if self.file is None:
            return ""
        where = below(self.file, directory)
        return where if self.line is None else f"{where}:{self.line}"


def below(file: Path, directory: Path) -> str:
    """Its path in the directory; of a file elsewhere all of it."""
    return str(file.relative_to(directory) if file.is_relative_to(directory) else file)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that somebody's words show."""

    cause: str
    level: Level
    words: str
    quote: Quote | None = None
    rank: int | None = None
    node: str | None = None
    time_s: float | None = None
    said: str = ""
    """Where `words` are cut: all of them."""
    raised: PrintedException | None = None
    speaker: Speaker = "rank"
    sure: bool = True
    """Whether it is known to be how the process ended, and not only what it said last."""
    judged: bool = False
    """Whether an agent or a shell has judged so, and not by what the process said."""


def findings_of(attempt: AttemptEvidence) -> list[Finding]:
    """All causes shown by the evidence of the attempt, in no order."""
    found = [*_by_scheduler(attempt), *_by_ending(attempt), *_by_facts(attempt)]
    found += [*_by_voices(attempt.voices), *_by_verdict(attempt)]
    return found or list(_by_prelude(attempt))


_OF_OTHERS = re.compile(r"^(?:fsdpkit|srun|salloc|sbatch|slurmstepd\S*|slurmd): |^\++ ")
"""Lines of the job's log that its prelude did not write, or that only show its commands."""
_NOT_OF_SLURM = re.compile(r"^(?!(?:srun|salloc|sbatch|slurmstepd\S*): )|: tasks? [\d,-]+: |\*\*\*")
"""Lines that Slurm did not write, or that only say how tasks and steps ended."""


def _by_prelude(attempt: AttemptEvidence) -> Iterator[Finding]:
    """The last error of a job that failed before there were ranks or agents: what it failed at is
    in the shell's part, whatever tool it calls there. Its last line, if none looks like one."""
    state = attempt.job.state if attempt.job else None
    if state is None or not state.over or attempt.ranks or attempt.verdict is not None:
        return
    if any(voice.kind == "rank" for voice in attempt.voices):
        return
    logs = [log for voice in attempt.voices if voice.kind == "batch" for log in voice.logs]
    ways = (("environment-missing", _OF_OTHERS, True), ("refused", _NOT_OF_SLURM, True))
    for cause, others, like_one in (*ways, ("environment-missing", _OF_OTHERS, False)):
        for log in logs:
            kept = "\n".join("" if others.search(s) else s for s in log.text.split("\n"))
            if (line := last_error(kept, like_one=like_one)) is None:
                continue
            own = cause != "refused" and _by_its_words(line.text, kept[: line.end])
            number = None if log.line is None else log.line + kept.count("\n", 0, line.begin)
            yield Finding(
                cause=own or cause,
                level=Level.OWN,
                words=in_words(line.text),
                quote=Quote(log.file, number, _printable(line.text)),
                speaker="batch",
                sure=False,
            )
            return


_BLOCK_LINES = 8
_OF_FILES = ("cp", "mv", "ln", "cat", "tar", "rsync", "dd", "scp", "gzip", "unzip", "ls", "find")
"""Tools that look for what a person named."""


def _by_its_words(line: str, until: str) -> str | None:
    """The cause that a line of the prelude shows by itself, or with the lines before it."""
    if _names_a_service(until):
        return "no-internet"
    if "no space left on device" in line.lower() or "quota exceeded" in line.lower():
        return "disk-full"
    missed = "No such file or directory" in line and line.partition(": ")[0] in _OF_FILES
    return "data-missing" if missed else None


def _by_verdict(attempt: AttemptEvidence) -> Iterator[Finding]:
    """What the agents decided by, in case its own record is lost."""
    trouble = attempt.verdict.trouble if attempt.verdict is not None else None
    if trouble is None or (told := trouble.failure) is None:
        return
    kind: Speaker = "agent" if told.rank is None else "rank"
    if any(v.message and (v.rank, v.node) == (told.rank, told.name) for v in attempt.voices):
        return
    yield from _by_voice(
        Voice(
            kind=kind,
            node=told.name,
            rank=told.rank,
            status=trouble.status,
            message=LogText(told.words, attempt.files[1], None),
            told=told,
        )
    )


def _by_scheduler(attempt: AttemptEvidence) -> Iterator[Finding]:
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


def _by_ending(attempt: AttemptEvidence) -> Iterator[Finding]:
    """How the batch shell summed it up; without Slurm's word it may have taken srun's end of the
    bystanders for a warning."""
    ending = attempt.ending
    for cause in CAUSES.values():
        if ending is not None and ending.cause in cause.endings:
            guessed = ending.asked_slurm is False or _slurm_says_another(cause.name, attempt)
            yield Finding(
                cause=cause.name,
                level=Level.SUMMED_UP if guessed else Level.OUTSIDE,
                words=_how_cancelled(attempt) if cause.name == "cancelled" else ending.why,
                quote=Quote(attempt.files[0], None, ending.why),
            )


def _slurm_says_another(cause: str, attempt: AttemptEvidence) -> bool:
    """Whether Slurm's state says why the shell, which saw only that the job was ended, was."""
    state = attempt.job.state if attempt.job else None
    if state is None or cause != "cancelled" or attempt.request not in (None, WARNING):
        return False
    return any(state.state in other.states for other in CAUSES.values() if other.name != cause)


def _how_cancelled(attempt: AttemptEvidence) -> str:
    """Of `cancel --save`, what became of the work; nothing where the ranks had no time to stop."""
    verdict, ending = attempt.verdict, attempt.ending
    if attempt.request in (None, WARNING) or ending is None or verdict is None:
        return ""
    if verdict.trouble is None or verdict.trouble.cause != "stopped":
        return ""
    if ending.step is None:
        return " with --save, but it has no checkpoint"
    return f" with --save; its work up to step {ending.step:,} is saved"


def _by_facts(attempt: AttemptEvidence) -> Iterator[Finding]:
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
                time_s=fact.time_s,
                sure=fact.sure,
            )


def _by_voices(voices: Sequence[Voice]) -> Iterator[Finding]:
    """Of each; of a rank that failed by itself without what others printed, too, and got over."""
    found = [[*_by_voice(voice)] for voice in voices]
    struck = [any(one.level > Level.WAITED for one in of_voice) for of_voice in found]
    ranks = [(v, hit) for v, hit in zip(voices, struck, strict=True) if v.kind == "rank"]
    baseline = baseline_of([v for v, hit in ranks if not hit], [v for v, hit in ranks if hit])
    for voice, of_voice, hit in zip(voices, found, struck, strict=True):
        kept = without(voice, baseline) if hit and voice.kind == "rank" else voice
        yield from of_voice if kept == voice else _by_voice(kept)


def _by_voice(voice: Voice) -> Iterator[Finding]:
    told = voice.told
    if told is not None and told.by != "rank" and told.cause in CAUSES:
        yield _on_record(told, voice)
        return
    if voice.kind == "rank":
        yield from _by_rank(voice)
        return
    if voice.status in (STOPPED, TERM):
        return  # stopped on request, or ended with the others
    message = voice.message
    if message is not None and (found := shown_by(message.text, voice.kind)):
        yield _finding(found[0], message, voice)
        return
    if message is None or VAGUE.match(message.text):
        in_logs = [(one, log) for log in voice.logs for one in _in_log(log, voice.kind)]
        yield from (_finding(one, log, voice) for one, log in in_logs)
        if in_logs:
            return
    if message is not None:
        yield _by_status(voice, message)


def _in_log(log: LogText, speaker: Speaker) -> Iterator[Shown]:
    found = shown_by(log.text, speaker)
    yield from found
    if not found and (raised := ended_by(log.text)) is not None:
        yield exceptions.shown(raised)


def _by_rank(voice: Voice) -> Iterator[Finding]:
    """By the rule that its agent decided by (failures/ends.py), and what it said of late."""
    voice = of_late(voice)
    told = voice.message
    recorded = told is not None and not VAGUE.match(told.text)
    texts: dict[Where, LogText | None] = {
        "raised": voice.raised_text,
        "record": told if recorded else None,
        "err": voice.log("err"),
        "out": voice.log("out"),
        "status": told,
    }
    words = {name: text.text for name, text in texts.items() if text is not None}
    end = ProcessEnd(
        status=voice.status,
        record=words.get("record", ""),
        raised=voice.raised,
        err=words.get("err", ""),
        out=words.get("out", ""),
    )
    found = None
    if recorded:  # its agent's reading of what can still be read
        found = explain(msgspec.structs.replace(end, record=""))
    if found is None or not found.shown.sure or found.where == "status":
        found = explain(end)
    said = voice.told is not None and voice.told.sure and voice.told.exception
    if voice.told is not None and said and (found is None or not found.shown.sure):
        yield _on_record(voice.told, voice)
    elif found is not None:
        yield _finding(found.shown, texts[found.where], voice)


def _on_record(told: FailureRecord, voice: Voice) -> Finding:
    """What an agent or a shell has judged."""
    message = voice.message
    return Finding(
        cause=told.cause,
        level=Level(min(max(told.level, Level.LOST_PEER), Level.OUTSIDE)),
        words=f"{': ' * (told.cause == 'cancelled')}{in_words(told.words)}",
        quote=Quote(message.file, message.line, _printable(told.words)) if message else None,
        rank=voice.rank,
        node=voice.node,
        time_s=voice.time_s,
        sure=told.sure,
        judged=told.by != "rank",
        speaker=voice.kind,
    )


def in_a_thread(rank: int, attempt: AttemptEvidence) -> Finding | None:
    """What the last exception shows that a thread or a child of a rank printed, unless the rank
    went on: of a rank that neither failed nor came where the others waited, that may be why. A
    thread that is all a library's, such as a tracker's, and a lost connection explain nothing."""
    voice = next((v for v in attempt.voices if v.kind == "rank" and v.rank == rank), None)
    err = voice.log("err") if voice is not None else None
    raised = last_unless_it_went_on(err.text, of_threads=True) if err is not None else None
    if voice is None or raised is None:
        return None
    shown = msgspec.structs.replace(exceptions.shown(raised), sure=False)
    of_a_library = shown.cause == "exception" and raised.own_frame is None
    return _finding(shown, err, voice) if shown.level >= Level.OWN and not of_a_library else None


def shown_by(text: str, speaker: Speaker) -> tuple[Shown, ...]:
    """The causes that the text of an agent, the shell or Slurm shows, the more particular first."""
    return tuple(
        msgspec.structs.replace(found, cause="no-internet")
        if found.cause == "head-address" and _names_a_service(text[: found.end])
        else found
        for found in shown_in(text, speaker)
    )


def _names_a_service(until: str) -> bool:
    """Whether what could not be reached is, by the lines up to it, outside the cluster."""
    return outside_not_reached("\n".join(until.split("\n")[-_BLOCK_LINES:]))


def _finding(shown: Shown, text: LogText | None, voice: Voice) -> Finding:
    """shown: at a place in `text`, which is None for what only a status tells."""
    line = text.text[shown.begin : shown.end] if text and shown.end else ""
    words = shown.words or (str(shown.raised) if shown.raised else line) or line
    if shown.raised is not None and (frame := shown.raised.own_frame) is not None:
        words = (
            f"{_shortened(in_words(words), 110)} (at {os.path.basename(frame.file)}:{frame.line})"
        )
    if shown.cause == "cancelled":  # its sentence has room for a person's name alone
        words = ""
    quoted = line or (text.text.strip().split("\n")[0] if text else words)
    at = _line(text, shown.begin) if text else None
    other = shown.rank is not None and shown.rank != voice.rank
    return Finding(
        cause=shown.cause,
        level=shown.level,
        words=in_words(words),
        quote=Quote(text.file, at, _printable(quoted)) if text else None,
        rank=shown.rank if other else voice.rank,
        node=None if other else shown.node or voice.node,
        time_s=voice.time_s,
        said=shown.words or line,
        raised=shown.raised,
        speaker=voice.kind,
        sure=shown.sure,
    )


def _line(text: LogText, position: int) -> int | None:
    """An exception in a JSON file is on the line that the file has."""
    if text.file is not None and text.file.suffix == ".json":
        return text.line
    return text.line_at(position)


def _by_status(voice: Voice, message: LogText) -> Finding:
    """For an agent whose message, of an older release, matches no pattern."""
    killed = voice.status == 137 and VAGUE.match(message.text) is not None
    named = (one.name for one in CAUSES.values() if voice.status in one.statuses)
    told = FailureRecord(
        by="agent",
        status=voice.status or 1,
        cause="unknown" if killed else next(named, "exception"),
        level=Level.KILLED if killed else Level.OWN,
        words=message.text.strip().partition("\n")[0],
    )
    return _on_record(told, voice)


def in_words(line: str) -> str:
    """A line of a log without the prefix naming its rank or C++ source line, and not too long."""
    text = _WHO_WROTE_IT.sub("", _printable(line))
    text = _IN_CPP.sub("", text).strip()
    return _shortened(text, _MOST_WORDS)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


_WHO_WROTE_IT = re.compile(r"^(?:\[rank\d+\]:|rank \d+:|fsdpkit: [\w.-]+:|what\(\):)\s*")
_IN_CPP = re.compile(r"\[/\S+\.\w+:\d+\] ")


def _printable(line: str) -> str:
    """Without characters that could control a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line).strip()
