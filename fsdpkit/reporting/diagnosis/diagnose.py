"""Why a run ended as it did: the root cause, which process failed first, and what to do. Pure.

Each process of an attempt that logged something about its end gets the causes that match its text
(failures/causes.py). Those of the highest level count, and among them the first by time, so a rank
that only lost its peer is never the cause while any process has one. If nothing explains the end,
it is `unknown`, with what was looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from fsdpkit.errors import NotFoundError
from fsdpkit.failures.advice.facts import Facts, Scope
from fsdpkit.failures.advice.table import advise
from fsdpkit.failures.causes import CAUSES, page_of
from fsdpkit.reporting import pending
from fsdpkit.reporting.diagnosis.advising import facts_of
from fsdpkit.reporting.diagnosis.evidence import (
    AttemptEvidence,
    Evidence,
    JobEvidence,
    TaskEvidence,
)
from fsdpkit.reporting.diagnosis.findings import Finding, Quote, below, findings_of, in_words
from fsdpkit.reporting.diagnosis.last_lines import what_it_got_over, where_all_stood
from fsdpkit.reporting.diagnosis.root import order, root
from fsdpkit.reporting.diagnosis.stalled import stalled_ranks
from fsdpkit.reporting.words import moment
from fsdpkit.runs.failures import Level
from fsdpkit.runs.outcomes import WARNING, IdleGpus
from fsdpkit.runs.printed_words import PrintedText

_MOST_FOLLOW_ON = 20


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of a run."""

    schema: Literal["fsdpkit.diagnose/1"] = "fsdpkit.diagnose/1"
    cause: str
    """One of causes.CAUSES."""
    sentence: PrintedText
    rank: int | None = None
    node: str | None = None
    attempt: int | None = None
    task: int | None = None
    """Of an array: the task that this is about, the first that failed."""
    sharing: int | None = None
    """Of an array: how many tasks, this one included, ended for the same cause."""
    unread_tasks: int = 0
    """Of an array: how many tasks that may have failed were not looked at."""
    evidence: tuple[Quote, ...] = ()
    action: str | None = None
    again: str | None = None
    """Whether another start would help, and why, as far as that is known."""
    also: tuple[PrintedText, ...] = ()
    """Failures of other ranks and nodes that have causes of their own, a line each."""
    follow_on: tuple[PrintedText, ...] = ()
    """Failures that only followed from it, a line each."""
    earlier: tuple[PrintedText, ...] = ()
    """What attempts before this one ended for, or launches within it, a line each; and that its
    script began at its beginning again, where that is known."""
    looked_at: tuple[str, ...] = ()
    """What was read, where that did not suffice; and what could not be read."""
    page: str | None = None
    """The page on this cause, as a path in the repository; `fsdpkit diagnose --page` prints it."""


def diagnose(evidence: Evidence, attempt: int | None = None) -> Diagnosis:
    """The root cause of a run that ended badly, or its state. For an array: of the first task that
    failed. attempt: only this one, whatever followed. Raises NotFoundError if it is not in the
    evidence."""
    found = _diagnosed(evidence, attempt)
    return msgspec.structs.replace(found, page=page_of(found.cause))


def _diagnosed(evidence: Evidence, attempt: int | None) -> Diagnosis:
    tasks = evidence.tasks
    if attempt is not None:
        tasks = tuple(cut for task in tasks if (cut := _until(task, attempt)) is not None)
        if not tasks:
            raise NotFoundError(f"run {evidence.run} has no attempt {attempt}")
    read = [_of_task(task, evidence) for task in tasks if task.attempts is not None]
    if not read:
        return Diagnosis(cause="done", sentence=CAUSES["done"].sentence)
    chosen = min(read, key=lambda one: _WORST_FIRST.get(one.cause, 0))
    if len(tasks) == 1:
        return chosen
    not_read = [task for task in tasks if task.attempts is None and not _succeeded(task.job)]
    sharing = sum(one.cause == chosen.cause for one in read)
    return msgspec.structs.replace(chosen, sharing=sharing, unread_tasks=len(not_read))


_WORST_FIRST = {"running": 1, "pending": 2, "done": 3}
"""Which task of an array is told of; all failures are as bad."""


def _until(task: TaskEvidence, number: int) -> TaskEvidence | None:
    """The task as if it had ended with this attempt."""
    attempts = task.attempts or ()
    for place, attempt in enumerate(attempts):
        if attempt.number == number:
            newest = place + 1 == len(attempts)
            job = task.job if newest else attempt.job
            return msgspec.structs.replace(task, attempts=attempts[: place + 1], job=job)
    return None


def _succeeded(job: JobEvidence | None) -> bool:
    return job is not None and job.state is not None and job.state.succeeded


def _of_task(task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    found = _of_training(task, evidence)
    if task.number is not None and found.action is not None:
        of_one = re.compile(rf"\bfsdpkit (?:logs|stacks) {re.escape(evidence.run)}\b")
        action = of_one.sub(rf"\g<0> --task {task.number}", found.action)
        found = msgspec.structs.replace(found, action=action)
    if task.began_again is None:
        return found
    return msgspec.structs.replace(found, earlier=(*found.earlier, task.began_again))


def _of_training(task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    attempts = task.attempts or ()
    state = task.job.state if task.job else None
    phase = state.phase if state is not None else "unknown"
    if _succeeded(task.job) or (phase == "unknown" and _done_on_record(attempts)):
        return _standing("done", task, evidence, attempts)
    if phase == "pending":
        return _pending(task, evidence)
    if phase == "running":
        found = _standing("running", task, evidence, attempts[:-1], within=attempts[-1:])
        return _standing_still(found, attempts[-1:], evidence)
    if phase == "unknown" and not any(map(_tells_of_an_end, attempts[-1:])):
        return _unknown(task, evidence)
    newest = attempts[-1] if attempts else AttemptEvidence(number=None, job=task.job)
    return _of_failure(newest, task, evidence)


def _done_on_record(attempts: Sequence[AttemptEvidence]) -> bool:
    return any(a.ending is not None and a.ending.cause == "done" for a in attempts[-1:])


def _tells_of_an_end(attempt: AttemptEvidence) -> bool:
    """Whether the attempt is over according to its own files or later ones."""
    return attempt.ending is not None or attempt.verdict is not None or bool(attempt.voices)


def _standing(
    cause: str,
    task: TaskEvidence,
    evidence: Evidence,
    before: Sequence[AttemptEvidence],
    within: Sequence[AttemptEvidence] = (),
) -> Diagnosis:
    """A run that is well, and what it recovered from."""
    return Diagnosis(
        cause=cause,
        sentence=CAUSES[cause].sentence,
        attempt=task.attempts[-1].number if task.attempts else None,
        task=task.number,
        earlier=(*_earlier(before, evidence.run), *_restarts(within)),
        looked_at=evidence.unread,
    )


def _standing_still(
    found: Diagnosis, newest: Sequence[AttemptEvidence], evidence: Evidence
) -> Diagnosis:
    """Of a run that is well but for its ranks, which all do nothing."""
    told = stalled_ranks(newest[0] if newest else None)
    if told is None:
        return _without_work(found, newest[0].idle, evidence) if newest else found
    scope: Scope = "all" if len(newest[0].still) > 1 else "only-node"
    return msgspec.structs.replace(
        found,
        cause="hang",
        sentence=told.sentence,
        rank=told.rank,
        node=told.node,
        evidence=tuple(Quote(None, None, words) for words in told.others),
        action=advise(Facts(cause="running", run=evidence.run, said=told.sentence, scope=scope)),
    )


def _without_work(found: Diagnosis, idle: IdleGpus | None, evidence: Evidence) -> Diagnosis:
    """Of a run that is well but for its GPUs, which do nothing, or only wait."""
    if idle is None:
        return found
    said = f"The job is running, but {idle.sentence(f'since {moment(idle.since_s)}')}."
    action = advise(Facts(cause="running", run=evidence.run, said=said))
    return msgspec.structs.replace(found, cause="idle", sentence=said, action=action)


def _pending(task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    job = task.job
    told = job.pending if job is not None and job.pending else pending.PendingEvidence()
    answer = pending.why(told)
    cause = "refused" if answer.refused else "pending-forever" if answer.never else "pending"
    said = [f"Slurm's reason: {told.reason}"] if told.reason else []
    facts = Facts(cause=cause, run=evidence.run, said=told.reason or "")
    if job is not None and job.left_out:
        said.append(f"without {job.left_out}")
    return Diagnosis(
        cause=cause,
        sentence=_sentence(CAUSES[cause].sentence, "the job", answer.words),
        task=task.number,
        evidence=tuple(Quote(None, None, words) for words in said),
        action=answer.action or advise(facts),
        earlier=tuple(_earlier(task.attempts or (), evidence.run)),
        looked_at=evidence.unread,
    )


def _of_failure(attempt: AttemptEvidence, task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    findings = findings_of(attempt)
    first = root(findings, attempt)
    before = (task.attempts or ())[:-1]
    if first is None:
        return _unknown(task, evidence)
    also, follow_on = _others(first, findings)
    if attempt.hold is not None and first.level == Level.OUTSIDE:
        return _with_its_hold(attempt.hold, attempt, task, evidence)
    sentence, quotes = _told(first), [*_quotes(first, findings)]
    whole = where_all_stood(attempt, first.cause) if first.rank is None else None
    if (stood := whole or what_it_got_over(attempt, first)) is not None:
        sentence = f"{sentence.rstrip('.')}; {stood[0].rstrip(' .')}."
        quotes.append(stood[1])
    return Diagnosis(
        cause=first.cause,
        sentence=sentence,
        rank=first.rank,
        node=first.node,
        attempt=attempt.number,
        task=task.number,
        evidence=tuple(quotes),
        action=advise(facts_of(first, findings, attempt, evidence)),
        again=_again(first, attempt),
        also=also,
        follow_on=follow_on,
        earlier=(*_earlier(before, evidence.run), *_restarts([attempt])),
        looked_at=_looked_at(attempt, evidence) if first.cause == "unknown" else evidence.unread,
    )


def _with_its_hold(
    hold: Evidence, attempt: AttemptEvidence, task: TaskEvidence, evidence: Evidence
) -> Diagnosis:
    """Of a run whose hold has ended: why that has."""
    its = _diagnosed(hold, None)
    newest = (hold.tasks[0].attempts or ())[-1:]
    words = {"done": "it was released", "running": "its process on a node has ended"}
    if its.cause == "done" and any(one.request == WARNING for one in newest):
        its = msgspec.structs.replace(its, cause="time-limit", sentence="its time was nearly over")
    cause = "cancelled" if its.cause in ("done", "running") else its.cause
    why = words.get(its.cause, its.sentence.partition(";")[0]).rstrip(".")
    return msgspec.structs.replace(
        its,
        cause=cause,
        sentence=f"The run ended with the hold that it was on, {hold.run}: {why}.",
        rank=None,
        attempt=attempt.number,
        action=f"fsdpkit hold gets nodes again; then: fsdpkit resume {evidence.run} --on HOLD",
        earlier=tuple(_earlier((task.attempts or ())[:-1], evidence.run)),
        looked_at=evidence.unread,
    )


def _again(first: Finding, attempt: AttemptEvidence) -> str | None:
    """What the agents and the batch shell decided by (launching/policy.py), for a person."""
    ending, verdict = attempt.ending, attempt.verdict
    if ending is not None and ending.action == "requeue":
        return "the job was queued again"
    if verdict is not None and verdict.came_back:
        return f"hardly: {verdict.why.partition(',')[0]}"
    return CAUSES[first.cause].again


def _unknown(task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    attempts = task.attempts or ()
    words = "nothing that was read reports a failure"
    if not evidence.submitted:
        words = "it is unknown whether sbatch accepted the job, and Slurm knows no such job"
    elif task.job is None or task.job.state is None:
        words = "the scheduler does not know the job, and its directory records no end"
    return Diagnosis(
        cause="unknown",
        sentence=_sentence(CAUSES["unknown"].sentence, "the job", words),
        attempt=attempts[-1].number if attempts else None,
        task=task.number,
        earlier=tuple(_earlier(attempts[:-1], evidence.run)),
        looked_at=_looked_at(attempts[-1] if attempts else AttemptEvidence(number=None), evidence),
    )


# In words


_THE_JOB = "the job"


def _who(finding: Finding) -> str:
    if finding.rank is None:
        return finding.node or _THE_JOB
    return f"rank {finding.rank}" + (f" on {finding.node}" if finding.node else "")


def _told(finding: Finding) -> str:
    cause = CAUSES[finding.cause]
    waited = cause.waited if finding.level == Level.WAITED else None
    told = _sentence(waited or cause.sentence, _who(finding), finding.words)
    if finding.sure:
        return told
    named = told.startswith(("Slurm ", finding.node or "Slurm "))
    return f"Perhaps: {told if named else told[0].lower() + told[1:]}"


def _sentence(text: str, who: str, words: str) -> str:
    if who == _THE_JOB:
        text = text.replace(": {who}: ", ": ").replace(" on {who}", " in {who}")
    text = text.replace("{who}", who).replace("{words}", words.rstrip(" .;:"))
    text = re.sub(r"[\s.:]+$", "", text)
    text += "" if text.endswith("…") else "."
    return text[0].upper() + text[1:] if text.startswith(("rank ", f"{_THE_JOB} ")) else text


def _quotes(first: Finding, findings: Sequence[Finding]) -> Iterator[Quote]:
    """Its own first, then others that say the same, each place once."""
    same = [f for f in findings if f.cause == first.cause and f.level == first.level]
    same = [f for f in same if f.rank in (None, first.rank) and f.node in (None, first.node)]
    seen: set[Quote] = set()
    for finding in [first, *sorted(same, key=order)]:
        quote = finding.quote
        if quote is not None and quote not in seen and len(seen) < 3:
            seen.add(quote)
            yield quote


_BY_THEMSELVES = frozenset(
    {
        *("disk-full", "storage", "data-missing", "checkpoint-unreadable", "no-internet"),
        *("gpu-out-of-memory", "host-out-of-memory", "bad-gpu", "nan-loss"),
        *("import-error", "version-mismatch", "environment-missing"),
    }
)
"""What does not come about because another rank has failed."""
_ONE_STORAGE = frozenset({"storage", "disk-full", "data-missing", "checkpoint-unreadable"})
"""Of these one may bring about another, by way of the file system."""


def _others(first: Finding, findings: Sequence[Finding]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Other ranks and agents that failed, a line each, in the order of their ranks and nodes: those
    with a cause of their own, and those that only followed."""
    told: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda f: (-f.level, order(f))):
        told.setdefault(_who(finding), finding)
    others = [f for who, f in told.items() if who not in (_who(first), first.node, "the job")]
    others.sort(key=lambda f: (math.inf if f.rank is None else f.rank, f.node or ""))
    also = [f for f in others if _stands_alone(f, first)]
    follow_on = [f for f in others if f not in also]
    of_also, of_follow_on = (
        tuple(f"{_who(f)}: {f.words}" for f in some[:_MOST_FOLLOW_ON]) for some in (also, follow_on)
    )
    return of_also, of_follow_on


def _stands_alone(other: Finding, first: Finding) -> bool:
    if CAUSES[first.cause].of_job or other.cause in (first.cause, "exception"):
        return False
    if {other.cause, first.cause} <= _ONE_STORAGE:
        return False
    return other.sure and other.level >= Level.OWN and other.cause in _BY_THEMSELVES


def _earlier(attempts: Sequence[AttemptEvidence], run: str) -> Iterator[str]:
    for attempt in attempts:
        if attempt.number is None:
            continue
        first = root(findings_of(attempt), attempt)
        if first is not None:
            yield f"attempt {attempt.number}: {_told(first)}"
        elif attempt.ending is not None and attempt.ending.cause != "done":
            yield f"attempt {attempt.number}: {attempt.ending.why}"


def _restarts(attempts: Sequence[AttemptEvidence]) -> Iterator[str]:
    for attempt in attempts:
        for message in attempt.restarts:
            why = in_words(message)
            yield f"the ranks of attempt {attempt.number} were started again after: {why}"


def _looked_at(attempt: AttemptEvidence, evidence: Evidence) -> tuple[str, ...]:
    """What was read, in case it did not suffice."""
    said = attempt.job.state.describe() if attempt.job and attempt.job.state else None
    texts = [text for voice in attempt.voices for text in (voice.message, *voice.logs)]
    files = {text.file for text in texts if text is not None and text.file is not None}
    shown = sorted(below(file, evidence.dir) for file in files)
    more = [f"and {len(shown) - 8} other files"] if len(shown) > 8 else []
    return (
        *([f"the scheduler: {said}"] if said else []),
        *evidence.unread,
        *(shown[:8] or ["no log and no record of a failure in the run's directory"]),
        *more,
    )
