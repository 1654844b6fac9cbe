"""Requests at the edge of each limit of a profile, made from the profile by a rule: one that just
keeps it and one that just breaks it.

The rule knows the keys of [partitions] and [node_types], no profile; so it covers any that is
added. What a key means is written here a second time, on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from fsdpkit.config import assets
from fsdpkit.config.job import Resources
from fsdpkit.config.partition import MaxTime, NodeType, Partition
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.units import format_time, parse_time_s

_TIME_S = 900
"""Long enough to train in, on any cluster, and no longer than any of them allows."""


@dataclass(frozen=True)
class Asked:
    nodes: int
    gpus: int
    time_s: int
    cpus_per_gpu: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True)
class Edge:
    """inside: None where another limit of the same partition is always met first."""

    key: str
    inside: Asked | None
    outside: Asked


def keeps(asked: Asked, partition: Partition, node: NodeType) -> bool:
    """Whether a request keeps every limit."""
    limits = [
        (node.gpus, asked.gpus),
        (partition.max_nodes, asked.nodes),
        (node.nodes, asked.nodes),
        (partition.max_gpus_per_job, asked.nodes * asked.gpus),
        (
            partition.max_node_hours and node_hours_s(partition.max_node_hours, asked.nodes),
            asked.time_s,
        ),
        (longest_s(partition, asked.nodes), asked.time_s),
    ]
    least = [
        (partition.min_gpus, asked.gpus),
        (partition.min_nodes, asked.nodes),
        (partition.min_gpus_per_job, asked.nodes * asked.gpus),
    ]
    whole = partition.whole_nodes == "required" or (
        partition.whole_nodes == "required-multinode" and asked.nodes > 1
    )
    return (
        all(most is None or value <= most for most, value in limits)
        and all(fewest is None or value >= fewest for fewest, value in least)
        and not (whole and node.gpus is not None and asked.gpus < node.gpus)
    )


def node_hours_s(hours: float, nodes: int) -> int:
    """sbatch(1): seconds of a time are rounded up to the next minute, which then counts."""
    return int(hours * 60 / nodes) * 60


def longest_s(partition: Partition, nodes: int) -> int | None:
    times = [partition.max_time, partition.max_time_multinode if nodes > 1 else None]
    times += [bin.time for bin in partition.max_time_by_nodes if bin.nodes >= nodes][:1]
    return min((parse_time_s(time) for time in times if time), default=None)


def edges(partition: Partition, node: NodeType) -> Iterator[Edge]:
    """Of every limit that a partition on such nodes has."""
    counts = {1, 2, partition.max_nodes, node.nodes, partition.min_nodes}
    counts |= {n for bin in partition.max_time_by_nodes for n in (bin.nodes, bin.nodes + 1)}
    counts |= {partition.max_gpus_per_job, partition.min_gpus_per_job}
    most = node.gpus or 8
    shapes = [
        Asked(nodes, gpus, _TIME_S)
        for nodes, gpus in product(sorted(n for n in counts if n), range(1, most + 1))
    ]
    fitting = [shape for shape in shapes if keeps(shape, partition, node)]
    assert fitting, "nothing fits at all"
    steps = {
        "gpus": (node.gpus, "gpus", 1),
        "min_gpus": (partition.min_gpus or None, "gpus", -1),
        "max_nodes": (partition.max_nodes, "nodes", 1),
        "nodes": (node.nodes, "nodes", 1),
        "min_nodes": (partition.min_nodes, "nodes", -1),
    }
    for key, (bound, field, step) in steps.items():
        if bound is None or bound + step < 1:
            continue
        inside = next((one for one in fitting if getattr(one, field) == bound), None)
        start = inside or replace(fitting[0], **{field: bound})
        yield Edge(key, inside, replace(start, **{field: bound + step}))
    for key, bound, step in (
        ("max_gpus_per_job", partition.max_gpus_per_job, 1),
        ("min_gpus_per_job", partition.min_gpus_per_job, -1),
    ):
        if bound is None or bound + step < 1:
            continue
        inside = next((one for one in fitting if one.nodes * one.gpus == bound), None)
        over = [s for s in shapes if (s.nodes * s.gpus - bound) * step > 0]
        nearest = sorted(over, key=lambda s: (abs(s.nodes * s.gpus - bound), s.nodes))
        yield Edge(key, inside, nearest[0] if nearest else Asked(1, bound + 1, _TIME_S))
    if partition.whole_nodes in ("required", "required-multinode") and (node.gpus or 0) > 1:
        inside = next(one for one in reversed(fitting) if one.gpus == node.gpus)
        yield Edge("whole_nodes", inside, replace(inside, gpus=inside.gpus - 1))
    for nodes in sorted({one.nodes for one in fitting}):
        one = next(s for s in fitting if s.nodes == nodes)
        if (limit := longest_s(partition, nodes)) is not None:
            inside = replace(one, time_s=limit)
            known = inside if keeps(inside, partition, node) else None
            yield Edge(f"time of {nodes} nodes", known, replace(one, time_s=limit + 1))
        if (hours := partition.max_node_hours) is not None:
            limit = node_hours_s(hours, nodes)
            inside = replace(one, time_s=limit)
            known = inside if keeps(inside, partition, node) else None
            yield Edge(f"node-hours of {nodes} nodes", known, replace(one, time_s=limit + 1))
    one = fitting[0]
    if node.cpus is not None:
        inside = replace(one, cpus_per_gpu=node.cpus // one.gpus)
        yield Edge("cpus", inside, replace(one, cpus_per_gpu=node.cpus // one.gpus + 1))
    if node.memory_mb is not None:
        inside = replace(one, memory_mb=node.memory_mb)
        yield Edge("memory_mb", inside, replace(one, memory_mb=node.memory_mb + 1))


def ways(profile: SiteProfile) -> Iterator[tuple[str | None, Partition, NodeType]]:
    """Every way to ask, with what is known of its nodes."""
    kinds = list(profile.node_types.values())
    alone = kinds[0] if len(kinds) == 1 else NodeType()
    if not profile.partitions:
        yield None, Partition(), alone
    for name, partition in profile.partitions.items():
        known = partition.node_type and profile.node_types[partition.node_type]
        yield name, partition, known or alone


def resources_of(site: LoadedSite, partition: str | None, asked: Asked) -> Resources:
    return Resources(
        nodes=asked.nodes,
        gpus=asked.gpus,
        time=format_time(asked.time_s),
        account=site.profile.account.example or "project",
        partition=partition,
        cpus_per_gpu=asked.cpus_per_gpu,
        memory=None if asked.memory_mb is None else f"{asked.memory_mb}M",
    )


def beyond(site: LoadedSite) -> Iterator[Resources]:
    """A request that just breaks each limit of each way to ask."""
    for name, partition, node in ways(site.profile):
        for edge in edges(partition, node):
            yield resources_of(site, name, edge.outside)


SITES = sorted(set(assets.available("site")) - {"local"})


def made_up() -> SiteProfile:
    """Every limit that the schema has, none of which a packaged profile needs to have."""
    node = NodeType(gpus=4, cpus=64, memory_mb=256_000, nodes=300)
    bins = [MaxTime(nodes=8, time="02:00:00"), MaxTime(nodes=64, time="06:00:00")]
    return SiteProfile(
        schema="fsdpkit.site/1",
        title="a made-up cluster",
        node_types={"node": node, "small": NodeType(gpus=2, nodes=5)},
        partitions={
            "bins": Partition(node_type="node", max_time_by_nodes=bins, max_nodes=128),
            "hours": Partition(node_type="node", max_node_hours=1.5, max_nodes=4),
            "whole": Partition(node_type="node", whole_nodes="required", min_nodes=2),
            "several": Partition(node_type="node", whole_nodes="required-multinode"),
            "job": Partition(node_type="node", min_gpus_per_job=4, max_gpus_per_job=16),
            "multi": Partition(
                node_type="small", max_time="4:00:00", max_time_multinode="2:00:00", min_gpus=2
            ),
            "all": Partition(
                node_type="node", max_node_hours=10, max_time="08:00:00", max_nodes=9, min_nodes=3
            ),
        },
    )
