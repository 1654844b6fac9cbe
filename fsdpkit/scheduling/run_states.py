"""The states of runs from those of their jobs: a run that was resumed has several.

Whoever asks also puts on record what is settled, so that ended runs are not asked for again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.account import SeenJobs
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import JobRecord, RunRecord, changing, save
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.job_mark import MarkedJob, comment, marked_jobs
from fsdpkit.scheduling.outcome import judged, left_by, may_be_unseen, recorded
from fsdpkit.scheduling.sharing import tell_ends
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.slurm import Round

_RETURNED_S = 60.0
"""A job that Slurm has not queued again by then stays ended."""
_FORGOTTEN_S = 3 * 86400
"""How long an unconfirmed submission is looked for."""

States = dict[str, JobState | None]
"""By job id, array tasks as `12_3`; None where nobody could say."""


def seen_jobs(states: Mapping[str, JobState | None]) -> SeenJobs:
    """What accounts go by."""
    known = {job_id: state for job_id, state in states.items() if state is not None}
    return SeenJobs(
        running={job_id for job_id, state in known.items() if state.phase == "running"},
        succeeded={job_id for job_id, state in known.items() if state.succeeded},
    )


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
    strange: str | None = None
    """Why a job of the run is unknown here: another cluster's, or another job has its number."""
    elsewhere: bool = False
    """Whether that is because another cluster took it."""


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
        return _recorded_only(runs)
    from fsdpkit.scheduling.slurm import Round

    client, asked = cluster_of(kind, cluster), Round()
    comments = [comment(record) for _, record in runs if awaited(record)]
    jobs = client.find_by_comments(comments, asked) if comments else {}
    known = [(paths, confirmed(paths, record, jobs)) for paths, record in runs]
    marked = {paths: _to_ask(paths, record) for paths, record in known}
    states = client.states([job for jobs in marked.values() for job in jobs], asked)
    return {
        paths: _standing(paths, record, marked[paths], states, client, asked)
        for paths, record in known
    }


def _to_ask(paths: RunPaths, record: RunRecord) -> list[MarkedJob]:
    """The jobs whose end is not on record."""
    marked = marked_jobs(paths.dir, record)
    return [marked[i] for job in record.jobs if job.ended is None for i in job.job_ids]


def _standing(
    paths: RunPaths,
    record: RunRecord,
    jobs: Sequence[MarkedJob],
    states: Mapping[MarkedJob, JobState],
    client: Cluster,
    asked: Round,
) -> Standing:
    known = {job.id: judged(paths, record, job.id, states[job]) for job in jobs if job in states}
    lacking = [job for job in jobs if job not in states]
    if asked.answered:
        for job in lacking:
            if (left := left_by(paths, record, job.id)) is not None:
                known[job.id] = left
    _put_on_record(paths, record, known, whole=asked.answered)
    ours = {k: v for job in record.jobs for k, v in _of_job(job, known).items()}
    unknown = [job for job in lacking if job.id not in known]
    concerns = any(job.ended is None for job in record.jobs)
    unread = tuple(asked.unread) if concerns else ()
    return Standing(
        record, ours, unread, asked.answered or not concerns, *_strange(unknown, client, asked)
    )


def _strange(jobs: Sequence[MarkedJob], client: Cluster, asked: Round) -> tuple[str | None, bool]:
    """Why nothing is known of these here, and whether another cluster has one of them."""
    for job in jobs:
        here = client.name(asked) if job.mark.cluster is not None else None
        if here is not None and here != job.mark.cluster:
            return f"{job.belongs()}, and this is cluster {here}", True
    for job in jobs:
        if job in asked.strangers:
            return f"{job.id} is another job here: {job.differences(asked.strangers[job])}", False
    return None, False


def _recorded_only(runs: Sequence[tuple[RunPaths, RunRecord]]) -> dict[RunPaths, Standing]:
    """Of runs that have ended, by their records alone."""
    return {
        paths: Standing(record, {k: v for job in record.jobs for k, v in _of_job(job, {}).items()})
        for paths, record in runs
    }


def awaited(record: RunRecord) -> bool:
    """Whether sbatch was called and nobody heard its answer, not too long ago."""
    if record.state == "submitted" and record.resuming is None:
        return False
    since_s = (record.resuming and record.resuming.submitted_s) or record.created_s
    return time.time() - since_s <= _FORGOTTEN_S


def confirmed(paths: RunPaths, record: RunRecord, jobs: Mapping[str, str]) -> RunRecord:
    """The record with the job that its submission became, by comments; put on record if allowed."""
    job_id = jobs.get(comment(record)) if awaited(record) else None
    if job_id is None or job_id in [job.job_id for job in record.jobs]:
        return record
    if record.resuming is not None:
        found = record.with_job(msgspec.structs.replace(record.resuming, job_id=job_id))
    else:
        found = msgspec.structs.replace(record, state="submitted", job_id=job_id)
    # Whoever changes the run at this moment will write down the same.
    with contextlib.suppress(StorageError, NotFoundError), changing(paths, patience_s=0) as now:
        if now == record:
            save(paths, found)
    return found


def _of_job(job: JobRecord, known: Mapping[str, JobState]) -> States:
    if job.ended is None:
        return {job_id: known.get(job_id) for job_id in job.job_ids}
    past = job.ended
    return {i: recorded(past.get(i)) for i in job.job_ids}


def settled(
    job: JobRecord, known: Mapping[str, JobState | None], *, whole: bool = False
) -> JobRecord:
    """`job` with the end of all its tasks, where each is known for good; else with those seen that
    end it unless Slurm queues it again. whole: every source that may know more has answered."""
    states = {job_id: known.get(job_id) for job_id in job.job_ids}
    if job.ended is not None:
        return job
    final = {job_id: asdict(s) for job_id, s in states.items() if s and _for_good(s, whole)}
    if final and len(final) == len(states):
        return msgspec.structs.replace(job, ended=final, seen=None)
    seen = {job_id: asdict(s) for job_id, s in states.items() if s and s.may_return}
    seen = {**(job.seen or {}), **seen}
    return msgspec.structs.replace(job, seen=seen) if seen else job


def _for_good(state: JobState, whole: bool) -> bool:
    if state.may_return:
        return whole and state.end_s is not None and time.time() - state.end_s > _RETURNED_S
    return state.final and not may_be_unseen(state)


def _put_on_record(
    paths: RunPaths, record: RunRecord, known: Mapping[str, JobState], *, whole: bool
) -> None:
    if [settled(job, known, whole=whole) for job in record.jobs] == record.jobs:
        return
    # Somebody else's run, a full disk, or a run that is being resumed: asked for again next time.
    with contextlib.suppress(StorageError, NotFoundError), changing(paths, patience_s=0) as now:
        jobs = [settled(job, known, whole=whole) for job in now.jobs]
        after = now.with_jobs(jobs, resuming=now.resuming)
        save(paths, after)
        tell_ends(paths, now, after)


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
