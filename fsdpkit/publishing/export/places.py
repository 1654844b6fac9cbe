"""Where a form's job can go: each partition with each number of GPUs per node that it takes.

A portal cannot place a job, so fsdpkit's own placement is asked beforehand for everything that can
be chosen. A form then offers what fits, with its limits, and knows what to tell Slurm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fsdpkit.config.job import JobSpec, Resources
from fsdpkit.config.limits import PartitionLimits, kinds_of, shortest_s
from fsdpkit.config.partition import NodeType, Partition, together
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.units import format_time, parse_time_s
from fsdpkit.errors import FsdpkitError

MANY_NODES = 64
_MANY_S = 168 * 3600
MANY_GPUS = 8
"""Most that a form offers where the profile names no limit; Slurm has the last word."""


@dataclass(frozen=True)
class TimeUnit:
    """In which a form asks for the job's time, in whole numbers."""

    label: str
    seconds: int


HOURS, MINUTES = TimeUnit("Hours", 3600), TimeUnit("Minutes", 60)
"""Minutes where hours would leave out a partition, whose longest time is shorter."""


@dataclass(frozen=True)
class PartitionPlace:
    """One partition, `""` where the profile knows none, with GPUs per node."""

    partition: str
    gpus: int
    low_nodes: int
    high_nodes: int
    unit: TimeUnit
    least_time: int
    """In the unit, as all times here: less would leave none to train."""
    times: tuple[tuple[int, int], ...]
    """The longest time of a job with up to so many nodes, the fewest nodes first."""
    spec: JobSpec
    """The job there, on the fewest nodes and for the least time."""
    placement: Placement
    default_s: int | None = None
    """The time that the partition gives a job that asks for none."""

    @property
    def label(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''} per node"
        return f"{self.partition}: {gpus}" if self.partition else gpus

    @property
    def value(self) -> str:
        """As a form names it."""
        return f"{self.partition}:{self.gpus}" if self.partition else str(self.gpus)

    @property
    def most_time(self) -> int:
        """Of a job of any number of nodes."""
        return max(time for _, time in self.times)


def free_of_account(site: LoadedSite) -> LoadedSite:
    """The site for somebody whose account the portal will name."""
    rules = msgspec.structs.replace(site.profile.account, required=False, pattern=None)
    return replace(site, profile=msgspec.structs.replace(site.profile, account=rules))


def unit_for_all(spec: JobSpec, site: LoadedSite) -> TimeUnit:
    """For a form to choose a partition in: hours, unless minutes would offer one more."""
    in_hours, left_out = places_of(spec, site, HOURS)
    if not left_out:
        return HOURS
    minutes = {place.partition for place in places_of(spec, site, MINUTES)[0]}
    return HOURS if {place.partition for place in in_hours} >= minutes else MINUTES


def places_of(
    spec: JobSpec, site: LoadedSite, unit: TimeUnit = HOURS
) -> tuple[list[PartitionPlace], list[str]]:
    """In the profile's order, automatic ones first; and what is left out, with the reason."""
    profile = site.profile
    known = profile.partitions or {"": Partition()}
    found: list[PartitionPlace] = []
    left_out: list[str] = []
    for name in sorted(known, key=lambda name: not known[name].automatic):
        partition = known[name]
        way = PartitionLimits(partition, kinds_of(profile, partition))
        most = together(way.kinds).gpus
        own: list[PartitionPlace] = []
        why = "no job fits"
        for gpus in range(1, (MANY_GPUS if most is None else max(most, 1)) + 1):
            made = _place(spec, site, name, way, gpus, unit)
            if isinstance(made, str):
                why = made
            else:
                own.append(made)
        found += own
        if not own:
            left_out.append(f"partition {name}: {why}")
    return found, left_out


def _place(
    spec: JobSpec, site: LoadedSite, name: str, way: PartitionLimits, gpus: int, unit: TimeUnit
) -> PartitionPlace | str:
    partition = way.partition
    least = shortest_s(site.profile) // unit.seconds + 1

    def resources(nodes: int) -> Resources:
        changed = {"partition": name or None, "nodes": nodes, "gpus": gpus, "account": None}
        time = format_time(least * unit.seconds)
        return msgspec.structs.replace(spec.resources, time=time, **changed)

    node = way.node(resources(1))
    tried = sorted(_turning_points(partition, node, gpus, least * unit.seconds))
    why = ""
    fits = []
    for nodes in tried:
        if wrong := way.problems(resources(nodes)):
            why = wrong[0]
        else:
            fits.append(nodes)
    if not fits:
        return why
    asked = msgspec.structs.replace(spec, resources=resources(fits[0]))
    try:
        placement = place(asked.resources, free_of_account(site))
    except FsdpkitError as error:
        return str(error).splitlines()[0]
    times = tuple(_times(partition, gpus, fits[0], fits[-1], unit))
    default = partition.default_time
    return PartitionPlace(
        name,
        gpus,
        fits[0],
        times[-1][0],
        unit,
        least,
        times,
        asked,
        placement,
        None if default is None else parse_time_s(default),
    )


def _turning_points(partition: Partition, node: NodeType, gpus: int, least_s: int) -> set[int]:
    """Numbers of nodes with the fewest and the most that a job of the least time may have."""
    high = partition.max_nodes or node.nodes or MANY_NODES
    if partition.max_nodes and node.nodes:
        high = min(high, node.nodes)
    points = {1, high, partition.min_nodes or 1}
    if partition.max_gpus_per_job is not None:
        points.add(partition.max_gpus_per_job // gpus)
    if partition.min_gpus_per_job is not None:
        points.add(math.ceil(partition.min_gpus_per_job / gpus))
    points |= {bin.nodes for bin in partition.max_time_by_nodes}
    if partition.max_node_hours is not None:
        points |= {int(partition.max_node_hours), int(partition.max_node_hours * 3600 / least_s)}
    if partition.max_gpu_hours is not None:
        points.add(int(partition.max_gpu_hours * 3600 / least_s / gpus))
    return {nodes for nodes in points if 1 <= nodes <= high}


def _times(
    partition: Partition, gpus: int, low: int, high: int, unit: TimeUnit
) -> list[tuple[int, int]]:
    """Between two of the profile's own numbers of nodes, more nodes never get more time, so the
    ends of equal stretches are found by halving."""

    def most(nodes: int) -> int:
        limit_s = partition.max_time_s(nodes, nodes * gpus)
        return (_MANY_S if limit_s is None else limit_s) // unit.seconds

    ends = {1, high, *(bin.nodes for bin in partition.max_time_by_nodes)}
    steps: list[tuple[int, int]] = []
    for end in sorted(end for end in ends if low <= end <= high):
        while low <= end:
            time, first, last = most(low), low, end
            while first < last:
                middle = (first + last + 1) // 2
                first, last = (middle, last) if most(middle) == time else (first, middle - 1)
            if steps and steps[-1][1] == time:
                steps.pop()
            steps.append((first, time))
            low = first + 1
    return steps


def default_of(places: Sequence[PartitionPlace], wanted: Resources | None) -> PartitionPlace:
    """The one that the job asks for, as far as there is one; without a job all GPUs of a node."""
    if wanted is None:
        first = places[0].partition
        return max((p for p in places if p.partition == first), key=lambda place: place.gpus)
    named = [place for place in places if place.partition == wanted.partition]
    places = named or places
    alike = [place for place in places if place.gpus == wanted.gpus]
    fits = [place for place in alike if place.low_nodes <= wanted.nodes <= place.high_nodes]
    return (fits or alike or list(places))[0]


_MOST_STEPS = 8
"""Of a limit that shrinks with every node, in a form's list."""


def told(place: PartitionPlace) -> str:
    """The limits in words."""
    nodes = f"{place.low_nodes} to {place.high_nodes} nodes"
    if place.low_nodes == place.high_nodes:
        nodes = f"{place.high_nodes} node{'s' if place.high_nodes > 1 else ''}"
    told_of = [
        f"{_long(time, place.unit)} {f'up to {most} nodes' if most > 1 else 'on 1 node'}"
        for most, time in place.times
    ]
    if len(told_of) > _MOST_STEPS:
        told_of[_MOST_STEPS - 2 : -1] = ["…"]
    steps = ", ".join(told_of)
    return f"{nodes}, {steps if len(place.times) > 1 else f'up to {in_words(place)}'}"


def in_words(place: PartitionPlace) -> str:
    """The longest time of any of its jobs."""
    return _long(place.most_time, place.unit)


def _long(time: int, unit: TimeUnit) -> str:
    hours, minutes = divmod(time * unit.seconds // 60, 60)
    return " ".join(f"{n} {word}" for n, word in ((hours, "h"), (minutes, "min")) if n)
