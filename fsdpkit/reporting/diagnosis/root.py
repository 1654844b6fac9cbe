"""Which of an attempt's findings explains the others. Pure.

Those of the highest level count, and among them the first by time; who names a resource that was
not enough, or something that could not be made, goes before who only missed it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from fsdpkit.failures.causes import CAUSES
from fsdpkit.listing import first_of
from fsdpkit.reporting.diagnosis.checks import srun_tells
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.findings import Finding, in_a_thread, in_words
from fsdpkit.reporting.diagnosis.last_lines import last_line
from fsdpkit.reporting.diagnosis.sources import LOST_A_CHILD, Voice
from fsdpkit.runs.failures import Level


def root(findings: Sequence[Finding], attempt: AttemptEvidence) -> Finding | None:
    """The finding that explains the others; None if there is none at all."""
    if _decided_by_itself(attempt):
        # Then the scheduler's state of the job only says how it was cleaned up.
        inside = [f for f in findings if f.level < Level.OUTSIDE or f.cause in _BREAKS]
        if any(f.level >= Level.OWN for f in inside):
            findings = inside
    if lost := _lost(findings, attempt):
        # All neighbours of a node that is gone report the same: they lost it.
        others = [f for f in findings if f.cause == "node-failure" and f.node not in (None, *lost)]
        findings = [f for f in findings if f not in others] or findings
    if not findings:
        return None
    highest = max(finding.level for finding in findings)
    candidates = [finding for finding in findings if finding.level == highest]
    first = _maker(_surest(candidates), candidates)
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


def _lost(findings: Sequence[Finding], attempt: AttemptEvidence) -> Collection[str | None]:
    """The nodes that are gone, by the agents; where they could not say so, by srun."""
    if attempt.verdict is not None and (trouble := attempt.verdict.trouble) and trouble.lost:
        return {attempt.head} if attempt.verdict.cut_off else trouble.lost
    by_srun = (f for f in findings if f.cause == "node-failure" and f.speaker == "batch")
    return {f.node for f in by_srun if f.node is not None}


def _surest(candidates: Sequence[Finding]) -> Finding:
    """The first; if that is not sure, the first that an agent has judged, or that is sure of the
    same cause, unless that is a bare exception, which may be any."""
    first, *others = sorted(candidates, key=order)
    same = (f for f in others if f.judged or (f.sure and f.cause == first.cause != "exception"))
    return first if first.sure else next(same, first)


_AT_ONCE_S = 2.0
"""Within which a clock does not say who failed first."""
_MISSES = (
    *("No such file", "FileNotFoundError", "cannot open shared object"),
    *("Ran out of input", "EOFError"),
)
_MISSING = frozenset({"data-missing", "checkpoint-unreadable"})


def _maker(first: Finding, candidates: Sequence[Finding]) -> Finding:
    """Of one that only misses a file: who, at the same time, says why it could not be made."""
    if not _only_misses(first):
        return first
    until_s = _AT_ONCE_S + (math.inf if first.time_s is None else first.time_s)
    makers = [
        f
        for f in candidates
        if not _only_misses(f)
        and (f.sure or f.cause != "exception")
        and (f.time_s is None or f.time_s <= until_s)
    ]
    return min(makers, key=order, default=first)


def _only_misses(finding: Finding) -> bool:
    if "unexpected pos" in finding.words:  # of a file that another rank could not write
        return True
    quoted = any(words in finding.words for words in _MISSES)
    return finding.cause in _MISSING or (finding.cause in ("exception", "import-error") and quoted)


_OF_CUDA = ("cuda", "cublas", "cudnn", "nccl")


def _by_machine(first: Finding, attempt: AttemptEvidence) -> Finding | None:
    """Where ranks only waited for others or lost them: the node whose link failed. So, too, the GPU
    that lost bits, which may also explain an error of CUDA. Both happen without harm as well: they
    explain no failure that has words of its own."""
    felt = first.level <= Level.WAITED
    machines = attempt.machines
    lost = {node: m.lost_bits for node, m in machines.items() if m.lost_bits}
    of_cuda = first.cause == "exception" and any(w in first.words.lower() for w in _OF_CUDA)
    if of_cuda and (at := first.node) in lost:
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
    words += f" on {node}; so did others of {first_of([*by_node][1:], 8)}" if several else ""
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
    """Whether only an interrupt ended several ranks: of one it says little."""
    interrupted = {f.rank for f in findings if f.words.startswith("KeyboardInterrupt")}
    killed = all(f.level == Level.KILLED for f in findings)
    return killed and attempt.ranks > 1 and interrupted == set(range(attempt.ranks))


def _waited_for(
    first: Finding, findings: Sequence[Finding], attempt: AttemptEvidence
) -> Finding | None:
    """Of what only ranks tell that waited or lost a peer: those few that are left, if all others
    waited in vain and they have said nothing; of several on one node the node."""
    ranks = set(range(attempt.ranks))
    silent = sorted(ranks - {finding.rank for finding in findings})
    if not silent or 2 * len(silent) > len(ranks) or first.level > Level.WAITED:
        return None
    waited = {f.rank for f in findings if (f.cause, f.level) == ("hang", Level.WAITED)}
    if first.cause != "hang" or not waited >= ranks - set(silent):
        return None
    nodes = {rank: attempt.node_of(rank) for rank in silent}
    node = nodes[silent[0]] if len(set(nodes.values())) == 1 else None
    one = len(silent) == 1
    if one and (thread := in_a_thread(silent[0], attempt)) is not None:
        return thread
    words = (
        f"it printed no error, and all other ranks waited for one in vain{_last(silent, attempt)}"
    )
    if not one:
        words = (
            f"ranks {first_of(silent, 8)} printed no error, and all others waited for them in vain"
        )
    rank = silent[0] if one else None
    return msgspec.structs.replace(first, level=Level.OWN, rank=rank, node=node, words=words)


def _last(silent: Sequence[int], attempt: AttemptEvidence) -> str:
    voice = next((v for v in attempt.voices if v.kind == "rank" and v.rank == silent[0]), None)
    # Of one rank beside others that of its output, for standard error holds what all print.
    line = last_line(voice, "out", "err") if voice is not None else None
    return f"; its last line was: {in_words(line.text)}" if line is not None else ""


_BREAKS = ("host-out-of-memory", "node-failure", "bad-gpu")
"""Of what comes from outside, that which the agents notice as a failure."""
_PLACES = {name: place for place, name in enumerate(CAUSES)}


def order(finding: Finding) -> tuple[float, float, bool, int, bool, str]:
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
    if verdict is None or verdict.trouble is None:
        return False
    # Whose hold has ended has lost nodes by that.
    return verdict.by_itself and not (attempt.hold is not None and verdict.trouble.lost)


def _with_victim(first: Finding, others: Sequence[Finding], attempt: AttemptEvidence) -> Finding:
    """With the rank and node of another of its kind; without them, where it is the whole job's."""
    if CAUSES[first.cause].of_job:
        return msgspec.structs.replace(first, rank=None, node=None)
    rank, node = first.rank, first.node
    if node is None and rank is not None:
        node = attempt.node_of(rank)
    if node is None and first.level == Level.OUTSIDE:
        same = [f for f in others if f.cause == first.cause and f.node is not None]
        node = min(same, key=order).node if same else None
    if node is None and rank is None:
        node = _where_a_task_failed(first, attempt)
    if first.cause == "host-out-of-memory" and rank is None:
        told = [f for f in others if f.cause == first.cause and f.rank is not None]
        told = [f for f in told if node in (None, f.node)]
        if told:
            victim_told = min(told, key=order)
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
    """The first rank there that a signal ended, the kernel's before those that agents send, too."""
    here = [v for v in attempt.voices if v.kind == "rank" and node in (None, v.node)]
    for status in (137, 143):
        if ended := [v for v in here if v.status == status]:
            return min(ended, key=lambda v: (v.time_s or math.inf, v.rank or 0))
    return None


_OF_THE_SHELL = re.compile(r"slurm_script: |^(?:Lmod|sbatch|salloc|fsdpkit)\b|^\w+Error: ")


def _where_a_task_failed(finding: Finding, attempt: AttemptEvidence) -> str | None:
    """The only node of which srun says that its task left by itself, of what a task printed into
    the job's log."""
    if finding.quote is None or _OF_THE_SHELL.search(finding.quote.text):
        return None
    left = "Exited with exit code "
    nodes = {node for node, words, _ in srun_tells(attempt) if words.startswith(left)}
    return nodes.pop() if len(nodes) == 1 else None


def _left_by_child(node: str | None, findings: Sequence[Finding]) -> Finding | None:
    """The only rank there that lost a process of its own, which was what was killed."""
    told = [f for f in findings if f.rank is not None and LOST_A_CHILD.search(f.words)]
    told = [f for f in told if node in (None, f.node)]
    return told[0] if len({f.rank for f in told}) == 1 else None
