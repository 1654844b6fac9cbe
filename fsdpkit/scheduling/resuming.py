"""Resuming: one more Slurm job for a run that there is, in the same run directory.

plan_resume(): decide and check, write nothing. submit_resume(): call sbatch, record the answer.
At every moment the run is either what it was or has its next job. The record names that job as
`resuming` before sbatch is called, so a job that Slurm took and nobody heard of is found by its
comment; what the job before was given stays beside as job.<job id>.sbatch and .json.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.config.job_loading import LoadedJob, reload_job
from fsdpkit.config.published.centre import one_view
from fsdpkit.config.site import LoadedSite, site_on_record
from fsdpkit.config.template import load_template
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError, SubmissionInterrupted, UsageError, storage_errors
from fsdpkit.rendering.directives import read_directives
from fsdpkit.rendering.script import Plan, render
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.predicted import predicted_of, save_predicted
from fsdpkit.runs.reading import read_bytes, read_text
from fsdpkit.runs.record import JobRecord, RunRecord, changing, now_s, save
from fsdpkit.scheduling.allowance import with_remarks
from fsdpkit.scheduling.fitting import fit
from fsdpkit.scheduling.handing_over import (
    call_scheduler,
    refuse_before_queueing,
    write_job,
)
from fsdpkit.scheduling.here.request import again_in_allocation
from fsdpkit.scheduling.job_checks import check_array, prediction_of, training_of
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.outcome import RETURNS_WITHIN_S, began, still_written
from fsdpkit.scheduling.provenance import renew_provenance
from fsdpkit.scheduling.run_dir import refuse_if_open
from fsdpkit.scheduling.run_states import Standing, States, decisive
from fsdpkit.scheduling.sharing import tell_centre
from fsdpkit.scheduling.slurm import SubmissionUnconfirmed
from fsdpkit.scheduling.slurm_answers import wants_expediting
from fsdpkit.scheduling.wanted import Wanted

_IN_FLIGHT_S = 150.0
"""After so long sbatch, which is given 120 s, has taken a job or has not."""
_PATIENCE_S = 30.0
"""How long somebody else's sbatch is waited for, to tell which job came of it."""
_ATTEMPTS_OF_A_JOB = 100
"""Numbers that are left free for the attempts of a job that Slurm may queue again."""

AnyRun = TypeVar("AnyRun", bound=OpenRun)


@dataclass(frozen=True)
class ResumeRequest(Wanted):
    """What a person asked to be different, unchecked. None and empty: as it was."""

    chained: bool = False
    here: bool = False
    on: str | None = None
    """As in `SubmitRequest`: where it runs, in place of being queued."""
    tasks: Sequence[int] | None = None
    """Of an array, those to go on; None: those short of their goal, or all if it is another."""


def plan_resume(run: OpenRun, changes: ResumeRequest) -> Plan:
    """The plan of the run's next job. Raises FsdpkitError; writes nothing."""
    with one_view():
        return _plan_resume(run, changes)


def _plan_resume(run: OpenRun, changes: ResumeRequest) -> Plan:
    record = run.record
    if record.job_id is None:
        raise UsageError(
            f"run {run.id} was never confirmed as submitted, so there is nothing to continue: "
            "submit it again"
        )
    _refuse_while_in_flight(record)
    site, allocation = site_on_record(record.site, record.site_file), None
    if changes.here or changes.on is not None:
        changes, allocation = again_in_allocation(
            run, changes, lambda asked: (site, run.id, _reload(run, asked)), changes.on
        )
    before, job = _reload(run, ResumeRequest()), _reload(run, changes)
    assets.check_published(job.entry.path)
    standing = _settled_standing(run)
    states = standing.states
    ahead = jobs_ahead(run, standing)
    otherwise = _trains_otherwise(before, job)
    if changes.chained and ahead:
        _check_chain(run, otherwise, ahead)
        for job_id in ahead:
            run.client().confirm(run.marked(job_id))
    else:
        _check_not_over(run, states, ahead, otherwise)
    array = _array(run, states, changes.tasks, again=otherwise)
    check_array(job, array, chosen=True)
    work_dir = Path(record.work_dir)
    queues = allocation is None
    placement, avoided = fit(
        job, site, run.dir.parent, work_dir, chained=changes.chained, queues=queues
    )
    planned = Plan(
        job,
        site,
        load_template(job.spec.template),
        placement,
        work_dir,
        array,
        chained=tuple(ahead),
        avoided=avoided,
        first_attempt=_first_attempt(run, site, ahead),
        expedite=queues and wants_expediting(job, site.profile),
        allocation=allocation,
    )
    return with_remarks(planned) if queues else planned


def _refuse_while_in_flight(record: RunRecord) -> None:
    if record.resuming is not None and record.resuming.submitted_s is not None:
        left_s = record.resuming.submitted_s + _IN_FLIGHT_S - time.time()
        if left_s > 0:
            raise UsageError(
                f"another resume of {record.id} is in progress, or was interrupted while Slurm "
                f"may still accept its job: try again in at most {left_s:.0f} s"
            )


def _reload(run: OpenRun, changes: ResumeRequest) -> LoadedJob:
    kept = _kept(run.paths.job, run.record)
    path = kept if run.record.resuming is not None and kept.exists() else run.paths.job
    work_dir = Path(run.record.work_dir)
    return reload_job(
        path,
        f"run {run.id}",
        work_dir=work_dir,
        options=changes.options,
        sets=changes.sets,
        said_in=changes.said_in,
        written_by=run.record.version,
        read=read_bytes,
    )


def _settled_standing(run: OpenRun) -> Standing:
    """How the run stands, once no job is left that Slurm may be about to queue again."""
    deadline = time.monotonic() + RETURNS_WITHIN_S
    while True:
        standing = run.standing()
        newest = decisive(run.record, standing.states).values()
        if not any(s and s.may_return for s in newest) or time.monotonic() > deadline:
            return standing
        time.sleep(1.0)


def _check_not_over(run: OpenRun, states: States, ahead: Sequence[str], otherwise: bool) -> None:
    """Whether there is anything to go on with, and nobody at work on it."""
    if ahead:
        state = states.get(ahead[-1])
        how = f": {state.describe()}" if state else ": the scheduler does not say how it stands"
        if state is not None and state.held:
            raise UsageError(
                f"job {ahead[-1]} of run {run.id} is held: release it with fsdpkit resume and no "
                "options, or end it with fsdpkit cancel and then resume it otherwise"
            )
        chain = ", or queue its continuation now with --chained" if run.client().chains else ""
        raise UsageError(
            f"run {run.id} is not over (job {ahead[-1]}{how}); wait for its end, or end it with "
            f"fsdpkit cancel{chain}"
        )
    standing = decisive(run.record, states).values()
    if all(state and state.succeeded for state in standing) and not otherwise:
        raise UsageError(
            f"run {run.id} has reached its goal; to go on, change it: --set training.steps=… or "
            "training.epochs=…; for a script of your own, --set 'args=[…]'"
        )


def _check_chain(run: OpenRun, otherwise: bool, ahead: Sequence[str]) -> None:
    if any(job.here for job in run.record.jobs if job.job_id in ahead):
        raise UsageError(
            "--chained follows a job of the run's own, and this run was submitted --here"
        )
    if not run.client().chains:
        raise UsageError("the local cluster cannot chain jobs: resume the run when it has ended")
    if otherwise:
        raise UsageError(
            "--chained cannot change the training, because the job before it reads the same "
            "settings if it restarts: change them once the run has ended"
        )


def _trains_otherwise(before: LoadedJob, job: LoadedJob) -> bool:
    """Whether what the ranks are told differs, not only where they run."""

    def told(one: LoadedJob) -> tuple[object, ...]:
        return str(one.entry), one.spec.args, one.array_args, one.spec.training

    return told(before) != told(job)


def _array(
    run: OpenRun, states: States, chosen: Sequence[int] | None, *, again: bool
) -> str | None:
    """Array tasks to run: `chosen`, else those short of their goal; all if it changed (`again`)."""
    tasks = run.record.array_tasks
    if tasks is None:
        return None
    if chosen is not None and (stray := sorted({*chosen} - {*tasks})):
        raise UsageError(f"run {run.id} has no array task {stray[0]}")
    done = {
        task_of(job_id)
        for job_id, state in decisive(run.record, states).items()
        if state is not None and state.succeeded
    }
    left = tasks if again else [task for task in tasks if task not in done]
    left = left if chosen is None else sorted(chosen)
    asked = dict(read_directives(read_text(run.paths.script))).get("array") or ""
    _, percent, at_once = asked.partition("%")
    return ",".join(map(str, left)) + percent + at_once


def _first_attempt(run: OpenRun, site: LoadedSite, ahead: Sequence[str]) -> int:
    """The next free number; behind jobs that go on, one that their attempts will not reach."""
    tasks: list[int | None] = [None, *run.paths.array_tasks()]
    numbers = [number for task in tasks for number in run.paths.task(task).attempts()]
    free = max(numbers, default=-1) + 1
    if not ahead:
        return free
    room = 1 if site.profile.policy.requeue is False else _ATTEMPTS_OF_A_JOB
    return max(free, run.record.first_attempt + room)


def submit_resume(run: AnyRun, plan: Plan, consent: Consent | None = None) -> AnyRun:
    """Give the run its next job. Raises UsageError if somebody else was faster, ConfigError,
    StorageError, SchedulerError; then the run is what it was. consent: to what strangers could have
    written of the plan; None: to nothing of it."""
    from fsdpkit.scheduling.compiled_templates import compiled_templates

    refuse_before_queueing(plan, run.dir.parent, consent)
    refuse_if_open(run.dir.parent)
    script = render(plan, run.dir, compiled_templates())
    states = run.job_states()
    with changing(run.paths, patience_s=_PATIENCE_S) as record:
        if record.job_id != run.record.job_id:
            raise UsageError(f"run {run.id} was resumed meanwhile, as job {record.job_id}")
        old = record
        _keep(run.paths, record)
        record = _closed(record, states, plan.chained)
        next_job = _next_job(plan)
        save(run.paths, msgspec.structs.replace(record, resuming=next_job))
        try:
            write_job(run.paths, plan)
            renew_provenance(plan, run.paths)
            before = predicted_of(run.paths)
            found = prediction_of(plan, training_of(plan.job, plan.work_dir), before)
            save_predicted(run.paths, found)
            if not plan.chained:
                _take_back_requests(run)
            known = [job.job_id for job in record.jobs if job.job_id]
            taken = call_scheduler(plan, run.paths, script, known)
        except (SubmissionUnconfirmed, SubmissionInterrupted):
            raise
        except FsdpkitError:
            _put_back(run.paths, old)
            save(run.paths, old)
            raise
        record = msgspec.structs.replace(
            record.with_job(
                msgspec.structs.replace(
                    next_job,
                    job_id=taken.job_id,
                    slurm_cluster=taken.slurm_cluster,
                    slurm_submit_s=taken.slurm_submit_s,
                )
            ),
            cluster=taken.cluster,
            version=fsdpkit.__version__,
            template=f"{plan.template.manifest.name} {plan.template.manifest.version}",
            digests=plan.digests,
            on=plan.hold,
        )
        save(run.paths, record)
        if old.job_id == taken.job_id:  # begun again in its allocation
            _forget_kept(run.paths, old)
    tell_centre(plan, run.paths)
    return run.with_record(record)


def _take_back_requests(run: OpenRun) -> None:
    """Who asked the run to stop and not to come back did not mean the job that follows."""
    tasks: list[int | None] = [None, *run.paths.array_tasks()]
    for task in tasks:
        path = run.paths.task(task).stop_requested
        with storage_errors(path, "removed"):
            path.unlink(missing_ok=True)


def _next_job(plan: Plan) -> JobRecord:
    resources = plan.job.spec.resources
    return JobRecord(
        nodes=resources.nodes,
        ranks_per_node=plan.job.spec.ranks_per_node,
        array=plan.tasks,
        first_attempt=plan.first_attempt,
        after=list(plan.chained),
        left_out=[node for node, _ in plan.avoided],
        here=plan.allocation is not None,
        submitted_s=now_s(),
    )


def _closed(record: RunRecord, states: States, ahead: Sequence[str]) -> RunRecord:
    """The record with the end of every job that is over, as far as it is known."""
    jobs = []
    for job in record.jobs:
        if job.ended is None and job.job_id not in ahead:
            known = {j: asdict(s) for j in job.job_ids if (s := states.get(j)) is not None}
            job = msgspec.structs.replace(job, ended=known)
        jobs.append(job)
    return record.with_jobs(jobs, resuming=None)


def _kept(path: Path, record: RunRecord) -> Path:
    """Where the newest job's own `job.sbatch` or `job.json` stays once there is a next one."""
    return path.with_name(f"{path.stem}.{record.job_id}{path.suffix}")


def _files_of_a_job(paths: RunPaths) -> tuple[Path, ...]:
    return paths.script, paths.job, paths.provenance, paths.source_diff, paths.plan


def _keep(paths: RunPaths, record: RunRecord) -> None:
    """Set aside what the newest job was given; after a resume that was cut short it is there."""
    with storage_errors(paths.dir, "written"):
        for path in _files_of_a_job(paths):
            kept = _kept(path, record)
            if path.exists() and not kept.exists():
                write_atomically(kept, read_bytes(path), private=path == paths.source_diff)
    named = paths.submitit / f"{record.job_id}_submission.sh"
    with contextlib.suppress(OSError):
        named.unlink()
        named.symlink_to(os.path.relpath(_kept(paths.script, record), named.parent))


def _forget_kept(paths: RunPaths, record: RunRecord) -> None:
    for path in _files_of_a_job(paths):
        with contextlib.suppress(OSError):
            _kept(path, record).unlink()


def _put_back(paths: RunPaths, record: RunRecord) -> None:
    """Sbatch took nothing: the run's files are the newest job's again."""
    with contextlib.suppress(OSError):
        paths.plan.unlink(missing_ok=True)  # the newest job may have had none
        for path in _files_of_a_job(paths):
            with contextlib.suppress(FileNotFoundError):
                kept = read_bytes(_kept(path, record))
                write_atomically(path, kept, private=path == paths.source_diff)


def jobs_ahead(run: OpenRun, standing: Standing) -> list[str]:
    """Ids of the run's jobs that are not over. Raises UsageError where that cannot be told here."""
    if standing.elsewhere:
        raise UsageError(
            f"run {run.id} is another cluster's ({standing.strange}): resume it from a machine of "
            "that cluster"
        )
    states, ahead = standing.states, []
    for job in [job for job in run.record.jobs if job.ended is None]:
        known = ((job_id, states.get(job_id)) for job_id in job.job_ids)
        open_ids = [job_id for job_id, s in known if s is None or s.phase != "ended"]
        unknown = all(states.get(job_id) is None for job_id in open_ids)
        # Without accounting Slurm forgets a job minutes after its end.
        if job.job_id and open_ids and not (unknown and _forgotten(run, standing, job.job_id)):
            ahead.append(job.job_id)
    return ahead


def _forgotten(run: OpenRun, standing: Standing, job_id: str) -> bool:
    """Whether the scheduler answers that it knows no such job, and no node is at work on it. A
    cluster of the same name may know it. Raises UsageError for a run whose nodes still write, and
    for one that may still wait there."""
    if not run.client().forgot(run.marked(job_id)):
        return False
    mine = [i for i in standing.states if job_of(i) == job_id]
    if standing.strange and not any(began(run.paths, run.record, one) for one in mine):
        raise UsageError(
            f"whether job {job_id} of run {run.id} still waits somewhere cannot be told "
            f"({standing.strange}); it has done nothing yet: submit it again"
        )
    if any(still_written(run.paths, run.record, one) for one in mine):
        raise UsageError(
            f"the scheduler knows no job {job_id} of run {run.id}, but its nodes still write to "
            f"{run.dir}: either another cluster of this name runs it, or it has just ended; resume "
            "it there, or once it has been silent for a few minutes"
        )
    return True


def release_held(run: OpenRun) -> list[str]:
    """Release the jobs, or array tasks, of the run that wait for that; their ids. Raises
    SchedulerError where Slurm refuses."""
    states = run.states()
    held = [job_id for job_id, state in states.items() if state is not None and state.held]
    for job_id in held:
        run.client().release(run.marked(job_id))
    return held
