"""A job handed to the scheduler: what forbids it, its file in the run directory, the call that
queues it."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from fsdpkit.config.private_files import set_mode
from fsdpkit.config.trust import Consent, items_of, vouch
from fsdpkit.errors import SchedulerError, StorageError, SubmissionInterrupted, storage_errors
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.scheduling.allowance import refuse_what_never_starts
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.fitting import refuse_from_here
from fsdpkit.scheduling.job_checks import training_of
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.room import refuse_without_room
from fsdpkit.scheduling.run_dir import mode_of_run


def refuse_before_queueing(plan: Plan, runs: Path, consent: Consent | None) -> None:
    """Raises an FsdpkitError for what is not to be queued, or not from here, before anything is
    made. consent: to what strangers could have written of the plan; None: to nothing of it."""
    (consent or Consent()).to(items_of(plan.job, plan.site, plan.template))
    if plan.allocation is None:
        refuse_from_here(plan)
        refuse_what_never_starts(plan)
    refuse_without_room(plan.job, runs, training_of(plan.job, plan.work_dir))


def write_job(paths: RunPaths, plan: Plan) -> None:
    """`job.json`, from which the run can be resumed anywhere: its script has the whole path. What
    the job makes beside it is as open as it says, also in a run of an earlier release."""
    with storage_errors(paths.job, "written"):
        set_mode(paths.dir, mode_of_run(group=plan.job.opens_to_group))
        write_atomically(paths.job, plan.job.resolved)
        vouch(plan.job.as_run(paths.job, plan.work_dir))
        if plan.job.spec.staged.environment:
            from fsdpkit.scheduling.packing import pack_for

            pack_for(plan, paths)


class HandedOver(NamedTuple):
    """What is known of a job that the scheduler took."""

    job_id: str
    cluster: str | None
    """As sbatch named it, to be asked there (`-M`)."""
    slurm_cluster: str | None
    """As the cluster calls itself."""
    slurm_submit_s: float | None
    """When it took the job, by its clock."""


def call_scheduler(
    plan: Plan, paths: RunPaths, script: str, known: Collection[str] = ()
) -> HandedOver:
    """Queue the job, and say what it is known by from now on. known: the run's other jobs. Raises
    SubmissionUnconfirmed if Slurm may have the job and does not show it yet, and
    SubmissionInterrupted on Ctrl-C."""
    from fsdpkit.scheduling.slurm import SubmissionUnconfirmed

    cluster = _taker(plan)
    unknown = (
        "whether the job was accepted is not known. The run is kept: fsdpkit status "
        f"{shlex.quote(str(paths.dir))} looks for it in Slurm"
    )
    try:
        with _nodes_taken(plan, paths):
            job_id, name = _call_or_find(plan, cluster, paths, script, known)
        job = MarkedJob(job_id, JobMark.of(paths.dir, f"fsdpkit:{paths.dir.name}"))
        named = name is not None and plan.allocation is None
        asked = cluster_of(plan.site.profile.kind, name) if named else cluster
        return HandedOver(job_id, name, *asked.receipt(job))
    except KeyboardInterrupt as error:
        raise SubmissionInterrupted(f"interrupted while Slurm was asked; {unknown}") from error
    except SubmissionUnconfirmed as error:
        raise SubmissionUnconfirmed(f"{error}; {unknown}") from error


def _nodes_taken(plan: Plan, paths: RunPaths) -> AbstractContextManager[None]:
    if plan.allocation is None or plan.hold is None:
        return nullcontext()
    from fsdpkit.scheduling.here.held import taking

    return taking(plan.allocation, paths.dir.name, plan.site.profile.kind)


def _taker(plan: Plan) -> Cluster:
    """Who takes the job: its cluster, or the allocation that it runs in."""
    profile = plan.site.profile
    if plan.allocation is None:
        return cluster_of(profile.kind, profile.slurm_clusters)
    if profile.kind == "local":
        from fsdpkit.scheduling.local.client import LocalClient

        return LocalClient(plan.allocation.nodes, plan.allocation.job_id)
    from fsdpkit.scheduling.here.client import AllocationClient

    return AllocationClient(profile.slurm_clusters, allocation=plan.allocation)


def _call_or_find(
    plan: Plan, cluster: Cluster, paths: RunPaths, script: str, known: Collection[str]
) -> tuple[str, str | None]:
    from fsdpkit.scheduling.slurm import Round, SubmissionUnconfirmed

    try:
        return _call(plan, cluster, paths, script)
    except SubmissionUnconfirmed:
        comment = f"fsdpkit:{paths.dir.name}"
        job_id = cluster.find_by_comments([comment], Round()).get(comment)
        if job_id is None or job_id in known:
            raise
        return job_id, plan.site.profile.slurm_clusters


def _call(plan: Plan, cluster: Cluster, paths: RunPaths, script: str) -> tuple[str, str | None]:
    """Through submitit's executor."""
    from fsdpkit.launching.task import LaunchNode
    from fsdpkit.scheduling.executor import FsdpkitExecutor

    executor = FsdpkitExecutor(
        paths.submitit,
        script=script,
        script_path=paths.script,
        nodes=plan.job.spec.resources.nodes,
        client=cluster,
    )
    try:
        executor.submit_function(LaunchNode(), plan.tasks)
    except StorageError:
        if executor.submitted is None:
            raise
    submitted = executor.submitted
    if submitted is None:
        raise SchedulerError("submitit returned without a submission")
    return submitted.job_id, submitted.cluster
