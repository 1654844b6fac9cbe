"""Why a run ended as it did: the root cause, which process failed first, and what to do. Pure.

Each process of an attempt that logged something about its end gets the causes that match its text
(failures/causes.py). Those of the highest level count, and among them the first by time, so a rank
that only lost its peer is never the cause while any process has one. If nothing explains the end,
it is `unknown`, with what was looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.errors import NotFoundError
from fsdpkit.failures.advice.facts import Facts
from fsdpkit.failures.advice.table import advise
from fsdpkit.failures.causes import CAUSES, page_of
from fsdpkit.failures.patterns import Level
from fsdpkit.reporting import pending
from fsdpkit.reporting.diagnosis.advising import facts_of
from fsdpkit.reporting.diagnosis.evidence import (
    AttemptEvidence,
    Evidence,
    JobEvidence,
    TaskEvidence,
)
from fsdpkit.reporting.diagnosis.findings import Finding, Quote, findings_of, in_a_thread
from fsdpkit.reporting.diagnosis.sources import LOST_A_CHILD, Voice
from fsdpkit.reporting.diagnosis.standing import standing_ranks

_MOST_FOLLOW_ON = 20


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of a run."""

    schema: Literal["fsdpkit.diagnose/1"] = "fsdpkit.diagnose/1"
    cause: str
    """One of causes.CAUSES."""
    sentence: str
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
    also: tuple[str, ...] = ()
    """Failures of other ranks and nodes that have causes of their own, a line each."""
    follow_on: tuple[str, ...] = ()
    """Failures that only followed from it, a line each."""
    earlier: tuple[str, ...] = ()
    """What attempts before this one ended for, or launches within it, a line each; and that its
    script began at its beginning again, where that is known."""
    looked_at: tuple[str, ...] = ()
    """What was read, where that did not suffice; and what could not be read."""
    page: str | None = None
    """The page on this cause, as a path in the repository; `fsdpkit diagnose --page` prints it."""


def diagnose(evidence: Evidence, attempt: int | None = None) -> Diagnosis:
    """The root cause of a run that ended badly, or its state. For an array: of the first task that
    failed.

    attempt: only this one, whatever followed. Raises NotFoundError if it is not in the evidence.
    """
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
    told = standing_ranks(newest[0] if newest else None)
    if told is None:
        return found
    return msgspec.structs.replace(
        found,
        cause="hang",
        sentence=told.sentence,
        rank=told.rank,
        node=told.node,
        evidence=tuple(Quote(None, None, words) for words in told.others),
        action=told.action.replace("{run}", evidence.run),
    )


_REFUSED = re.compile(
    r"Invalid(?:Account|QOS)|(?:Account|QOS)NotAllowed|MaxMemPerLimit"
    r"|not permitted to use this partition"
)
"""Slurm's reasons for a job that it does not allow, in one word or, of an account, a QOS or a group
that the partition refuses, in a sentence."""


def _pending(task: TaskEvidence, evidence: Evidence) -> Diagnosis:
    job = task.job
    told = job.pending if job is not None and job.pending else pending.PendingEvidence()
    answer = pending.why(told)
    cause = "pending-forever" if answer.never else "pending"
    if _REFUSED.search(told.reason or ""):
        cause = "refused"
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
    return Diagnosis(
        cause=first.cause,
        sentence=_told(first),
        rank=first.rank,
        node=first.node,
        attempt=attempt.number,
        task=task.number,
        evidence=tuple(_quotes(first, findings)),
        action=advise(facts_of(first, findings, attempt, evidence)),
        again=_again(first, attempt),
        also=also,
        follow_on=follow_on,
        earlier=(*_earlier(before, evidence.run), *_restarts([attempt])),
        looked_at=_looked_at(attempt, evidence) if first.cause == "unknown" else evidence.unread,
    )


def _again(first: Finding, attempt: AttemptEvidence) -> str | None:
    """What the agents and the batch shell decided by (launching/policy.py), for a person."""
    ending, verdict = attempt.ending, attempt.verdict
    if ending is not None and ending.action == "requeue":
        return "the job was queued again"
    if verdict is not None and "came back" in verdict.why:
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


# Which of the findings counts


def root(findings: Sequence[Finding], attempt: AttemptEvidence) -> Finding | None:
    """The finding that explains the others; None if there is none at all."""
    if _decided_by_itself(attempt):
        # Then the scheduler's state of the job only says how it was cleaned up.
        inside = [f for f in findings if f.level < Level.OUTSIDE or f.cause in _BREAKS]
        if any(f.level >= Level.OWN for f in inside):
            findings = inside
    if attempt.verdict is not None and (trouble := attempt.verdict.trouble) and trouble.lost:
        # All neighbours of a node that is gone report the same: they lost it.
        others = [f for f in findings if f.cause == "node-failure" and f.node not in trouble.lost]
        findings = [f for f in findings if f not in others] or findings
    if not findings:
        return None
    highest = max(finding.level for finding in findings)
    candidates = [finding for finding in findings if finding.level == highest]
    first = _surest(candidates)
    if _all_interrupted(candidates, attempt):
        return msgspec.structs.replace(
            first, cause="cancelled", words=": each rank was interrupted, as by Ctrl-C", rank=None
        )
    if LOST_A_CHILD.search(first.words):
        of_memory = [f for f in candidates if f.cause == "host-out-of-memory" and not f.sure]
        first = next((f for f in of_memory if f.rank == first.rank), first)
    return (
        _by_machine(first, attempt)
        or _waited_for(first, findings, attempt)
        or _with_victim(first, findings, attempt)
    )


def _surest(candidates: Sequence[Finding]) -> Finding:
    """The first, or the first that is sure of the same cause; of a bare exception, which may be
    any, the first."""
    first, *others = sorted(candidates, key=_order)
    same = (f for f in others if f.sure and f.cause == first.cause != "exception")
    return first if first.sure else next(same, first)


_OF_CUDA = re.compile(r"(?i)\b(?:cuda|cublas|cudnn|nccl)\w*")


def _by_machine(first: Finding, attempt: AttemptEvidence) -> Finding | None:
    """Where ranks only waited for others or lost them: the node whose link failed. So, too, the GPU
    that lost bits, which may also explain an error of CUDA. Both happen without harm as well: they
    explain no failure that has words of its own."""
    felt = first.level <= Level.WAITED
    machines = attempt.machines
    lost = {node: m.lost_bits for node, m in machines.items() if m.lost_bits}
    if first.cause == "exception" and _OF_CUDA.search(first.words) and (at := first.node) in lost:
        told = _of_nodes("bad-gpu", first, {at: lost[at]})
        return msgspec.structs.replace(told, rank=first.rank)
    if not felt:
        return None
    if lost:
        return _of_nodes("bad-gpu", first, lost)
    failed = {node: m.failed_link for node, m in machines.items() if m.failed_link}
    if failed:
        return _of_nodes("node-failure", first, failed)
    errors = {node: m.link_errors for node, m in machines.items() if m.link_errors}
    if errors:
        return msgspec.structs.replace(_of_nodes("node-failure", first, errors), sure=False)
    return None


def _of_nodes(cause: str, first: Finding, by_node: Mapping[str, str]) -> Finding:
    """The finding, explained by what is known of one node, or of several."""
    node, words = next(iter(by_node.items()))
    several = len(by_node) > 1
    words += f" on {node}; so did others of {_listed([*by_node][1:])}" if several else ""
    return msgspec.structs.replace(
        first,
        cause=cause,
        level=Level.OWN,
        rank=None,
        node=None if several else node,
        words=words,
        said="",
        raised=None,
    )


def _all_interrupted(findings: Sequence[Finding], attempt: AttemptEvidence) -> bool:
    """Whether nothing but an interrupt ended each of several ranks: of one alone, or beside a
    failure, it says little."""
    interrupted = {f.rank for f in findings if f.words.startswith("KeyboardInterrupt")}
    killed = all(f.level == Level.KILLED for f in findings)
    return killed and attempt.ranks > 1 and interrupted == set(range(attempt.ranks))


def _waited_for(
    first: Finding, findings: Sequence[Finding], attempt: AttemptEvidence
) -> Finding | None:
    """Of a hang that only ranks which waited tell of: those few that are left, if all others waited
    in vain and they have said nothing; of several on one node the node."""
    ranks = set(range(attempt.ranks))
    silent = sorted(ranks - {finding.rank for finding in findings})
    waited = {f.rank for f in findings if (f.cause, f.level) == ("hang", Level.WAITED)}
    if first.cause != "hang" or not silent or 2 * len(silent) > len(ranks):
        return None
    if not waited >= ranks - set(silent):
        return None
    nodes = {rank: _node_of(rank, attempt) for rank in silent}
    node = nodes[silent[0]] if len(set(nodes.values())) == 1 else None
    one = len(silent) == 1
    if one and (thread := in_a_thread(silent[0], attempt)) is not None:
        return thread
    words = "it printed no error, and all other ranks waited for one in vain"
    if not one:
        words = f"ranks {_listed(silent)} printed no error, and all others waited for them in vain"
    rank = silent[0] if one else None
    return msgspec.structs.replace(first, level=Level.OWN, rank=rank, node=node, words=words)


def _listed(ranks: Sequence[object]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


def _node_of(rank: int, attempt: AttemptEvidence) -> str | None:
    return next((voice.node for voice in attempt.voices if voice.rank == rank), None)


_BREAKS = ("host-out-of-memory", "node-failure", "bad-gpu")
"""Of what comes from outside, that which the agents notice as a failure."""
_PLACES = {name: place for place, name in enumerate(CAUSES)}


def _order(finding: Finding) -> tuple[float, float, bool, int, bool, str]:
    by_table = _PLACES[finding.cause]
    time_s = math.inf if finding.time_s is None else finding.time_s
    particular = finding.level in (Level.OUTSIDE, Level.WAITED)  # then the clock says little
    rank = -1 if finding.rank is None else finding.rank
    return (
        by_table if particular else time_s,
        time_s if particular else by_table,
        finding.node is None,
        rank,
        not finding.words,  # who cancelled a job is worth more than that it was
        finding.words,
    )


def _decided_by_itself(attempt: AttemptEvidence) -> bool:
    """Whether the agents had ended the attempt because of a failure before they were asked to."""
    verdict = attempt.verdict
    if verdict is None or verdict.trouble is None or verdict.warned:
        return False
    return verdict.trouble.cause not in ("done", "stopped")


def _with_victim(first: Finding, others: Sequence[Finding], attempt: AttemptEvidence) -> Finding:
    """With rank and node, where the finding itself has none and another of its kind has; without
    them, where it concerns the whole job."""
    if CAUSES[first.cause].of_job:
        return msgspec.structs.replace(first, rank=None, node=None)
    rank, node = first.rank, first.node
    if node is None and rank is not None:
        node = _node_of(rank, attempt)
    if node is None and first.level == Level.OUTSIDE:
        same = [f for f in others if f.cause == first.cause and f.node is not None]
        node = min(same, key=_order).node if same else None
    if node is None and rank is None:
        node = where_a_task_failed(first, attempt)
    if first.cause == "host-out-of-memory" and rank is None:
        told = [f for f in others if f.cause == first.cause and f.rank is not None]
        told = [f for f in told if node in (None, f.node)]
        if told:
            victim_told = min(told, key=_order)
            return msgspec.structs.replace(first, rank=victim_told.rank, node=victim_told.node)
        if victim := _killed(node, attempt):
            rank, node = victim.rank, victim.node
        elif parent := _left_by_child(node, others):
            rank, node = parent.rank, parent.node
    if first.cause == "bad-gpu" and rank is None and node is not None:
        own = {
            f.rank for f in others if f.node == node and f.rank is not None and f.level >= Level.OWN
        }
        rank = own.pop() if len(own) == 1 else None
    return msgspec.structs.replace(first, rank=rank, node=node)


def _killed(node: str | None, attempt: AttemptEvidence) -> Voice | None:
    """The first rank there that a signal ended: the kernel kills by one, some daemons by another,
    which agents send, too."""
    here = [v for v in attempt.voices if v.kind == "rank" and node in (None, v.node)]
    for status in (137, 143):
        if ended := [v for v in here if v.status == status]:
            return min(ended, key=lambda v: (v.time_s or math.inf, v.rank or 0))
    return None


_TASK_FAILED = re.compile(
    r"^srun: error: ([\w.-]+): tasks? [\d,-]+: Exited with exit code ", re.MULTILINE
)
_OF_THE_SHELL = re.compile(r"slurm_script: |^(?:Lmod|sbatch|salloc|fsdpkit)\b|^\w+Error: ")


def where_a_task_failed(finding: Finding, attempt: AttemptEvidence) -> str | None:
    """The only node of which srun says that its task left by itself, of what a task printed into
    the job's log."""
    if finding.quote is None or _OF_THE_SHELL.search(finding.quote.text):
        return None
    logs = [log.text for voice in attempt.voices if voice.kind == "batch" for log in voice.logs]
    nodes = {node for log in logs for node in _TASK_FAILED.findall(log)}
    return nodes.pop() if len(nodes) == 1 else None


def _left_by_child(node: str | None, findings: Sequence[Finding]) -> Finding | None:
    """The only rank there that lost a process of its own, which was what was killed."""
    told = [f for f in findings if f.rank is not None and LOST_A_CHILD.search(f.words)]
    told = [f for f in told if node in (None, f.node)]
    return told[0] if len({f.rank for f in told}) == 1 else None


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
    for finding in [first, *sorted(same, key=_order)]:
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
    for finding in sorted(findings, key=lambda f: (-f.level, _order(f))):
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
            yield f"the ranks of attempt {attempt.number} were started again after: {message}"


def _looked_at(attempt: AttemptEvidence, evidence: Evidence) -> tuple[str, ...]:
    """What was read, in case it did not suffice."""
    said = attempt.job.state.describe() if attempt.job and attempt.job.state else None
    texts = [text for voice in attempt.voices for text in (voice.message, *voice.logs)]
    files = {text.file for text in texts if text is not None and text.file is not None}
    shown = sorted(_below(file, evidence.dir) for file in files)
    more = [f"and {len(shown) - 8} other files"] if len(shown) > 8 else []
    return (
        *([f"the scheduler: {said}"] if said else []),
        *evidence.unread,
        *(shown[:8] or ["no log and no record of a failure in the run's directory"]),
        *more,
    )


def _below(file: Path, directory: Path) -> str:
    return str(file.relative_to(directory)) if file.is_relative_to(directory) else str(file)
