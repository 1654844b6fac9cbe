"""The state of runs, as `fsdpkit status` shows it: from the record, the scheduler and the disk.

Nothing here prints. Whatever could not be read is None, and named in `unread`; an unknown state is
never an end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from fsdpkit.bounded import LISTED_BYTES, LISTED_TASKS, TASKS_READ
from fsdpkit.errors import FsdpkitError, StorageError
from fsdpkit.reporting.predictions import Prediction
from fsdpkit.reporting.status.apart import set_apart
from fsdpkit.reporting.status.granted import asked_for, differences, said
from fsdpkit.reporting.status.held_runs import use_of_hold
from fsdpkit.reporting.status.job_words import (
    described,
    exit_in_words,
    other_jobs,
    phase_of,
    remarks,
    state_in_words,
)
from fsdpkit.reporting.status.status_record import FirstFailure, Status, Task, Waiting
from fsdpkit.reporting.worth import hints
from fsdpkit.runs.account import Account
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.provenance import read_provenance
from fsdpkit.runs.reading import open_regular, table_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.store import runs_by_end
from fsdpkit.scheduling.asking import Asking
from fsdpkit.scheduling.left_out import left_out
from fsdpkit.scheduling.run_states import Standing, States, decisive, seen_jobs
from fsdpkit.scheduling.states import JobState, id_in

_SET_APART = 64
"""Newest runs whose jobs are compared."""
_SOON_BYTES = 16 << 20
"""Of metrics, read in a moment."""

if TYPE_CHECKING:
    from fsdpkit.reporting.pending import PendingReason
    from fsdpkit.runs.history import Attempt


def all_statuses(
    top: Path, newest: int | None, asking: Asking | None = None, over: set[str] | None = None
) -> tuple[list[Status], int]:
    """Every run below `top` that has not ended for good, and the `newest` others (None: all), the
    newest first; and how many others are left out. over: as for `runs_by_end`. Raises StorageError
    if `top` cannot be read."""
    names = runs_by_end(top, over)
    ended = [name for name, over in names if over]
    left_out = set() if newest is None else set(ended[newest:])
    shown = [top / name for name, _ in names if name not in left_out]
    return _statuses(shown, asking or Asking()), len(left_out)


def _statuses(directories: Sequence[Path], asking: Asking) -> list[Status]:
    records = {directory: _listed(directory) for directory in directories}
    known = [(RunPaths(d), r) for d, r in records.items() if isinstance(r, RunRecord)]
    answers = asking.standings(known)
    standing = dict(zip((paths.dir for paths, _ in known), answers, strict=True))
    jobs = {paths.dir.name: table_in(paths.job) for paths, _ in known[:_SET_APART]}
    differs = set_apart(jobs)
    found = [
        Status(run=d.name, dir=str(d), error=r) if isinstance(r, str) else _shown(d, standing[d])
        for d, r in records.items()
    ]
    return [msgspec.structs.replace(one, differs=differs.get(one.run)) for one in found]


def _listed(directory: Path) -> RunRecord | str:
    """The record of one run among many, or why it is not shown: the others do not wait for it."""
    try:
        record = load(directory, most=LISTED_BYTES)
    except FsdpkitError as error:
        return str(error)
    if (tasks := sum(len(job.array or []) for job in record.jobs)) > LISTED_TASKS:
        return f"{tasks} tasks take long to look at: fsdpkit status {directory.name}"
    return record


def _shown(directory: Path, standing: Standing) -> Status:
    """Whatever is in a run's directory, the other runs are still shown."""
    try:
        return _brief(directory, standing)
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError, FsdpkitError) as error:
        words = f"its files cannot be parsed ({type(error).__name__}: {error})"
        return Status(run=directory.name, dir=str(directory), error=words)


def _brief(directory: Path, standing: Standing) -> Status:
    """A run among others: of one that has ended nothing but the record is read."""
    status = _status(directory, standing)
    if status.phase != "running":
        return status
    if standing.record.array is not None:
        steps = _task_steps(RunPaths(directory), decisive(standing.record, standing.states))
        return msgspec.structs.replace(status, task_steps=steps)
    state = next(iter(decisive(standing.record, standing.states).values()), None)
    task = _task(RunPaths(directory), standing, None, status.job_id, state)
    return _with_task(status, task)


def _task_steps(paths: RunPaths, states: States) -> list[int] | None:
    from fsdpkit.reporting.status.progress import steps_done

    running = [task_of(job_id) for job_id, s in states.items() if s and s.phase == "running"]
    stride = -(-len(running) // TASKS_READ) or 1
    job = table_in(paths.job)
    read = [steps_done(paths.task(number).metrics, job) for number in running[::stride]]
    done = [step for step, _ in filter(None, read)]
    planned = [of or 0 for _, of in filter(None, read)]
    return [min(done), max(done), max(planned)] if done else None


def one_status(directory: Path, asking: Asking | None = None) -> Status:
    """One run with all that is known of it. Raises NotFoundError, StorageError."""
    paths, asking = RunPaths(directory), asking or Asking()
    (standing,) = asking.standings([(paths, load(directory, copied=True))])
    status = _status(directory, standing)
    record = standing.record
    details, unread = _details(paths, standing, status, asking)
    tasks = [
        _task(paths, standing, task_of(job_id), job_id, state)
        for job_id, state in decisive(record, standing.states).items()
        if record.array is None or paths.task(task_of(job_id)).dir.exists()
    ]
    if record.array is None and not tasks:  # no job is known, but one may have run
        tasks = [_task(paths, standing, None, None, None)]
    status = _with_task(status, tasks[0]) if tasks else status
    if record.holds:
        held = use_of_hold(paths, record, status.elapsed_s or 0.0, asking)
        remarks_ = [*held.sentences, *status.remarks]
        status = msgspec.structs.replace(status, printed=None, remarks=remarks_, held=held)
    elif record.array is None and status.attempts:
        used = _used(paths, standing)
        done = status.phase == "succeeded"
        told = hints(used, table_in(paths.job), done=done) if used else []
        status = msgspec.structs.replace(status, used=used, hints=told)
    try:
        provenance = read_provenance(paths)
    except StorageError as error:
        provenance, unread = None, [*unread, str(error)]
    return msgspec.structs.replace(
        status,
        waiting=_waiting(record, standing.states, details),
        left_out=left_out(paths, record, id_in(details), said(details, "ExcNodeList") or ""),
        differences=differences(asked_for(paths), details),
        tasks=tasks if record.array is not None else [],
        predictions=_predictions(paths, record),
        provenance=provenance,
        unread=[*status.unread, *unread, *_unreadable(paths, tasks)],
    )


def _used(paths: RunPaths, standing: Standing) -> list[Account]:
    """As kept by the batch shell; what would take long to make is the report's."""
    from fsdpkit.runs.accounting import kept_accounts, read_or_make

    with contextlib.suppress(OSError):
        if paths.task().metrics.stat().st_size > _SOON_BYTES:
            return kept_accounts(paths)
    return read_or_make(paths, standing.record, seen=seen_jobs(standing.states))


def _predictions(paths: RunPaths, record: RunRecord) -> list[Prediction]:
    """Its metrics are read only where there is a plan to compare them with."""
    if record.array is not None or not any(paths.dir.glob("plan*.json")):
        return []
    from fsdpkit.reporting.report.predicted import comparisons
    from fsdpkit.reporting.training import trainings_of
    from fsdpkit.scheduling.run import Run

    (training,) = trainings_of(Run(paths.dir, record), [None], {})
    return comparisons(training)


def _with_task(status: Status, task: Task) -> Status:
    fields = ("attempts", "ending", "progress", "printed", "stage", "failure", "remarks")
    return msgspec.structs.replace(status, **{name: getattr(task, name) for name in fields})


def _status(directory: Path, standing: Standing) -> Status:
    record = standing.record
    states = decisive(record, standing.states)
    known = [state for state in states.values() if state is not None]
    one = known[0] if len(states) == 1 and known else None
    began = [state for state in known if state.phase != "pending" and not state.never_began]
    started_s = min((state.start_s for state in began if state.start_s), default=None)
    ends_s = max((state.end_s for state in began if state.end_s), default=None)
    return Status(
        run=record.id,
        dir=str(directory),
        job_id=next((job_of(job_id) for job_id in states), record.job_id),
        cluster=record.cluster or record.site,
        submitted_s=record.submitted_s or record.created_s,
        phase=phase_of(list(states.values())),
        state=state_in_words(standing, states),
        states={job_id: state.word if state else None for job_id, state in states.items()},
        exit=exit_in_words(one) if one else None,
        started_s=started_s,
        ends_s=ends_s,
        elapsed_s=_elapsed_s(known, started_s, ends_s),
        nodes=next((state.node_list for state in known if state.node_list), None),
        shape={"nodes": record.nodes, "ranks_per_node": record.ranks_per_node},
        waiting=_waiting(record, standing.states, {}),
        before=[asdict(job) for job in record.earlier],
        others=other_jobs(record, standing, states),
        unread=list(standing.unread),
    )


def _elapsed_s(
    states: Sequence[JobState], started_s: float | None, ends_s: float | None
) -> float | None:
    if started_s is None:
        return None
    if all(state.over for state in states):
        return None if ends_s is None else max(0.0, ends_s - started_s)
    return max(0.0, time.time() - started_s)


# Why it is pending, and what it will get


def _waiting(record: RunRecord, states: States, details: Mapping[str, str]) -> Waiting | None:
    """Of the run's first pending job. `details`: what scontrol says of it, empty if not asked."""
    pending = [(i, s) for i, s in decisive(record, states).items() if s and s.phase == "pending"]
    if not pending or any(s and s.phase == "running" for s in decisive(record, states).values()):
        return None
    from fsdpkit.reporting.pending import evidence_of, why

    evidence = evidence_of(*pending[0], details, record.id)
    answer = why(evidence)
    return Waiting(
        reason=evidence.reason,
        words=answer.words,
        action=answer.action,
        never=answer.never,
        start_s=_expected_s(answer, pending[0][1].start_s),
    )


def _expected_s(answer: PendingReason, start_s: float | None) -> float | None:
    """Slurm's own estimate, unless somebody has to do something first: then it also names a job
    that it has just looked at in vain."""
    hopeless = answer.never or (answer.action is not None and (start_s or 0.0) <= time.time())
    return None if hopeless else start_s


def _details(
    paths: RunPaths, standing: Standing, status: Status, asking: Asking
) -> tuple[dict[str, str], list[str]]:
    """What slurmctld has of a job that is not over; and why it did not say, if so."""
    record = standing.record
    active = status.phase in ("pending", "running") and status.job_id is not None
    if not active or not standing.answered:
        return {}, []
    states = decisive(record, standing.states).items()
    job_id, state = next((i, s) for i, s in states if s and not s.over)
    return asking.details(paths, record, job_id, state)


# What the run directory says


def _task(
    paths: RunPaths,
    standing: Standing,
    number: int | None,
    job_id: str | None,
    state: JobState | None,
) -> Task:
    """`state`: the scheduler's, None if it was not asked or did not know."""
    from fsdpkit.reporting.staged import stage_of
    from fsdpkit.reporting.status.printed import printed_by
    from fsdpkit.reporting.status.progress import progress_of
    from fsdpkit.runs.history import History, history_of

    try:
        history = history_of(paths, standing.record, number)
    except OSError:  # another user's, in a directory without access
        where = paths.task(number).dir
        history = History(run=paths.dir, array_task=number, dir=where, attempts=(), checkpoints=())
    job = table_in(paths.job)
    ranks = standing.record.nodes * standing.record.ranks_per_node
    running = state is not None and state.phase == "running"
    endings = [(a.number, a.ending) for a in history.attempts if a.ending is not None]
    return Task(
        task=number,
        job_id=job_id,
        state=described(state, standing),
        attempts=paths.task(number).attempts(),
        ending={"attempt": endings[-1][0], **asdict(endings[-1][1])} if endings else None,
        progress=asdict(progress_of(history, job)),
        printed=printed_by(history, job, ranks)
        if running or number is None  # an array may have thousands of tasks
        else None,
        stage=stage_of(history, standing.record.nodes, running=running),
        remarks=remarks(history, job, running=running),
        failure=_failure(history.attempts[-1]) if history.attempts else None,
    )


def _failure(attempt: Attempt) -> FirstFailure | None:
    first = attempt.first_failure
    return FirstFailure(message=first.message, status=first.status) if first else None


def _unreadable(paths: RunPaths, tasks: Iterable[Task]) -> list[str]:
    """What exists but may not be read: perhaps most of another user's run."""
    found = []
    for task in tasks:
        of_task = paths.task(task.task)
        newest = [of_task.attempt(number).dir for number in task.attempts[-1:]]
        for path in (paths.job, of_task.dir, *newest, of_task.metrics, of_task.checkpoints):
            if (why := _why_unreadable(path)) is not None:
                found.append(f"{path} cannot be read: {why}")
    return list(dict.fromkeys(found))


def _why_unreadable(path: Path) -> str | None:
    try:
        if path.is_dir():
            os.listdir(path)
        else:
            open_regular(path).close()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    return None
