"""The nodes that a run of `fsdpkit hold` has, and which of them are free."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from fsdpkit.config.allocation import Allocation
from fsdpkit.config.job import Resources
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.lock import locked
from fsdpkit.runs.reading import table_in
from fsdpkit.runs.store import is_mine
from fsdpkit.scheduling.here.allocation import allocation_of
from fsdpkit.scheduling.here.commands import SCRIPT_STEP, job_text, steps_of
from fsdpkit.scheduling.local import store
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.slurm import SlurmClient

USUAL_IDLE_S = 900
_PATIENCE_S = 150.0
"""For another run to start, which Slurm may take two minutes for."""
_MOST_GUESTS = 200
"""Runs on record at a time; on each node of a hold there is one at most."""


def nodes_held_by(name: str, runs: str | os.PathLike[str] | None, kind: str) -> Allocation:
    """What the hold of that name has and no other run is on. Raises UsageError unless it is one and
    has free nodes now, SchedulerError if that is not known."""
    found = free_on(name, runs, kind)
    if not found.nodes:
        raise UsageError(f"a run is on each node of the hold {name}: wait for its end")
    return found


def free_on(name: str, runs: str | os.PathLike[str] | None, kind: str) -> Allocation:
    """The same, with no node at all while runs are on each of them."""
    run = OpenRun.open(name, runs=runs)
    if not run.record.holds or not is_mine(run.dir):
        raise UsageError(f"{run.id} is no hold of yours: fsdpkit hold gets nodes to run on")
    if run.record.kind != kind:
        raise UsageError(f"the hold {run.id} is on another cluster: {run.record.site}")
    state = run.state()
    if state is None:
        raise SchedulerError(f"whether the hold {run.id} has its nodes is not known at the moment")
    if state.phase != "running":
        raise UsageError(f"the hold {run.id} has no nodes now: {state.describe()}")
    if run.paths.task().stop_requested.exists():
        raise UsageError(f"the hold {run.id} is giving its nodes back")
    resources = table_of_job(run.dir, "resources", Resources)
    is_local = run.record.kind == "local"
    found, taken = _local(run, resources) if is_local else _slurm(run)
    free = tuple(node for node in found.nodes if node not in taken)
    return replace(found, nodes=free, gpus=resources.gpus, hold=run.dir)


@contextlib.contextmanager
def taking(allocation: Allocation, run_id: str, kind: str) -> Iterator[None]:
    """While a run starts on these nodes of a hold: nobody else may take them. Raises UsageError."""
    assert allocation.hold is not None
    paths = RunPaths(allocation.hold)
    with locked(paths.guests.with_name(f"{paths.guests.name}.lock"), _PATIENCE_S):
        free = free_on(str(paths.dir), None, kind).nodes
        if gone := [node for node in allocation.nodes if node not in free]:
            raise UsageError(f"another run has just taken {', '.join(gone)}: submit it again")
        known = {**table_in(paths.guests), run_id: list(allocation.nodes)}
        newest = dict([*known.items()][-_MOST_GUESTS:])
        write_atomically(paths.guests, json.dumps(newest), private=True)
        yield


def _local(run: OpenRun, resources: Resources) -> tuple[Allocation, set[str]]:
    """Its nodes, and those that runs are on."""
    from fsdpkit.scheduling.local.supervisor import nodes_of

    assert run.job_id is not None
    job = store.find(run.job_id)
    state = job.state() if job else None
    if job is None or state is None:
        raise SchedulerError(f"the local cluster knows no job {run.job_id}")
    found = Allocation(
        job_id=job.id,
        nodes=tuple(nodes_of(int(job.id) * 7, resources.nodes)),
        gpus=resources.gpus,
        cpus=int(job.description["options"]["cpus-per-task"]),
        left_s=int((state.end_s or time.time() + resources.time_s) - time.time()),
        partition="",
        account=None,
        cluster=None,
        submit_s=0.0,
    )
    return found, {node for one in store.on_hold(job.id) for node in one.description["nodes"]}


def _slurm(run: OpenRun) -> tuple[Allocation, set[str]]:
    assert run.job_id is not None
    client = SlurmClient(run.record.cluster)
    client.confirm(run.marked(run.job_id))
    found = allocation_of(run.job_id, job_text(run.job_id), client)
    steps = steps_of(run.job_id, run.record.cluster)
    if steps is None:
        raise SchedulerError(f"squeue does not say what runs on the hold {run.id}")
    guests = table_in(run.paths.guests)
    there = {step.run for step in steps if step.name.startswith(SCRIPT_STEP)} - {run.id}
    # The file may be broken: a run of which it names no nodes counts as being on all.
    on = [guests.get(guest) for guest in there]
    taken = [[*map(str, nodes)] if isinstance(nodes, list) else found.nodes for nodes in on]
    return found, {node for nodes in taken for node in nodes}


def idle_limit_s(wanted_s: int | None, site: LoadedSite) -> int:
    """How long a hold may be idle there. Raises UsageError for longer than the profile allows."""
    most_s = site.profile.policy.hold_idle_s
    if most_s == 0:
        raise UsageError(f"{site.profile.title} does not let anybody hold nodes that wait for runs")
    if wanted_s is None:
        return min(USUAL_IDLE_S, most_s or USUAL_IDLE_S)
    if most_s and wanted_s > most_s:
        raise UsageError(f"{site.profile.title} lets a hold be idle for {most_s} s at most")
    return wanted_s
