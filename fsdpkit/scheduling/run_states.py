"""The states of runs from those of their jobs: a run that was resumed has several.

Whoever asks also puts on record what is settled, so that ended runs are not asked for again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import JobRecord, RunRecord, changing, save
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.local.client import LocalClient
    from fsdpkit.scheduling.slurm import SlurmClient

States = dict[str, JobState | None]
"""By job id, array tasks as `12_3`; None where nobody could say."""


def client_for(kind: str, cluster: str | None) -> SlurmClient | LocalClient:
    """The client of a site's kind."""
    if kind == "local":
        from fsdpkit.scheduling.local.client import LocalClient

        return LocalClient()
    from fsdpkit.scheduling.slurm import SlurmClient

    return SlurmClient(cluster)


def all_states(runs: Sequence[tuple[RunPaths, RunRecord]]) -> list[States]:
    """For each run the states of all its jobs, with one round of questions for each cluster; none
    for jobs whose end is on record."""
    known: dict[tuple[str, str | None], Mapping[str, JobState]] = {}
    for cluster in {(record.kind, record.cluster) for _, record in runs}:
        ids = [
            job_id
            for _, record in runs
            if (record.kind, record.cluster) == cluster
            for job in record.jobs
            if job.ended is None
            for job_id in job.job_ids
        ]
        known[cluster] = client_for(*cluster).states(ids) if ids else {}
    answers = []
    for paths, record in runs:
        states = known[record.kind, record.cluster]
        _put_on_record(paths, record, states)
        answers.append({k: v for job in record.jobs for k, v in _of_job(job, states).items()})
    return answers


def _of_job(job: JobRecord, known: Mapping[str, JobState]) -> States:
    if job.ended is None:
        return {job_id: known.get(job_id) for job_id in job.job_ids}
    past = {job_id: JobState(**state) for job_id, state in job.ended.items()}
    return {job_id: past.get(job_id) for job_id in job.job_ids}


def settled(job: JobRecord, known: Mapping[str, JobState | None]) -> JobRecord:
    """`job` with the end of all its tasks, where each is known for good."""
    states = {job_id: known.get(job_id) for job_id in job.job_ids}
    final = {job_id: asdict(state) for job_id, state in states.items() if state and state.final}
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
    the next starts only then, and goes away if it succeeds.
    """
    found: States = {}
    for task in [None] if record.array_tasks is None else record.array_tasks:
        jobs = [job for job in record.jobs if task is None or task in (job.array or [])]
        ids = [f"{job.job_id}" if task is None else f"{job.job_id}_{task}" for job in jobs]
        first = max((i for i, job in enumerate(jobs) if not job.after), default=0)
        if jobs and jobs[-1].job_id is not None:
            chosen = _first_not_failed(ids[first:], states)
            found[chosen] = states.get(chosen)
    return found


def _first_not_failed(ids: Sequence[str], states: Mapping[str, JobState | None]) -> str:
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
