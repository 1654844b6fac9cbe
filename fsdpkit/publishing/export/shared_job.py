"""The job that an export begins with: everybody's, so without what is one person's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fsdpkit.config.assets import hold_script
from fsdpkit.config.job import JobSpec, Resources
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import Layered, build
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.trainers import job_type
from fsdpkit.config.units import format_time
from fsdpkit.publishing.export.places import PartitionPlace
from fsdpkit.publishing.personal import OF_ALL, own_resources, own_tables
from fsdpkit.scheduling.here.held import idle_limit_s


def plain_job() -> JobSpec:
    layered = Layered()
    layered.say({"schema": "fsdpkit.job/1", "name": "train", "entry": "train.py"}, "template")
    layered.say({"resources": {"nodes": 1, "gpus": 1, "time": "04:00:00"}}, "template")
    return build(job_type(), layered, "job train")


def of_hold(job: LoadedJob, sites: Sequence[LoadedSite]) -> JobSpec:
    """What a job says; of a hold's with the whole path of its script, and with the shortest time
    without a run that any of the clusters wants. Raises UsageError where one forbids holds."""
    script = hold_script()
    if job.entry.file != script:
        return job.spec
    idle_s = min(idle_limit_s(None, site) for site in sites)
    return msgspec.structs.replace(job.spec, entry=str(script), args=["--idle", str(idle_s)])


_NODES, _TIME_S = 2, 4 * 3600
"""What a form shows where neither a job nor, of the time, the partition says otherwise."""


def as_wanted(place: PartitionPlace, wanted: Resources | None) -> PartitionPlace:
    """The place for the job's number of nodes and time, as far as the limits allow."""
    nodes, seconds = (_NODES, place.default_s or _TIME_S)
    if wanted:
        nodes, seconds = wanted.nodes, wanted.time_s
    nodes = max(place.low_nodes, min(nodes, place.high_nodes))
    most = next(most for upto, most in place.times if nodes <= upto)
    time = max(place.least_time, min(seconds // place.unit.seconds, most))
    resources = msgspec.structs.replace(
        place.spec.resources, nodes=nodes, time=format_time(time * place.unit.seconds)
    )
    return replace(place, spec=msgspec.structs.replace(place.spec, resources=resources))


SHARED = "is the same for all users, who have to be able to read it"
"""Of a path that came with the job: whose it is, nobody can tell from its name."""
_PATH = re.compile(r"(?:^|[\s=:,])/[^\s/]")


_WHY = {
    "notify": "it names a person, so nobody is told",
    "array_args": "a portal's job is no array",
    "array_settings": "a portal's job is no array",
    "slurm": "what else sbatch is told is for whoever submits to say",
    "steps": "its files are one person's",
    "track": "it names a person's project",
    "files": "who may read a run, and what it needs, is for its owner to say",
    "audit": "whether the centre may count a run is for its owner to say",
}
_OF_ONE = "it is of one person's job, or of one day"
_CALLED = {"entry": "default of script", "args": "default of arguments"}
_CALLED |= dict.fromkeys(("environment.venv", "environment.conda"), "default of environment")


def for_everybody(spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
    """The job without what is one person's, and what was taken out, or is to be looked at."""
    fixed = {
        _CALLED.get(key, key): f"{text[:200]} {SHARED}"
        for key, text in _texts("", msgspec.to_builtins(spec))
        if key.partition(".")[0] in OF_ALL and _PATH.search(text)
    }
    bare, resources = own_tables(spec), own_resources(spec.resources)
    fixed |= {name: _WHY.get(name, _OF_ONE) for name in bare}
    fixed |= {name: _OF_ONE for name in resources if name != "account"}
    if spec.resources.spare:
        fixed["spare"] = "a portal's job has no standby nodes"
    if spec.resources.qos:
        fixed["qos"] = f"{spec.resources.qos} is asked for in everybody's job"
    shared = msgspec.structs.replace(spec.resources, spare=0, **resources)
    return msgspec.structs.replace(spec, resources=shared, **bare), fixed


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each text in a job, by the key it stands under; those of a list together."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        words = [text for each in value for _, text in _texts("", each)]
        yield key, " ".join(words)
