"""Whom the root failure of an attempt struck, and what was being done then. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdpkit.failures.circumstances import Circumstances, Phase, Scope
from fsdpkit.failures.tracebacks import Frame, counts_a_step
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.diagnosis.findings import Finding, findings_of


def circumstances_of(
    attempt: AttemptEvidence, first: Finding, findings: Sequence[Finding] | None = None
) -> Circumstances:
    """first: the root; findings: all of the attempt, if they are known already."""
    known = findings_of(attempt) if findings is None else findings
    return Circumstances(_scope(attempt, first, known), _phase(attempt, first))


def _scope(attempt: AttemptEvidence, first: Finding, findings: Sequence[Finding]) -> Scope:
    alike = [f for f in (first, *findings) if (f.cause, f.level) == (first.cause, first.level)]
    ranks = {f.rank for f in alike if f.rank is not None}
    nodes = {f.node for f in alike if f.node is not None}
    every = {voice.node for voice in attempt.voices if voice.node} | {attempt.head or first.node}
    every.discard(None)
    if not ranks and not nodes:
        return "job"
    if ranks and nodes >= every and 2 * len(ranks) > attempt.ranks:
        return "all"
    if len(nodes) > 1:
        return "several" if ranks or nodes < every else "all"
    if len(ranks) == 1:
        return "rank"
    return "node" if len(every) > 1 else "only-node"


_SAVES = re.compile(r"(?i)save|write_|dump")
_LOADS = re.compile(r"(?i)load_(?:state|checkpoint|model|pretrained)|resume|restore|from_pretr")
_SAVING_FILE = re.compile(r"/torch/serialization\.py|/checkpoint/")


def _phase(attempt: AttemptEvidence, first: Finding) -> Phase:
    if (doing := _of_frames(first.frames)) is not None:
        return doing
    trouble = attempt.verdict.trouble if attempt.verdict else None
    if trouble is not None and trouble.step is not None:
        return "steps" if trouble.step > 0 else "setup"
    logs = [log.text for voice in attempt.voices if voice.kind == "rank" for log in voice.logs]
    if any(map(counts_a_step, logs)):
        return "steps"
    if logs:
        return "setup"
    ran = any(voice.kind == "rank" for voice in attempt.voices)
    return "unknown" if ran or attempt.ranks else "start"


def _of_frames(frames: Sequence[Frame]) -> Phase | None:
    """Whether a checkpoint was being written or read, by the innermost call that says so."""
    for frame in reversed(frames):
        if _LOADS.search(frame.function):
            return "loading"
        if _SAVES.search(frame.function):
            return "saving"
        if _SAVING_FILE.search(frame.file) and frame.function == "load":
            return "loading"
    return None
