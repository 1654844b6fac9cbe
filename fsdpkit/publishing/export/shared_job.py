"""The job that an export begins with: everybody's, so without what is one person's."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from fsdpkit.config.job import JobSpec, Resources
from fsdpkit.config.loading import Layered, build
from fsdpkit.config.notify import Notify
from fsdpkit.config.units import format_time
from fsdpkit.publishing.export.places import Place


def plain_job() -> JobSpec:
    layered = Layered()
    layered.overlay({"schema": "fsdpkit.job/1", "name": "train", "entry": "train.py"}, "template")
    layered.overlay({"resources": {"nodes": 1, "gpus": 1, "time": "04:00:00"}}, "template")
    return build(JobSpec, layered, "job train")


_NODES, _HOURS = 2, 4
"""What a form shows where no job says otherwise."""


def as_wanted(place: Place, wanted: Resources | None) -> Place:
    """The place for the job's number of nodes and hours, as far as the limits allow."""
    nodes, hours = (wanted.nodes, wanted.time_s // 3600) if wanted else (_NODES, _HOURS)
    nodes = max(place.low_nodes, min(nodes, place.high_nodes))
    hours = max(1, min(hours, next(most for upto, most in place.hours if nodes <= upto)))
    resources = msgspec.structs.replace(
        place.spec.resources, nodes=nodes, time=format_time(hours * 3600)
    )
    return replace(place, spec=msgspec.structs.replace(place.spec, resources=resources))


def for_everybody(spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
    """The job without what is one person's, and what was taken out."""
    fixed = {}
    if spec.notify != Notify():
        fixed["notify"] = "it names a person, so nobody is told"
    if spec.resources.spare:
        fixed["spare"] = "a portal's job has no standby nodes"
    if spec.array_args is not msgspec.UNSET:
        fixed["array_args"] = "a portal's job is no array"
    resources = msgspec.structs.replace(spec.resources, spare=0, account=None)
    changed = msgspec.structs.replace(
        spec, notify=Notify(), resources=resources, array_args=msgspec.UNSET
    )
    return changed, fixed
