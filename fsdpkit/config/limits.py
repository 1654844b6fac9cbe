"""Which of a partition's limits a job's resources break, in words for the person who asked.

A limit of one job refuses it. A limit of a person or a project only holds jobs back, and what else
of theirs runs is not known here: that is a warning. A fact that a profile does not have limits
nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType, Partition, together
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.units import format_time
from fsdpkit.errors import UsageError

_EARLY_S = 60  # by as much Slurm may deliver the warning too soon (sbatch(1), --signal)
START_S = 120  # modules, imports, rendezvous


def kinds_of(profile: SiteProfile, partition: Partition) -> tuple[NodeType, ...]:
    """The kinds of nodes that it has, as far as the profile says."""
    if partition.kinds:
        return tuple(profile.node_types[name] for name in partition.kinds)
    # A profile without partitions still says what its nodes are when it has but one kind.
    kinds = tuple(profile.node_types.values())
    return kinds if len(kinds) == 1 else ()


@dataclass(frozen=True)
class PartitionLimits:
    """What a partition allows a job, and what is known of its nodes."""

    partition: Partition
    kinds: tuple[NodeType, ...]
    least_s: int = 0
    """As `shortest_s` tells it of the site; 0: the time is not the job's own."""

    def node(self, resources: Resources) -> NodeType:
        """What a job gets: the kinds that have enough of each, together; else all of them."""

        def has_enough(kind: NodeType) -> bool:
            of_one = [*_of_gpus(resources, self.partition, kind), *_of_a_node(resources, kind)]
            return len(self.kinds) == 1 or not of_one

        return together([kind for kind in self.kinds if has_enough(kind)] or self.kinds)

    def problems(self, resources: Resources) -> list[str]:
        """Why the job cannot run there; empty if nothing known speaks against it."""
        node = self.node(resources)
        return [
            *_of_gpus(resources, self.partition, node),
            *_of_nodes(resources, self.partition, node),
            *_of_time(resources, self.partition, self.least_s),
            *_of_a_node(resources, node),
        ]

    def starts(self, resources: Resources) -> bool:
        """Whether the job fits and would not wait for ever."""
        return not self.problems(resources) and not [*waits(resources, self.partition)]


def shortest_s(profile: SiteProfile) -> int:
    """A job of no more than this has no time to train."""
    return profile.policy.warning_s + _EARLY_S + START_S


def warning_s(resources: Resources, profile: SiteProfile) -> int:
    """How long before the end Slurm warns the job: as the site says, or in a job so short that this
    would be at its start (of a script that does not look at it), in its last quarter."""
    is_short = resources.time_s <= shortest_s(profile)
    return min(profile.policy.warning_s, resources.time_s // 4 if is_short else sys.maxsize)


def training_s(resources: Resources, profile: SiteProfile) -> int:
    """Of the time limit, what is left for training between the start and the warning."""
    return resources.time_s - warning_s(resources, profile) - _EARLY_S - START_S


def refuse_no_time(resources: Resources, profile: SiteProfile) -> None:
    """Raises UsageError for a job that would end before it trains and saves."""
    shortest = shortest_s(profile)
    if resources.time_s <= shortest:
        least = format_time((shortest // 60 + 1) * 60)  # Slurm counts in minutes
        raise UsageError(
            f"--time {resources.time} leaves no time to train and save: the warning before the "
            f"end comes {profile.policy.warning_s} s early, Slurm may add {_EARLY_S} s, and "
            f"starting takes a while; ask for {least} or more"
        )


def gpus_asked(resources: Resources) -> int:
    """What the scheduler counts: GPUs of all nodes, the spare ones too."""
    return resources.nodes_asked * resources.gpus


def _of_gpus(resources: Resources, partition: Partition, node: NodeType) -> Iterator[str]:
    gpus, asked = resources.gpus, gpus_asked(resources)
    if node.gpus is not None and gpus > node.gpus:
        yield f"{gpus} GPUs per node asked, a node has {node.gpus}"
    if partition.max_gpus_per_node is not None and gpus > partition.max_gpus_per_node:
        yield f"{gpus} GPUs per node asked, a job may have {partition.max_gpus_per_node} of each"
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


def _of_time(resources: Resources, partition: Partition, shortest_s: int) -> Iterator[str]:
    asked = resources.nodes_asked
    gpus = gpus_asked(resources)
    limit_s = partition.max_time_s(asked, gpus)
    if limit_s is None or shortest_s < limit_s >= resources.time_s:
        return
    why = ""
    if limit_s != partition.max_time_s(1):
        why = f" for {asked} nodes"
    hours = partition.max_node_hours
    if hours is not None and limit_s == partition.node_hours_s(asked):
        why = f" for {asked} node{'s' if asked > 1 else ''} ({hours:g} node-hours a job)"
    if limit_s == partition.gpu_hours_s(gpus):
        why = f" for {gpus} GPUs ({partition.max_gpu_hours:g} GPU-hours a job)"
    limit = f"{format_time(limit_s) if limit_s else 'shorter than a minute'}{why}"
    if limit_s <= shortest_s:
        yield f"the limit is {limit}, and a job here needs more than {format_time(shortest_s)}"
    else:
        yield f"{format_time(resources.time_s)} asked, the limit is {limit}"


_FEATURES = re.compile(r"[\w.:=+-]+(&[\w.:=+-]+)*")
"""A constraint that names features which a node must have, all of them."""


def _of_a_node(resources: Resources, node: NodeType) -> Iterator[str]:
    cpus = (resources.cpus_per_gpu or 0) * resources.gpus
    if node.cpus is not None and cpus > node.cpus:
        yield f"{cpus} cores per node asked, a node has {node.cpus}"
    if node.memory_mb is not None and (resources.memory_mb or 0) > node.memory_mb:
        yield f"{resources.memory_mb} MB per node asked, a node has {node.memory_mb}"
    if node.features and resources.constraint and _FEATURES.fullmatch(resources.constraint):
        lacking = [f for f in resources.constraint.split("&") if f not in node.features]
        if lacking:
            yield f"constraint {lacking[0]} asked, its nodes have {', '.join(node.features)}"


def waits(resources: Resources, partition: Partition) -> Iterator[str]:
    """Limits of a person or a project that a single job is above, so that it never starts."""
    asked = gpus_asked(resources)
    for who, most, unit, wanted in (
        ("one person", partition.max_gpus_per_user, "GPUs", asked),
        ("one project", partition.max_gpus_per_account, "GPUs", asked),
        ("one person", partition.max_nodes_per_user, "nodes", resources.nodes_asked),
    ):
        if most is not None and wanted > most:
            yield (
                f"the job asks for {wanted} {unit}, and {who} may use {most} at "
                "a time: it would wait for ever, unless your limit is another"
            )


def warnings(
    resources: Resources, name: str, partition: Partition, node: NodeType
) -> Iterator[str]:
    """What to know of a job that fits."""
    if partition.preempt == "cancel":
        yield (
            f"partition {name}: a preempted job is cancelled there, perhaps without a warning, and "
            "will not restart: save often (training.checkpoint.every_steps)"
        )
    yield from (f"partition {name}: {why}" for why in waits(resources, partition))
    unused = (node.gpus or 0) - resources.gpus
    if partition.whole_nodes == "given" and unused > 0:
        yield (
            f"partition {name}: jobs get whole nodes, so {unused} of {node.gpus} GPUs of each stay "
            "unused, and are charged"
        )
