"""Whether a job fits its site: everything that is checked of both before a job is submitted, or a
run resumed. Nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsdpkit.config.accelerate_file import unused_of
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.limits import shortest_s, warning_s
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import stood_in
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.elsewhere import not_from_here
from fsdpkit.scheduling.entry import heeds_warnings
from fsdpkit.scheduling.job_checks import (
    check_environment,
    check_on,
    check_training,
    look_at_files,
    what_is_handed_on,
)
from fsdpkit.scheduling.leaving_out import nodes_to_leave_out
from fsdpkit.scheduling.run_dir import check_paths


def fit(
    job: LoadedJob,
    site: LoadedSite,
    runs: Path,
    work_dir: Path,
    *,
    chained: bool = False,
    queues: bool = True,
) -> tuple[Placement, tuple[tuple[str, str], ...]]:
    """Where the job goes on `site`, with all warnings, and the nodes it avoids, each with the why.

    queues: whether a scheduler is to find it a place; False: it has one. Raises UsageError or
    ConfigError for what cannot run there.
    """
    resources, profile = job.spec.resources, site.profile
    check_training(job, work_dir)
    check_paths(runs, work_dir)
    here = stood_in() is None
    if here:
        check_environment(job, site)
    is_short = resources.time_s <= shortest_s(profile)
    placement = place(resources, site, saves=not is_short or heeds_warnings(job))
    if here:
        from fsdpkit.scheduling.live_placement import completed, with_qos

        placement = completed(placement, resources, profile)
        placement = with_qos(placement, resources, profile) if queues else placement
    cluster = cluster_of(profile.kind, profile.slurm_clusters)
    cluster.check(resources, here=here)
    warnings = [*placement.warnings]
    if is_short:
        warnings.append(
            f"--time {resources.time}: the warning before the end comes "
            f"{warning_s(resources, profile)} s early, not {profile.policy.warning_s} s as in "
            f"longer jobs"
        )
    warnings += check_on(job, placement.node_type, work_dir)
    if (file := job.accelerate_config) is not None:
        warnings += unused_of(file, resources, f"job {job.spec.name}: launch.accelerate_config")
    avoided: tuple[tuple[str, str], ...] = ()
    if here and not queues:
        warnings += look_at_files(job, runs, work_dir, elsewhere=True)
    elif here:
        warnings += not_from_here(job, site, placement.node_type, work_dir)
        warnings += look_at_files(job, runs, work_dir, elsewhere=cluster.elsewhere)
        if cluster.elsewhere:
            warnings += what_is_handed_on(job, placement.slurm_conf)
            avoided, why_not = nodes_to_leave_out(runs, resources, placement, site)
            warnings += [f"avoiding {node}, {why}" for node, why in avoided] + why_not
    if queues and profile.policy.requeue is False and job.may_requeue and not chained:
        warnings.append(
            f"{profile.title} does not requeue jobs, so the job ends where [retry] would requeue "
            f"it: fsdpkit resume RUN --chained queues the next one behind it"
        )
    return replace(placement, warnings=tuple(warnings)), avoided
