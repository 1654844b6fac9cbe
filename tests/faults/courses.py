"""Runs that several faults befall, one after another.

Each start of a run costs more than what befalls it: two agents that import torch. So faults that a
run gets over within an attempt share one, and those after which it is queued again follow one
another through its attempts. Each comes at a step of its own, and is judged before the next one
comes. A fault that wants a setting of its own, or takes a node away, has a run of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.matrix import CORE, Case
from tests.faults.trial import HELD_AT, LIGHT, T5, Bed, Phase, Trial


@dataclass(frozen=True)
class Blow:
    """One case, and how many steps are done when it comes."""

    case: Case
    at: int


@dataclass(frozen=True)
class Course:
    """One run, and all that befalls it, in order."""

    name: str
    blows: tuple[Blow, ...]
    trainer: Path

    @classmethod
    def alone(cls, case: Case, trainer: Path | None = None) -> Course:
        return cls(str(case), (Blow(case, HELD_AT[case.phase]),), trainer or case.trainer)

    def submit(self, bed: Bed) -> Trial:
        """Held where the first blow comes."""
        first = self.blows[0]
        fault = first.case.fault
        sets: tuple[str, ...] = fault.sets
        if len(self.blows) > 1:
            assert not any(blow.case.fault.sets or blow.case.fault.spare for blow in self.blows)
            sets = _PATIENT
        raised = next((blow for blow in self.blows if blow.case.fault.raises), None)
        return bed.submit(
            trainer=self.trainer,
            hold=first.case.phase,
            at=first.at,
            sets=sets,
            spare=fault.spare,
            breaks=None if raised is None else raised.case.raising(raised.at),
        )


_PATIENT = ("retry.restarts=9", "retry.requeues=9", "retry.backoff_s=0")


@dataclass
class Standing:
    """How far a run is on record when the next blow comes."""

    attempt: int
    launches: int
    """Of the attempt, as are troubles."""
    troubles: int
    resumes: int
    steps: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trial: Trial) -> Standing:
        attempt = trial.task.attempts()[-1]
        return cls(
            attempt,
            len(trial.launches(attempt)),
            len(trial.troubles(attempt)),
            len(trial.resumed_after()),
            trial.steps(),
        )


def _together(name: str, trainer: Path, *blows: tuple[str, Phase, int]) -> Course:
    by_name = {str(case): case for case in CORE}
    cases = [Blow(by_name[f"{fault} in {phase}"], at) for fault, phase, at in blows]
    return Course(name, tuple(cases), trainer)


_TOGETHER = (
    _together(
        "T5 through all phases",
        T5,
        ("rank killed", "start-up", 0),
        ("warning", "training", 12),
        ("rank killed", "checkpointing", 15),
        ("warning", "shutdown", 20),
    ),
    _together(
        "crashes and restarted daemons",
        LIGHT,
        ("rank killed", "training", 3),
        ("exception in a rank", "training", 7),
        ("newest checkpoint torn, rank killed", "training", 12),
        ("slurmd restarted", "training", 14),
        ("slurmctld restarted", "training", 16),
        ("rank killed", "shutdown", 20),
    ),
    _together(
        "warnings, preemption and lost agents",
        LIGHT,
        ("warning", "start-up", 0),
        ("preemption with 30 s of grace", "training", 3),
        ("preemption at once", "training", 7),
        ("head's agent killed", "training", 8),
        ("agent killed", "training", 9),
        ("warning", "checkpointing", 10),  # ranks train on until it is written
        ("time limit", "training", 16),
    ),
)

_SHARED = {str(blow.case) for course in _TOGETHER for blow in course.blows}
_BY_ALL_ALONE = (
    "warned twice in training",
    "agent killed in shutdown",
    "node lost in shutdown",
    "node cut off in training",
    "node lost, one spare in start-up",
    "head node lost in training",
    "warning by SIGTERM in training",  # as Slurm does it at a preemption with grace
)
"""What `make test-faults` tries: a minute of a cluster each, and no other way through the code than
another case, tests/slurm/test_releases.py, or tests/launching on the clock that it moves, takes."""
_ELSEWHERE = {*_SHARED, *_BY_ALL_ALONE}
COURSES = (*_TOGETHER, *(Course.alone(case) for case in CORE if str(case) not in _ELSEWHERE))
"""The cases of the core, each once."""
