"""Evidence of attempts made up in tests: who said what of its end, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import (
    AttemptEvidence,
    Evidence,
    JobEvidence,
    TaskEvidence,
)
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import FailureRecord
from fsdpkit.runs.log_ends import LogText
from fsdpkit.scheduling.states import JobState

FAILED = JobState("FAILED", "sacct", exit_code=1, exit_signal=0)
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"


def rank(
    number: int,
    message: str | None,
    *,
    status: int | None = 1,
    time_s: float | None = 10.0,
    log: str = "",
    **judged: Any,
) -> Voice:
    """A rank that ended; two ranks a node. judged: what its agent has seen of it."""
    node = f"node{number // 2 + 1}"
    judged = {"by": "agent" if judged else "rank", "words": message or "", **judged}
    told = FailureRecord(name=node, rank=number, status=status or 1, **judged)
    return Voice(
        kind="rank",
        rank=number,
        node=node,
        status=status,
        time_s=time_s,
        message=None if message is None else LogText(message, Path(f"failures/{number}")),
        told=None if message is None else told,
        logs=(LogText(log, Path(f"rank-{number}.err")),) if log else (),
    )


def agent(
    node: str, cause: str, *, status: int = 78, time_s: float | None = 10.0, **more: Any
) -> Voice:
    """An agent that has put a failure of its own on record."""
    fields = {"words": f"{cause}, as it says", **more}
    told = FailureRecord(by="agent", name=node, status=status, cause=cause, **fields)
    words = LogText(told.words)
    return Voice(kind="agent", node=node, status=status, time_s=time_s, message=words, told=told)


def batch(log: str) -> Voice:
    return Voice(kind="batch", logs=(LogText(log, Path("slurm-7.log")),))


def attempt(
    *voices: Voice, state: JobState | None = FAILED, number: int = 0, **more: object
) -> AttemptEvidence:
    job = JobEvidence(id="7", state=state)
    return msgspec.structs.replace(AttemptEvidence(number=number, voices=voices, job=job), **more)


def of(
    *attempts: AttemptEvidence, state: JobState | None = FAILED, task: int | None = None
) -> Evidence:
    job = JobEvidence(id="7", state=state)
    tasks = (TaskEvidence(number=task, job=job, attempts=attempts),)
    return Evidence(run="t5-1", dir=Path("/runs/t5-1"), submitted=True, tasks=tasks)


def found(*voices: Voice, state: JobState = FAILED, **more: object) -> Diagnosis:
    return diagnose(of(attempt(*voices, state=state, **more), state=state))
