"""How a job ended by the run's own files, beside what the scheduler says: done needs a verdict.

A scheduler's COMPLETED says that the batch script ended with status 0; that all was done says the
head node's agent, in `verdict.json`. Where it left none, nobody knows. Statuses that tell of a stop
on request are believed only with the files that say so, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import msgspec

from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.runs import outcomes
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Ending
from fsdpkit.runs.reading import read_json
from fsdpkit.runs.record import RunRecord, Time, jobs_of_attempts
from fsdpkit.scheduling.states import JobState

_SCHEDULERS_WORDS = {
    "cancelled": "CANCELLED",
    "time-limit": "TIMEOUT",
    "preemption": "PREEMPTED",
}
"""By the cause that the batch shell put down, what a scheduler calls such an end."""
_SILENT_S = 180.0
"""How long nothing is written to the directory of an attempt before it counts as over: nodes write
a sample every ten seconds, of long attempts each 360th part of their age."""
RETURNS_WITHIN_S = 10.0
"""How long an end must last after which Slurm may queue the job again."""
UNSEEN_S = 60.0
"""How long a client of a network file system may not see a file that is there."""


def judged(paths: RunPaths, record: RunRecord, job_id: str, state: JobState) -> JobState:
    """`state` with its outcome, if it has ended in a way that the run's files speak of."""
    if not state.over or state.exit_signal:
        return state
    if state.state == "COMPLETED" and state.exit_code == 0:
        return _vouched_for(paths, record, job_id, state)
    if state.exit_code == STOPPED_EARLY:
        return _stopped(paths, record, job_id, state)
    if state.source == "sacct" and state.exit_code:
        return _with_signal(paths, record, job_id, state)
    return state


def may_be_unseen(state: JobState, now_s: float | None = None) -> bool:
    """Whether the files that would vouch for a job may only not have been seen yet."""
    ended_s = state.end_s or 0.0
    return state.outcome == "unknown" and (now_s or time.time()) - ended_s < UNSEEN_S


def settle_s(state: JobState) -> float:
    """How long an end must be the last word until it is believed, seconds."""
    if may_be_unseen(state):
        return UNSEEN_S
    return RETURNS_WITHIN_S if state.may_return else 0.0


def _vouched_for(paths: RunPaths, record: RunRecord, job_id: str, state: JobState) -> JobState:
    try:
        attempt = _newest_attempt(paths, record, job_id)
        if attempt is None:
            return replace(state, outcome="unknown", account="no attempt of it is on record")
        verdict = msgspec.convert(read_json(attempt.verdict), AttemptVerdict)
    except FileNotFoundError:
        return replace(state, outcome="unknown", account="no agent left a verdict")
    except OSError as error:
        why = f"its verdict cannot be read: {error.strerror}"
        return replace(state, outcome="unknown", account=why)
    except ValueError:
        return replace(state, outcome="unknown", account="its verdict cannot be understood")
    if verdict.trouble is not None:
        return replace(state, outcome="unknown", account=f"its verdict is {verdict.trouble.cause}")
    return replace(state, outcome="done")


def _with_signal(paths: RunPaths, record: RunRecord, job_id: str, state: JobState) -> JobState:
    """sacct prints 9 of a script that ended with 137, and of one that ended with 9 (22.05): the
    run's own record tells them apart."""
    attempt = newest_seen(paths, record, job_id)
    ending = None if attempt is None else outcomes.read(attempt.ending, Ending)
    if ending is None or ending.status != 128 + (state.exit_code or 0):
        return state
    return replace(state, exit_code=ending.status)


def _stopped(paths: RunPaths, record: RunRecord, job_id: str, state: JobState) -> JobState:
    if (attempt := newest_seen(paths, record, job_id)) is None:
        return state
    verdict = outcomes.read(attempt.verdict, AttemptVerdict)
    ending = outcomes.read(attempt.ending, Ending)
    trouble = verdict.trouble if verdict else None
    if not trouble or trouble.cause != "stopped" or not ending or ending.action != "end":
        return state
    saved = "" if ending.step is None else f"; saved at step {ending.step:,}"
    return replace(state, outcome="stopped", account=f"{ending.why}{saved}")


def left_by(paths: RunPaths, record: RunRecord, job_id: str) -> JobState | None:
    """How a job ended that the scheduler has forgotten: as its batch shell wrote at its end, else
    as somebody saw it stand before. None: neither is there."""
    attempt = newest_seen(paths, record, job_id)
    ending = outcomes.read(attempt.ending, Ending) if attempt else None
    if attempt is None or ending is None:
        return _seen(record, job_id, None if attempt is None else written_s(attempt))
    if ending.action != "end":
        return None
    word = _SCHEDULERS_WORDS.get(ending.cause, "FAILED") if ending.status else "COMPLETED"
    ended = JobState(word, "files", ending.status, 0, end_s=written_s(attempt))
    return judged(paths, record, job_id, ended)


def _seen(record: RunRecord, job_id: str, written: float | None) -> JobState | None:
    """The state that was put on record, unless an attempt has written more since."""
    for job in record.jobs:
        if (state := recorded((job.seen or {}).get(job_id))) is not None:
            since = 0.0 if written is None else written - (state.end_s or 0.0)
            return state if since <= UNSEEN_S else None
    return None


_FIELDS = frozenset(field.name for field in fields(JobState))


def recorded(state: Mapping[str, Any] | None) -> JobState | None:
    """A state from the record, None if it is none; keys of a later version are passed over."""
    try:
        found = msgspec.convert({k: v for k, v in (state or {}).items() if k in _FIELDS}, JobState)
        msgspec.convert([found.submit_s, found.start_s, found.end_s], list[Time | None])
    except msgspec.ValidationError:
        return None
    return found


def written_s(attempt: AttemptPaths) -> float | None:
    """When something was last written to a file of the attempt; None: it has none."""
    with contextlib.suppress(OSError), os.scandir(attempt.dir) as files:
        return max((one.stat(follow_symlinks=False).st_mtime for one in files), default=None)
    return None


def began(paths: RunPaths, record: RunRecord, job_id: str) -> bool:
    """Whether an attempt of the job is on record."""
    return newest_seen(paths, record, job_id) is not None


def still_written(paths: RunPaths, record: RunRecord, job_id: str) -> bool:
    """Whether an attempt of the job goes on, by what its nodes write, whoever knows the job."""
    try:
        attempt = _newest_attempt(paths, record, job_id)
        if attempt is None or attempt.ending.exists():
            return False
        began_s = attempt.dir.stat().st_mtime
    except OSError:
        return False
    now_s, last_s = time.time(), written_s(attempt)
    return last_s is not None and now_s - last_s < max(_SILENT_S, (last_s - began_s) / 100)


def newest_seen(paths: RunPaths, record: RunRecord, job_id: str) -> AttemptPaths | None:
    """The newest of this job; None also where nobody may look."""
    with contextlib.suppress(OSError):
        return _newest_attempt(paths, record, job_id)
    return None


def _newest_attempt(paths: RunPaths, record: RunRecord, job_id: str) -> AttemptPaths | None:
    """Of this job. Raises OSError where nobody may look, other than `TaskPaths.attempts`."""
    task = paths.task(task_of(job_id))
    try:
        os.listdir(task.dir)
    except FileNotFoundError:
        return None
    mine = jobs_of_attempts(record.jobs, task.attempts(), task_of(job_id))
    number = max((n for n, job in mine.items() if job.job_id == job_of(job_id)), default=None)
    return None if number is None else task.attempt(number)
