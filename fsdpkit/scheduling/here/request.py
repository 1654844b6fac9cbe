"""What a person asks for with `--here`, filled in from the allocation and checked against it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fsdpkit.config.allocation import Allocation
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.limits import shortest_s
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import UsageError
from fsdpkit.scheduling.here.allocation import allocation_here
from fsdpkit.scheduling.here.held import nodes_held_by
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.wanted import Wanted

AnyRequest = TypeVar("AnyRequest", bound=Wanted)
Loaded = tuple[LoadedSite, str, LoadedJob]


def in_allocation(
    request: AnyRequest,
    load: Callable[[AnyRequest], Loaded],
    hold: str | None = None,
    runs: str | os.PathLike[str] | None = None,
) -> tuple[AnyRequest, Allocation]:
    """The request with what nobody asked for otherwise taken from the allocation, which is that of
    the run `hold`, or the one around this process.

    What a job that comes with fsdpkit says of nodes, GPUs and time, and what is built in, counts
    as not asked for; of a run that is resumed, its time and account too. Raises UsageError for
    more than there is, and outside an allocation.
    """
    option = "--here" if hold is None else "--on"
    for name in ("array", "after", "chained", "partition", "spare"):
        if getattr(request, name, None):
            raise UsageError(f"--{name} is for a job that is queued: leave it out, or {option}")
    site, _, job = load(request)
    profile = site.profile
    if hold is not None:
        found = nodes_held_by(hold, runs, profile.kind)
    elif profile.kind != "slurm":
        raise UsageError(f"--here is for an allocation of Slurm's, not for {profile.title}")
    else:
        found = allocation_here()
    if found.left_s <= shortest_s(profile):
        name = hold or f"allocation {found.job_id}"
        raise UsageError(f"{name} ends in {found.left_s} s: too little to train and save")
    own = {key: value for key, value in found.resources.items() if not _asked(job, key)}
    if found.partition in profile.partitions:
        own["partition"] = found.partition
    if hold is None and profile.gpu_request.form == "none":
        own.pop("gpus", None)
    request = replace(request, **own)
    resources = load(request)[2].spec.resources
    found.refuse_more(resources, needs_gpus=profile.gpu_request.form != "none")
    if resources.spare:
        raise UsageError(f"resources.spare is for a job that is queued: leave it out, or {option}")
    return request, replace(found, nodes=found.nodes[: resources.nodes])


def again_in_allocation(
    run: OpenRun, request: AnyRequest, load: Callable[[AnyRequest], Loaded], hold: str | None
) -> tuple[AnyRequest, Allocation]:
    """The same of a resumed run. Raises UsageError where its record could not tell jobs apart."""
    record, option = run.record, "--on" if hold else "--here"
    if record.array is not None:
        raise UsageError(f"run {record.id} is an array, whose tasks are queued: leave out {option}")
    request, found = in_allocation(request, load, hold, run.dir.parent)
    if found.job_id in [job.job_id for job in record.earlier]:
        raise UsageError(
            f"run {record.id} was in the allocation {found.job_id} before its job "
            f"{record.job_id}: resume it in another one, or leave out {option}"
        )
    return request, found


def _asked(job: LoadedJob, key: str) -> bool:
    origin = job.origin(f"resources.{key}")
    of_queue = ("run ",) if key in ("time", "account") else ()
    return not origin.startswith(("default", "built in", "packaged ", *of_queue))
