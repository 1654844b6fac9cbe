"""The nodes that a run of `fsdpkit hold` has, and which of them are free."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from fsdpkit.config.allocation import Allocation
from fsdpkit.config.job import Resources
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.scheduling.here.allocation import allocation_of
from fsdpkit.scheduling.here.commands import SCRIPT_STEP, host_names, job_text, steps_of
from fsdpkit.scheduling.local import store
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.slurm import SlurmClient

USUAL_IDLE_S = 900


def nodes_held_by(name: str, runs: str | os.PathLike[str] | None, kind: str) -> Allocation:
    """What the hold of that name has and no other run is on. Raises UsageError unless it is one and
    has nodes now, SchedulerError if that is not known."""
    run = OpenRun.open(name, runs=runs)
    if not run.record.holds:
        raise UsageError(f"{run.id} is no hold: fsdpkit hold gets nodes to run on")
    if run.record.kind != kind:
        raise UsageError(f"the hold {run.id} is on another cluster: {run.record.site}")
    state = run.state()
    if state is None:
        raise SchedulerError(f"whether the hold {run.id} has its nodes is not known at the moment")
    if state.phase != "running":
        raise UsageError(f"the hold {run.id} has no nodes now: {state.describe()}")
    assert run.job_id is not None
    found = _local(run) if run.record.kind == "local" else _slurm(run)
    if not found.nodes:
        raise UsageError(f"a run is on each node of the hold {run.id}: wait for its end")
    return replace(found, hold=run.id)


def _local(run: OpenRun) -> Allocation:
    from fsdpkit.scheduling.local.supervisor import nodes_of

    assert run.job_id is not None
    job, resources = store.find(run.job_id), table_of_job(run.dir, "resources", Resources)
    state = job.state() if job else None
    if job is None or state is None:
        raise SchedulerError(f"the local cluster knows no job {run.job_id}")
    taken = {node for other in store.on_hold(run.job_id) for node in other.description["nodes"]}
    nodes = nodes_of(int(job.id) * 7, resources.nodes)
    return Allocation(
        job_id=job.id,
        nodes=tuple(node for node in nodes if node not in taken),
        gpus=resources.gpus,
        cpus=int(job.description["options"]["cpus-per-task"]),
        left_s=int((state.end_s or time.time() + resources.time_s) - time.time()),
        partition="",
        account=None,
        cluster=None,
        submit_s=0.0,
    )


def _slurm(run: OpenRun) -> Allocation:
    assert run.job_id is not None
    client = SlurmClient(run.record.cluster)
    client.confirm(run.marked(run.job_id))
    found = allocation_of(run.job_id, job_text(run.job_id), client)
    steps = steps_of(run.job_id, run.record.cluster)
    if steps is None:
        raise SchedulerError(f"squeue does not say what runs on the hold {run.id}")
    guests = {step.run for step in steps if step.name.startswith(SCRIPT_STEP)} - {run.id}
    lists = {step.nodes for step in steps if step.run in guests}
    taken = {node for each in lists for node in host_names(each)}
    return replace(found, nodes=tuple(node for node in found.nodes if node not in taken))


def idle_limit_s(wanted_s: int | None, site: LoadedSite) -> int:
    """How long a hold may be without a run there. Raises UsageError for longer than the cluster's
    profile allows."""
    most_s = site.profile.policy.hold_idle_s
    if most_s == 0:
        raise UsageError(f"{site.profile.title} does not let anybody hold nodes that wait for runs")
    if wanted_s is None:
        return min(USUAL_IDLE_S, most_s or USUAL_IDLE_S)
    if most_s and wanted_s > most_s:
        raise UsageError(f"{site.profile.title} lets a hold be idle for {most_s} s at most")
    return wanted_s
