"""Which of a partition's limits a job's resources break, in words for the person who asked.

A limit of one job refuses it. A limit of a person or a project only holds jobs back, and what else
of theirs runs is not known here: that is a warning. A fact that a profile does not have limits
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType, Partition
from fsdpkit.config.units import format_time, parse_memory_mb


def problems(resources: Resources, partition: Partition, node: NodeType) -> list[str]:
    """Why the job cannot run there; empty if nothing known speaks against it."""
    return [
        *_of_gpus(resources, partition, node),
        *_of_nodes(resources, partition, node),
        *_of_time(resources, partition),
        *_of_a_node(resources, node),
    ]


def gpus_asked(resources: Resources) -> int:
    """What the scheduler counts: GPUs of all nodes, the spare ones too."""
    return resources.nodes_asked * resources.gpus


def _of_gpus(resources: Resources, partition: Partition, node: NodeType) -> Iterator[str]:
    gpus, asked = resources.gpus, gpus_asked(resources)
    if node.gpus is not None and gpus > node.gpus:
        yield f"{gpus} GPUs per node asked, a node has {node.gpus}"
    if gpus < partition.min_gpus:
        yield f"at least {partition.min_gpus} GPUs per node must be asked for"
    whole = partition.whole_nodes == "required" or (
        partition.whole_nodes == "required-multinode" and resources.nodes_asked > 1
    )
    if whole and node.gpus is not None and gpus < node.gpus:
        several = " by a job on several nodes" if "multinode" in str(partition.whole_nodes) else ""
        yield f"{gpus} GPUs per node asked, all {node.gpus} of a node must be used{several}"
    if partition.max_gpus_per_job is not None and asked > partition.max_gpus_per_job:
        yield f"{asked} GPUs asked in all, a job may have at most {partition.max_gpus_per_job}"
    if partition.min_gpus_per_job is not None and asked < partition.min_gpus_per_job:
        yield f"{asked} GPUs asked in all, a job must have at least {partition.min_gpus_per_job}"


def _of_nodes(resources: Resources, partition: Partition, node: NodeType) -> Iterator[str]:
    asked = resources.nodes_asked
    spare = f", {resources.spare} of them spare" if resources.spare else ""
    if partition.max_nodes is not None and asked > partition.max_nodes:
        yield f"{asked} nodes asked{spare}, at most {partition.max_nodes} allowed"
    elif node.nodes is not None and asked > node.nodes:
        yield f"{asked} nodes asked{spare}, the cluster has {node.nodes}"
    if partition.min_nodes is not None and asked < partition.min_nodes:
        yield f"{asked} nodes asked{spare}, at least {partition.min_nodes} must be"


def _of_time(resources: Resources, partition: Partition) -> Iterator[str]:
    asked = resources.nodes_asked
    limit_s = partition.max_time_s(asked)
    if limit_s is None or resources.time_s <= limit_s:
        return
    why = ""
    if limit_s != partition.max_time_s(1):
        why = f" for {asked} nodes"
    hours = partition.max_node_hours
    if hours is not None and resources.time_s * asked > hours * 3600:
        why = f" for {asked} node{'s' if asked > 1 else ''} ({hours:g} node-hours a job)"
    limit = format_time(limit_s) if limit_s else "shorter than a second"
    yield f"{format_time(resources.time_s)} asked, the limit is {limit}{why}"


_FEATURES = re.compile(r"[\w.-]+(&[\w.-]+)*")
"""A constraint that names features which a node must have, all of them."""


def _of_a_node(resources: Resources, node: NodeType) -> Iterator[str]:
    cpus = (resources.cpus_per_gpu or 0) * resources.gpus
    if node.cpus is not None and cpus > node.cpus:
        yield f"{cpus} cores per node asked, a node has {node.cpus}"
    if resources.memory is not None and node.memory_mb is not None:
        memory_mb = parse_memory_mb(resources.memory)
        if memory_mb > node.memory_mb:
            yield f"{memory_mb} MB per node asked, a node has {node.memory_mb}"
    if node.features and resources.constraint and _FEATURES.fullmatch(resources.constraint):
        lacking = [f for f in resources.constraint.split("&") if f not in node.features]
        if lacking:
            yield f"constraint {lacking[0]} asked, its nodes have {', '.join(node.features)}"


def warnings(
    resources: Resources, name: str, partition: Partition, node: NodeType
) -> Iterator[str]:
    """What to know of a job that fits."""
    if partition.preempt == "cancel":
        yield (
            f"partition {name}: a preempted job is cancelled there, perhaps without a warning, and "
            "will not restart: save often (training.checkpoint.every_steps)"
        )
    asked = gpus_asked(resources)
    for who, most, unit, wanted in (
        ("one person", partition.max_gpus_per_user, "GPUs", asked),
        ("one project", partition.max_gpus_per_account, "GPUs", asked),
        ("one person", partition.max_nodes_per_user, "nodes", resources.nodes_asked),
    ):
        if most is not None and wanted > most:
            yield (
                f"partition {name}: the job asks for {wanted} {unit}, and {who} may use {most} at "
                "a time: it would wait for ever, unless your limit is another"
            )
    unused = (node.gpus or 0) - resources.gpus
    if partition.whole_nodes == "given" and unused > 0:
        yield (
            f"partition {name}: jobs get whole nodes, so {unused} of {node.gpus} GPUs of each stay "
            "unused, and are charged"
        )
