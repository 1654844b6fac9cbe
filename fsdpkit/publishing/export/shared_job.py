"""The job that an export begins with: everybody's, so without what is one person's."""

from __future__ import annotations

import re
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


SHARED = "is the same for all users, who have to be able to read it"
"""Of a path that came with the job: whose it is, nobody can tell from its name."""
_PATH = re.compile(r"(?:^|[\s=:,])/[^\s/]")


def for_everybody(spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
    """The job without what is one person's, and what was taken out, or is to be looked at."""
    named = {f"variables.{name}": text for name, text in spec.environment.variables.items()}
    named["container"] = spec.environment.container or ""
    fixed = {
        f"environment.{name}": f"{text[:200]} {SHARED}"
        for name, text in named.items()
        if _PATH.search(text)
    }
    if spec.notify != Notify():
        fixed["notify"] = "it names a person, so nobody is told"
    if spec.resources.spare:
        fixed["spare"] = "a portal's job has no standby nodes"
    for key in ("array_args", "array_settings"):
        if getattr(spec, key) is not msgspec.UNSET:
            fixed[key] = "a portal's job is no array"
    for key in ("reservation", "nodelist", "exclude"):
        if getattr(spec.resources, key):
            fixed[key] = "it is of one person's job, or of one day"
    if spec.track is not msgspec.UNSET:
        fixed["track"] = "it names a person's project"
    resources = msgspec.structs.replace(
        spec.resources, spare=0, account=None, reservation=None, nodelist=None, exclude=None
    )
    changed = msgspec.structs.replace(
        spec,
        notify=Notify(),
        resources=resources,
        array_args=msgspec.UNSET,
        array_settings=msgspec.UNSET,
        track=msgspec.UNSET,
    )
    return changed, fixed
