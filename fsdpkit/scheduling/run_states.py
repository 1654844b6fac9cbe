"""The states of runs from those of their jobs: a run that was resumed has several.

Whoever asks also puts on record what is settled, so that ended runs are not asked for again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import JobRecord, RunRecord, Time, changing, save
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.outcome import judged, may_be_unseen
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.slurm import Round

_FORGOTTEN_S = 3 * 86400
"""How long an unconfirmed submission is looked for."""

States = dict[str, JobState | None]
"""By job id, array tasks as `12_3`; None where nobody could say."""


class Standing(NamedTuple):
    """What the scheduler said of one run."""

    record: RunRecord
    """With the job that an unconfirmed submission turned out to be."""
    states: States
    """Of all its jobs."""
    unread: tuple[str, ...] = ()
    """Why sources gave no answer, a sentence each."""
    answered: bool = True
    """False: some source gave no answer, so what is unknown may well exist."""


def standings(runs: Sequence[tuple[RunPaths, RunRecord]]) -> list[Standing]:
    """How these runs stand, with one round of questions for each cluster."""
    found: dict[RunPaths, Standing] = {}
    for kind, cluster in dict.fromkeys((record.kind, record.cluster) for _, record in runs):
        here = [(p, r) for p, r in runs if (r.kind, r.cluster) == (kind, cluster)]
        found |= _ask(here, kind, cluster)
    return [found[paths] for paths, _ in runs]


def _ask(
    runs: Sequence[tuple[RunPaths, RunRecord]], kind: str, cluster: str | None
) -> dict[RunPaths, Standing]:
    if all(job.ended is not None for _, record in runs for job in record.jobs) and not any(
        awaited(record) for _, record in runs
    ):
        return _answers(runs, {})
    from fsdpkit.scheduling.slurm import Round

    client, asked = cluster_of(kind, cluster), Round()
    comments = [comment(record) for _, record in runs if awaited(record)]
    jobs = client.find_by_comments(comments, asked) if comments else {}
    known = [(paths, confirmed(paths, record, jobs)) for paths, record in runs]
    states: dict[str, JobState] = {}
    for user, records in _by_owner(known).items():
        states |= client.states(_to_ask(records), asked, user)
    return _answers(known, states, asked)


def _by_owner(runs: Sequence[tuple[RunPaths, RunRecord]]) -> dict[str | None, list[RunRecord]]:
    """The records of each user, by number; None: nobody knows whose."""
    found: dict[str | None, list[RunRecord]] = {}
    for paths, record in runs:
        owner = None
        with contextlib.suppress(OSError):
            owner = str(os.stat(paths.record).st_uid)
        found.setdefault(owner, []).append(record)
    return found


def _to_ask(records: Sequence[RunRecord]) -> list[str]:
    """Ids of the jobs whose end is not on record."""
    return [
        i for record in records for job in record.jobs if job.ended is None for i in job.job_ids
    ]


def _answers(
    runs: Sequence[tuple[RunPaths, RunRecord]],
    states: Mapping[str, JobState],
    asked: Round | None = None,
) -> dict[RunPaths, Standing]:
    unread = tuple(asked.unread) if asked else ()
    answered = asked is None or asked.answered
    found = {}
    for paths, record in runs:
        known = {i: judged(paths, record, i, states[i]) for i in _to_ask([record]) if i in states}
        _put_on_record(paths, record, known)
        ours = {k: v for job in record.jobs for k, v in _of_job(job, known).items()}
        concerns = any(job.ended is None for job in record.jobs)
        found[paths] = Standing(record, ours, unread if concerns else (), answered or not concerns)
    return found


def all_states(runs: Sequence[tuple[RunPaths, RunRecord]]) -> list[States]:
    """For each run the states of all its jobs, with one round of questions for each cluster; none
    for jobs whose end is on record."""
    return [standing.states for standing in standings(runs)]


def comment(record: RunRecord) -> str:
    """What marks the run's jobs in Slurm."""
    return f"fsdpkit:{record.id}"


def awaited(record: RunRecord) -> bool:
    """Whether sbatch was called and nobody heard its answer, not too long ago."""
    if record.state == "submitted" and record.resuming is None:
        return False
    since_s = (record.resuming and record.resuming.submitted_s) or record.created_s
    return time.time() - since_s <= _FORGOTTEN_S


def confirmed(paths: RunPaths, record: RunRecord, jobs: Mapping[str, str]) -> RunRecord:
    """The record with the job that its submission turned out to be, by the jobs' comments; put on
    record where that is allowed."""
    job_id = jobs.get(comment(record)) if awaited(record) else None
    if job_id is None or job_id in [job.job_id for job in record.jobs]:
        return record
    if record.resuming is not None:
        found = record.with_job(msgspec.structs.replace(record.resuming, job_id=job_id))
    else:
        found = msgspec.structs.replace(record, state="submitted", job_id=job_id)
    # Whoever changes the run at this moment will write down the same.
    with (
        contextlib.suppress(StorageError, NotFoundError),
        changing(paths, patience_s=0) as now,
    ):
        if now == record:
            save(paths, found)
    return found


def _of_job(job: JobRecord, known: Mapping[str, JobState]) -> States:
    if job.ended is None:
        return {job_id: known.get(job_id) for job_id in job.job_ids}
    past = job.ended
    return {i: _recorded(past[i]) if i in past else None for i in job.job_ids}


_FIELDS = frozenset(field.name for field in fields(JobState))


def _recorded(state: Mapping[str, Any]) -> JobState | None:
    """A state from the record, None if it is none; keys of a later version are passed over."""
    try:
        found = msgspec.convert({k: v for k, v in state.items() if k in _FIELDS}, JobState)
        msgspec.convert([found.submit_s, found.start_s, found.end_s], list[Time | None])
    except msgspec.ValidationError:
        return None
    return found


def settled(job: JobRecord, known: Mapping[str, JobState | None]) -> JobRecord:
    """`job` with the end of all its tasks, where each is known for good."""
    states = {job_id: known.get(job_id) for job_id in job.job_ids}
    final = {
        job_id: asdict(state)
        for job_id, state in states.items()
        if state and state.final and not may_be_unseen(state)
    }
    if job.ended is not None or not final or len(final) < len(states):
        return job
    return msgspec.structs.replace(job, ended=final)


def _put_on_record(paths: RunPaths, record: RunRecord, known: Mapping[str, JobState]) -> None:
    if [settled(job, known) for job in record.jobs] == record.jobs:
        return
    # Somebody else's run, a full disk, or a run that is being resumed: asked for again next time.
    with (
        contextlib.suppress(StorageError, NotFoundError),
        changing(paths, patience_s=0) as now,
    ):
        jobs = [settled(job, known) for job in now.jobs]
        save(paths, now.with_jobs(jobs, resuming=now.resuming))


def decisive(record: RunRecord, states: Mapping[str, JobState | None]) -> States:
    """Of each task (the run itself without an array) the job that says how it stands.

    That is the newest; of jobs chained one behind the other, the first that has not failed, for
    the next starts only then, and goes away if it succeeds. One that was cancelled before it began
    says nothing of how the run ended.
    """
    found: States = {}
    for task, jobs in _by_task(record).items():
        ids = [id_of(str(job.job_id), task) for job in jobs]
        first = max((i for i, job in enumerate(jobs) if not job.after), default=0)
        if jobs and jobs[-1].job_id is not None:
            chosen = _first_not_failed(ids[first:], states)
            found[chosen] = states.get(chosen)
    return found


def _by_task(record: RunRecord) -> dict[int | None, list[JobRecord]]:
    """The jobs of each task, oldest first; of None without an array."""
    if record.array is None:
        return {None: record.jobs}
    found: dict[int | None, list[JobRecord]] = {task: [] for task in record.array_tasks or []}
    for job in record.jobs:
        for task in dict.fromkeys(job.array or []):
            found[task].append(job)
    return found


def _first_not_failed(ids: Sequence[str], states: Mapping[str, JobState | None]) -> str:
    while len(ids) > 1 and (state := states.get(ids[-1])) is not None and state.never_began:
        ids = ids[:-1]
    for place, job_id in enumerate(ids[:-1]):
        state = states.get(job_id)
        failed = state is not None and state.over and not state.succeeded
        if not failed and not any(_released(states.get(later)) for later in ids[place + 1 :]):
            return job_id
    return ids[-1]


def _released(state: JobState | None) -> bool:
    """Whether Slurm lets, or has let, a chained job start."""
    if state is None:
        return False
    waiting = state.reason in (None, "None") or (state.reason or "").startswith("Dependency")
    return (
        state.phase == "running"
        or bool(state.node_list)
        or (state.phase == "pending" and not waiting)
    )
