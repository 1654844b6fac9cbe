"""What would fit in place of a request that does not: the nearest shape of each partition.

Every offer is tried against the same limits that refuse, so none is made that is refused again for
the same reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping

import msgspec

from fsdpkit.config.job import MOST_NODES, Resources
from fsdpkit.config.limits import PartitionLimits
from fsdpkit.config.partition import NodeType, Partition, together
from fsdpkit.config.units import format_time


def offers(
    resources: Resources, ways: Mapping[str, PartitionLimits], chosen: Collection[str]
) -> list[str]:
    """Lines that say it to the person who asked; empty if nothing would fit. chosen: those of
    `ways` that the request may get as it stands."""
    others = {n: way for n, way in ways.items() if n not in chosen and way.partition.offered}
    lines = []
    if takers := [n for n, way in others.items() if way.starts(resources)]:
        named = "; ".join(f"--partition {shlex.quote(name)}" for name in takers)
        lines.append(f"As asked it fits with {named}.")
    found = {name: _nearest(resources, ways[name]) for name in chosen}
    nearest = {name: shape for name, shape in found.items() if shape is not None}
    same = {name: shape for name, shape in nearest.items() if shape.ranks == resources.ranks}
    if listed := [_options(shape, resources, name) for name, shape in (same or nearest).items()]:
        lines.append(f"{'What' if same else 'Nearest that'} would fit: {'; '.join(listed)}.")
    return lines


def _nearest(resources: Resources, way: PartitionLimits) -> Resources | None:
    """The job in the shape that comes closest to its number of ranks, on the fewest nodes, with its
    time cut to the limit; of two as close the one that needs least else changed, then the smaller.
    Spare nodes are kept if any shape fits with them."""
    for spare in dict.fromkeys((resources.spare, 0)):
        asked = msgspec.structs.replace(resources, spare=spare)
        most = together(way.kinds).gpus
        tried = []
        for gpus in range(1, most + 1) if most else [asked.gpus]:
            changed = {"gpus": gpus, "memory": None, "cpus_per_gpu": None}
            node = way.node(msgspec.structs.replace(asked, **changed))
            counts = _counts(asked, way, node, gpus)
            tried += [_trial(asked, way.partition, node, nodes, gpus) for nodes in counts]
        if fitting := [one for one in tried if not way.problems(one)]:
            return min(fitting, key=lambda one: _distance(one, asked))
    return None


def _distance(shape: Resources, asked: Resources) -> tuple[int, ...]:
    cut = [getattr(shape, key) != getattr(asked, key) for key in ("memory", "cpus_per_gpu")]
    return abs(shape.ranks - asked.ranks), sum(cut), shape.ranks, shape.nodes


def _counts(resources: Resources, way: PartitionLimits, node: NodeType, gpus: int) -> Iterator[int]:
    """Numbers of nodes among which the nearest is, if any fits with so many GPUs each: without the
    spare ones, which every limit counts."""
    spare, partition, minutes = resources.spare, way.partition, way.least_s // 60 + 1
    hours, of_gpus = partition.max_node_hours, partition.max_gpu_hours
    most = [
        MOST_NODES + spare,
        partition.max_nodes,
        node.nodes,
        partition.max_gpus_per_job and partition.max_gpus_per_job // gpus,
        int(hours * 60 / minutes) if hours is not None else None,
        int(of_gpus * 60 / minutes / gpus) if of_gpus is not None else None,
    ]
    least = [1 + spare, partition.min_nodes, -(-(partition.min_gpus_per_job or 1) // gpus)]
    low = max(n for n in least if n is not None) - spare
    high = min(n for n in most if n is not None) - spare
    wanted = {1, resources.ranks // gpus, -(-resources.ranks // gpus)}
    for nodes in wanted:
        if (nearest := min(max(nodes, low), high)) >= 1:
            yield nearest


def _trial(
    asked: Resources, partition: Partition, node: NodeType, nodes: int, gpus: int
) -> Resources:
    """The job in this shape; its time, memory and cores no more than there can be."""
    limit_s = partition.max_time_s(nodes + asked.spare, (nodes + asked.spare) * gpus)
    time = format_time(limit_s) if limit_s and limit_s < asked.time_s else asked.time
    memory, cpus = asked.memory, asked.cpus_per_gpu
    if node.memory_mb and (asked.memory_mb or 0) > node.memory_mb:
        memory = f"{node.memory_mb}M"
    if cpus and node.cpus and gpus <= node.cpus < cpus * gpus:
        cpus = node.cpus // gpus
    changed = {"nodes": nodes, "gpus": gpus, "time": time, "memory": memory, "cpus_per_gpu": cpus}
    return msgspec.structs.replace(asked, **changed)


def _options(shape: Resources, asked: Resources, name: str) -> str:
    """What to type; --nodes and --gpus always, the rest where it has to change."""
    words = [f"--nodes {shape.nodes} --gpus {shape.gpus}"]
    if shape.time_s != asked.time_s:
        words.append(f"--time {shape.time}")
    if shape.spare != asked.spare:
        words.append(f"--spare {shape.spare}")
    for key in ("memory", "cpus_per_gpu"):
        if (value := getattr(shape, key)) != getattr(asked, key):
            words.append(f"--set resources.{key}={value}")
    return f"{' '.join(words)} on {name}"
