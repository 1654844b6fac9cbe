"""Whether a job fits its site, and may be submitted from where this process stands: everything
that is checked before a job is submitted, or a run resumed. Nothing is written."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fsdpkit.config.accelerate_file import unused_of
from fsdpkit.config.job import Resources
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.limits import shortest_s, warning_s
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.profile import NodeType, SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.submit_place import Here, reasons_against
from fsdpkit.config.surroundings import stood_in
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs import avoided_nodes, exclusions
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.record import now_s
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.entry import handles_warnings
from fsdpkit.scheduling.job_checks import (
    check_environment,
    check_on,
    check_training,
    look_at_files,
    what_is_handed_on,
)
from fsdpkit.scheduling.run_dir import check_paths
from fsdpkit.scheduling.stage_checks import check_stage, look_at_staged


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
    ConfigError for what cannot run there."""
    resources, profile = job.spec.resources, site.profile
    memory = str(resources.memory)
    if memory.isdecimal() and 0 < int(memory) < 1024:
        told = f"resources.memory: {memory} is megabytes a node: write {memory}G for gigabytes"
        raise UsageError(f"{told}, or {memory}M if you mean it")
    check_training(job, work_dir)
    check_paths(runs, work_dir)
    check_stage(job, site)
    here = stood_in() is None
    if here:
        check_environment(job, site)
    is_short = resources.time_s <= shortest_s(profile)
    placement = place(resources, site, saves=not is_short or handles_warnings(job))
    if here:
        from fsdpkit.scheduling.live_placement import completed, slices_in, with_qos
        from fsdpkit.scheduling.slurm_answers import answers_for

        placement = completed(placement, resources, profile)
        placement = with_qos(placement, resources, profile) if queues else placement
        slices = slices_in(placement, resources, profile)
        placement = replace(placement, warnings=(*placement.warnings, *slices))
    cluster = cluster_of(profile.kind, profile.slurm_clusters)
    cluster.check(resources, here=here)
    warnings = [*placement.warnings]
    if is_short:
        warnings.append(
            f"--time {resources.time}: the warning before the end comes "
            f"{warning_s(resources, profile)} s early, not {profile.policy.warning_s} s as in "
            f"longer jobs"
        )
    if re.fullmatch(r"[0-9]+:[0-9]+", resources.time):
        warnings.append(
            f"--time {resources.time} is minutes and seconds; in hours it is {resources.time}:00"
        )
    warnings += check_on(job, placement.node_type, work_dir)
    if (file := job.accelerate_config) is not None:
        warnings += unused_of(file, resources, f"job {job.spec.name}: launch.accelerate_config")
    avoided: tuple[tuple[str, str], ...] = ()
    if here:
        warnings += look_at_staged(job, profile, runs, work_dir)
    if here and not queues:
        warnings += look_at_files(job, runs, work_dir, elsewhere=True)
    elif here:
        warnings += not_from_here(job, site, placement.node_type, work_dir)
        warnings += look_at_files(job, runs, work_dir, elsewhere=cluster.elsewhere)
        if cluster.elsewhere:
            answers = answers_for(profile)
            warnings += what_is_handed_on(job, answers.settings() if answers else {})
            avoided, why_not = nodes_to_leave_out(runs, resources, placement, site)
            warnings += [f"avoiding {node}, {why}" for node, why in avoided] + why_not
    if queues and profile.policy.requeue is False and job.may_requeue and not chained:
        warnings.append(
            f"{profile.title} does not requeue jobs, so the job ends where [retry] would requeue "
            f"it: fsdpkit resume RUN --chained queues the next one behind it"
        )
    return replace(placement, warnings=tuple(warnings)), avoided


def not_from_here(job: LoadedJob, site: LoadedSite, node: NodeType, work_dir: Path) -> list[str]:
    """Why the job is not to be submitted from here; empty if nothing known speaks against it."""
    profile = site.profile
    if not cluster_of(profile.kind, profile.slurm_clusters).elsewhere:
        return []
    names = [os.uname().nodename]
    if profile.login.hosts:
        import socket  # only here: the full name may need an answer from the name service

        names.append(socket.getfqdn())
    here = Here(PurePosixPath(work_dir.resolve()), os.environ, tuple(names), platform.machine())
    environment = job.spec.environment
    own = not (environment.conda or environment.venv or environment.container)
    return list(reasons_against(profile, node, here, own_python=own))


def refuse_from_here(plan: Plan) -> None:
    """Raises UsageError."""
    if why := not_from_here(plan.job, plan.site, plan.placement.node_type, plan.work_dir):
        raise UsageError("; ".join(why))


def nodes_to_leave_out(
    runs: Path, resources: Resources, placement: Placement, site: LoadedSite
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """The nodes that the job leaves out, each with the why; and why others are not left out."""
    notes = avoided_nodes.avoided_on(site.id, runs, now_s())
    if not notes:
        return (), []
    left_out: list[AvoidedNode] = []
    if resources.nodelist:
        used, why = notes, "resources.nodelist says which nodes to use"
    else:
        left_out, used, why = _divided(notes, resources, placement, site.profile)
    names = ", ".join(note.node for note in used)
    return (
        tuple((note.node, _in_words(note)) for note in left_out),
        [f"not avoiding {names}: {why}"] if names else [],
    )


def _divided(
    notes: list[AvoidedNode], resources: Resources, placement: Placement, profile: SiteProfile
) -> tuple[list[AvoidedNode], list[AvoidedNode], str]:
    """Nodes to leave out, and to use after all, by what Slurm says of them; and why to use them."""
    from fsdpkit.scheduling.live_placement import free_for
    from fsdpkit.scheduling.slurm_answers import answers_of

    unknown = "how many nodes would be left is unknown"
    try:
        live = answers_of(profile.slurm_clusters).live(accounting=False)
    except SchedulerError as error:
        return [], notes, f"{unknown}; {str(error).splitlines()[0]}"
    own = exclusions.expand(resources.exclude or "")
    known = {node.name for node in live.all_nodes}
    if not known or own is None or resources.reservation:
        return [], notes, unknown
    left = [names - {*own} for names in free_for(live, placement, resources, profile)]
    left_out = exclusions.leave_out(notes, known, left, resources.nodes_asked)
    used = [note for note in notes if note.node in known and note not in left_out]
    why = f"too few others would be left for the job, which needs {resources.nodes_asked} nodes"
    return left_out, used, why


def _in_words(note: AvoidedNode) -> str:
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.until_s))
    why = "".join(c if c.isprintable() else " " for c in note.why)
    return f"until {until}: {why[:200]} ({note.run_id})"
