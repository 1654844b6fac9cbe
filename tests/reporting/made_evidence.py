"""Evidence of attempts made up in tests: who said what of its end, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import Attempt, Evidence, Job, Task
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.log_ends import Text
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
) -> Voice:
    """A rank that ended; two ranks a node."""
    return Voice(
        kind="rank",
        rank=number,
        node=f"node{number // 2 + 1}",
        status=status,
        time_s=time_s,
        message=None if message is None else Text(message, Path(f"failures/{number}")),
        logs=(Text(log, Path(f"rank-{number}.err")),) if log else (),
    )


def agent(node: str, message: str, *, status: int = 78, time_s: float | None = 10.0) -> Voice:
    return Voice(kind="agent", node=node, status=status, time_s=time_s, message=Text(message))


def batch(log: str) -> Voice:
    return Voice(kind="batch", logs=(Text(log, Path("slurm-7.log")),))


def attempt(
    *voices: Voice, state: JobState | None = FAILED, number: int = 0, **more: object
) -> Attempt:
    job = Job(id="7", state=state)
    return msgspec.structs.replace(Attempt(number=number, voices=voices, job=job), **more)


def of(*attempts: Attempt, state: JobState | None = FAILED, task: int | None = None) -> Evidence:
    job = Job(id="7", state=state)
    tasks = (Task(number=task, job=job, attempts=attempts),)
    return Evidence(run="t5-1", dir=Path("/runs/t5-1"), submitted=True, tasks=tasks)


def found(*voices: Voice, state: JobState = FAILED, **more: object) -> Diagnosis:
    return diagnose(of(attempt(*voices, state=state, **more), state=state))
