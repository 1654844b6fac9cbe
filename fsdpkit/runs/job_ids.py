"""Slurm's ids as its commands print them (squeue(1) %i, sacct(1) JobID): built, and parsed.

A job is `12`, one task of an array `12_3`, several of them `12_[0-7%2]`, a component of a
heterogeneous job `12+1`; a step follows a dot: `12_3.batch`. A record may contain text that Slurm
did not write: anything that is not an id names no task, and is left unchanged.
"""

from __future__ import annotations

import re

ONE = r"[0-9]{1,18}(_[0-9]{1,9})?"
"""The pattern of the id of a job or of one task, for what checks one before it goes on."""

_LONGEST = 4_000_001
"""The most tasks that an array can have (slurm.conf(5), MaxArraySize)."""
_SPAN = r"[0-9]{1,9}(?:-[0-9]{1,9}(?::[1-9][0-9]{0,8})?)?"
# squeue and sacct cut a long list short: 12_[1,3,5,...]
_ID = re.compile(
    r"([0-9]{1,18})(?:\+[0-9]{1,9})?"
    r"(?:_(?:([0-9]{1,9})|\[[0-9,:%.-]+\]|[0-9]{1,9}[,:%-][0-9,:%-]*))?"
    r"(?:\.[A-Za-z0-9_+-]{1,64})?"
)
_SEVERAL = re.compile(rf"([0-9]{{1,18}})_(\[)?({_SPAN}(?:,{_SPAN})*)(?:%[0-9]+)?(?(2)\])")


def id_of(job: str, task: int | None) -> str:
    """The id of a job, or of one task of its array.

    >>> id_of("12", None), id_of("12", 3)
    ('12', '12_3')
    """
    return job if task is None else f"{job}_{task}"


def job_of(job_id: str) -> str:
    """The job, of which the id may name a task, several, a component or a step.

    >>> job_of("12"), job_of("12_3"), job_of("12_[0-7]"), job_of("12.batch")
    ('12', '12', '12', '12')
    """
    match = _ID.fullmatch(job_id)
    return match[1] if match else job_id


def task_of(job_id: str) -> int | None:
    """The task; None where the id names none, or several.

    >>> task_of("12"), task_of("12_3"), task_of("12_[0-7]")
    (None, 3, None)
    """
    match = _ID.fullmatch(job_id)
    return int(match[2]) if match and match[2] else None


def without_step(step_id: str) -> tuple[str, str]:
    """The id of the job or task, and the name of its step; empty if the id names none.

    >>> without_step("12_3.batch"), without_step("12.0"), without_step("12")
    (('12_3', 'batch'), ('12', '0'), ('12', ''))
    """
    job_id, _, step = step_id.partition(".")
    return job_id, step


def each_of(job_id: str) -> list[str]:
    """The id of every task that an id names; any other id as itself.

    >>> each_of("12_[0-2,7%4]")
    ['12_0', '12_1', '12_2', '12_7']
    """
    match = _SEVERAL.fullmatch(job_id)
    if match is None:
        return [job_id]
    spans = []
    for part in match[3].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        spans.append(range(int(first), int(last or first) + 1, int(step or 1)))
    if not 0 < sum(map(len, spans)) <= _LONGEST:
        return [job_id]
    return [id_of(match[1], number) for span in spans for number in span]
