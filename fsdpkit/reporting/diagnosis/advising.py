"""What of the evidence decides about the advice (failures/advice/): who else failed like this, what
stands before the words, what the job has set. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from fsdpkit.config.retry import Retry
from fsdpkit.failures.advice.facts import Facts, Scope
from fsdpkit.failures.tracebacks import (
    PrintedException,
    lines_of,
    names_an_error,
    without_numbers,
)
from fsdpkit.failures.wording import was_taken
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence, Evidence
from fsdpkit.reporting.diagnosis.findings import Finding
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.reporting.printable import one_line
from fsdpkit.runs.failures import Level

_LINES_BEFORE = 100
_LAST_LINES = 3
"""Of each rank, where the job ended from outside."""
_MOST_CHARACTERS = 16384


def facts_of(
    first: Finding, findings: Sequence[Finding], attempt: AttemptEvidence, evidence: Evidence
) -> Facts:
    raised = first.raised
    own = raised.own_frame if raised is not None else None
    voice = next((v for v in attempt.voices if v.kind == "rank" and v.rank == first.rank), None)
    said = _said(first)[:_MOST_CHARACTERS]
    return Facts(
        cause=first.cause,
        run=evidence.run,
        said=said,
        around=_around(first, voice, attempt)[-_MOST_CHARACTERS:],
        speaker=first.speaker,
        killed=first.level == Level.KILLED,
        scope=_scope(first, findings, attempt, evidence.settings.get("resources.nodes")),
        apart=_apart(first, findings),
        rank=first.rank,
        node=first.node,
        frames=raised.frames if raised is not None else (),
        place=str(own).partition(" in ")[0] if own is not None else None,
        earlier=_earlier(said, voice),
        source=_source(raised, voice),
        settings=_defaults() | dict(evidence.settings),
        reads_training=evidence.reads_training,
        taken=raised is not None and was_taken(raised),
        staging=attempt.staging is not None,
    )


def _defaults() -> dict[str, object]:
    return {f"retry.{key}": value for key, value in msgspec.structs.asdict(Retry()).items()}


def _said(first: Finding) -> str:
    if first.raised is None:
        quote = first.quote.text if first.quote is not None else ""
        return "\n".join(dict.fromkeys(filter(None, (first.words, first.said, quote))))
    chain = [first.raised]
    while chain[-1].meant and chain[-1].before is not None:
        chain.append(chain[-1].before)
    told = (f"{one.type}: {one.message}".removeprefix(": ") for one in chain)
    return "\n".join([*told, first.words])


def _around(first: Finding, voice: Voice | None, attempt: AttemptEvidence) -> str:
    """The last lines of whoever said it, or those with which most ranks ended."""
    if voice is not None:
        most = _LAST_LINES if first.cause == "hang" else _LINES_BEFORE
        logs = [log for log in (voice.log("err"), voice.log("out")) if log is not None]
        return "\n".join(line for log in logs for line in log.text.rstrip().split("\n")[-most:])
    if first.speaker == "rank" and first.level != Level.OUTSIDE:
        return first.raised.in_front if first.raised is not None else ""
    batch = [log for v in attempt.voices if v.kind == "batch" for log in v.logs]
    lines = [line for log in batch for line in log.text.split("\n")[-_LINES_BEFORE:]]
    return "\n".join([*lines, *_last_of_most(attempt)])


def _last_of_most(attempt: AttemptEvidence) -> list[str]:
    """Of the last lines of each rank those that half of the ranks end with, but for numbers."""
    ranks = [voice for voice in attempt.voices if voice.kind == "rank"]
    ended, as_written = Counter[str](), dict[str, str]()
    for voice in ranks:
        texts = [log.text.rstrip().split("\n")[-_LAST_LINES:] for log in voice.logs]
        written = {without_numbers(line): line for text in texts for line in text}
        ended.update(written.keys())
        as_written |= written
    return [as_written[line] for line, count in ended.items() if 2 * count >= len(ranks)]


def _scope(
    first: Finding, findings: Sequence[Finding], attempt: AttemptEvidence, asked: object
) -> Scope:
    """By those that failed for the same cause in words of their own."""
    if first.node is None:
        return "job"
    alike = [f for f in findings if f.cause == first.cause and f.level >= Level.OWN and f.node]
    nodes = {f.node for f in alike} | {first.node}
    there = {v.node for v in attempt.voices if v.node} | nodes
    if max(len(there), attempt.nodes, asked if isinstance(asked, int) else 0) < 2:
        return "only-node"
    if len(nodes) > 1:
        return "all"
    ranks = {f.rank for f in alike if f.node == first.node}
    others = {v.rank for v in attempt.voices if v.kind == "rank" and v.node == first.node}
    return "rank" if first.rank is not None and not 1 < len(ranks) == len(others) else "node"


def _apart(first: Finding, findings: Sequence[Finding]) -> bool:
    """Whether ranks elsewhere came further, and so lost peers or waited."""
    if first.speaker != "rank":
        return True
    elsewhere = (f for f in findings if f.node not in (None, first.node))
    return any(f.level <= Level.WAITED for f in elsewhere)


def _earlier(said: str, voice: Voice | None) -> str | None:
    err = voice.log("err") if voice is not None else None
    lines = [line.text for line in lines_of(err.text)] if err else []
    told = [words for words in lines if names_an_error(words) and words not in said]
    return one_line(told[-1]).strip() if told else None


def _source(raised: PrintedException | None, voice: Voice | None) -> str | None:
    """The line of the script that raised it, as it was recorded or as the traceback prints it."""
    if raised is None or raised.message:
        return None
    if raised.source:
        return one_line(raised.source)
    err = voice.log("err") if voice is not None else None
    if not raised.frames or err is None:
        return None
    frame = raised.frames[-1]
    _, _, behind = err.text.rpartition(f'File "{frame.file}", line {frame.line}, in ')
    lines = behind.split("\n", 2)
    if len(lines) < 2:
        return None
    return one_line(re.sub(r"^ ?\[rank\d+\]: ?", "", lines[1])).strip() or None
