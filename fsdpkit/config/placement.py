"""Where a job fits: decided from the profile before anything is queued.

Pure: a job's resources and a site's facts in, a `Placement` or a refusal with reasons out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import msgspec

from fsdpkit.config import assets
from fsdpkit.config.assets import nearest
from fsdpkit.config.job import Resources
from fsdpkit.config.profile import NodeType, Partition, SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.units import format_time, parse_memory_mb
from fsdpkit.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """The answer: directives that select the nodes, and what is known of them."""

    partition: str | None
    select: dict[str, str]
    node_type: NodeType
    cpus_per_task: int
    cpus_reason: str
    memory_mb: int | None
    """Of each node; None: it is left to Slurm."""
    memory_reason: str
    warnings: tuple[str, ...]


def place(resources: Resources, site: LoadedSite) -> Placement:
    """The first partition of the profile that fits. Raises UsageError with every reason."""
    profile = site.profile
    check_account(resources.account, site)
    name, partition = _choose_partition(resources, profile)
    node_type = _node_type(profile, partition)
    cpus, reason = _cpus_per_task(resources, node_type)
    warnings = []
    if partition.preempt == "cancel":
        warnings.append(
            f"partition {name}: a preempted job is cancelled there, perhaps without a warning, and "
            "will not restart: save often (training.checkpoint.every_steps)"
        )
    select = dict(partition.select)
    if resources.partition and not profile.partitions:
        select["partition"] = resources.partition
    memory_mb, memory_reason = _memory(resources, node_type)
    return Placement(
        name, select, node_type, cpus, reason, memory_mb, memory_reason, tuple(warnings)
    )


def check_account(account: str | None, site: LoadedSite) -> None:
    rules = site.profile.account
    how = f" List yours with: {rules.find}." if rules.find else ""
    example = f" (such as {rules.example})" if rules.example else ""
    if account is None:
        if rules.required:
            raise UsageError(
                f"{site.profile.title} needs an account{example}: add --account, or put it once "
                f'into {assets.user_dir()}/defaults.toml: [resources] account = "…".{how}'
            )
    elif rules.pattern and not re.fullmatch(rules.pattern, account):
        raise UsageError(
            f"{account!r} is not an account of {site.profile.title}{example}: it must match "
            f"{rules.pattern}.{how}"
        )


def _choose_partition(resources: Resources, profile: SiteProfile) -> tuple[str | None, Partition]:
    if not profile.partitions:
        return resources.partition, Partition()
    if resources.partition is not None:
        wanted = profile.partitions.get(resources.partition)
        if wanted is None:
            known = ", ".join(profile.partitions)
            raise UsageError(
                f"{profile.title} has no partition {resources.partition!r} in its profile."
                f"{nearest(resources.partition, profile.partitions)} Known: {known}. If the "
                "cluster has it, describe it in a profile of your own, in "
                f"{assets.user_dir()}/site/profiles."
            )
        candidates = {resources.partition: wanted}
    else:
        candidates = {n: p for n, p in profile.partitions.items() if p.automatic}
    refusals: list[str] = []
    for name, partition in candidates.items():
        problems = _problems(resources, partition, _node_type(profile, partition))
        if not problems:
            return name, partition
        refusals.append(f"  {name} ({_describe(partition, profile)}): {'; '.join(problems)}")
    spare = f" and {resources.spare} spare" if resources.spare else ""
    shape = f"{resources.nodes} nodes{spare} x {resources.gpus} GPUs for {resources.time}"
    lines = [f"{shape} does not fit {profile.title}:", *refusals]
    if fits := _shapes_that_fit(resources, candidates, profile):
        lines.append(f"What would fit: {'; '.join(fits)}.")
    raise UsageError("\n".join(lines))


def _node_type(profile: SiteProfile, partition: Partition) -> NodeType:
    if partition.node_type is not None:
        return profile.node_types[partition.node_type]
    # A profile without partitions still says what its nodes are when it has but one kind.
    kinds = list(profile.node_types.values())
    return kinds[0] if len(kinds) == 1 else NodeType()


def _problems(resources: Resources, partition: Partition, node: NodeType) -> list[str]:
    found = []
    if node.gpus is not None and resources.gpus > node.gpus:
        found.append(f"{resources.gpus} GPUs per node asked, a node has {node.gpus}")
    if resources.gpus < partition.min_gpus:
        found.append(f"at least {partition.min_gpus} GPUs per node must be asked for")
    asked = resources.nodes_asked
    if partition.max_nodes is not None and asked > partition.max_nodes:
        spare = f", {resources.spare} of them spare" if resources.spare else ""
        found.append(f"{asked} nodes asked{spare}, at most {partition.max_nodes} allowed")
    limit_s = partition.max_time_s(asked)
    if limit_s is not None and resources.time_s > limit_s:
        found.append(f"{format_time(resources.time_s)} asked, the limit is {format_time(limit_s)}")
    cpus = (resources.cpus_per_gpu or 0) * resources.gpus
    if node.cpus is not None and cpus > node.cpus:
        found.append(f"{cpus} cores per node asked, a node has {node.cpus}")
    if resources.memory is not None and node.memory_mb is not None:
        memory_mb = parse_memory_mb(resources.memory)
        if memory_mb > node.memory_mb:
            found.append(f"{memory_mb} MB per node asked, a node has {node.memory_mb}")
    return found


def _describe(partition: Partition, profile: SiteProfile) -> str:
    node = _node_type(profile, partition)
    facts = [node.gpu or "GPU model unknown"]
    if node.gpus is not None:
        facts.append(f"{node.gpus} per node")
    if partition.max_nodes is not None:
        facts.append(f"up to {partition.max_nodes} node{'s' if partition.max_nodes > 1 else ''}")
    return ", ".join(facts)


def _shapes_that_fit(
    resources: Resources, candidates: dict[str, Partition], profile: SiteProfile
) -> list[str]:
    """For each partition the fewest nodes that give the same ranks, where its limits allow."""
    shapes = []
    total = resources.ranks
    for name, partition in candidates.items():
        most = _node_type(profile, partition).gpus
        if not most:
            continue
        per_node = max((g for g in range(1, most + 1) if total % g == 0), default=1)
        nodes = math.ceil(total / per_node)
        limit_s = partition.max_time_s(nodes + resources.spare)
        shorter = limit_s is not None and resources.time_s > limit_s
        time = format_time(limit_s) if limit_s is not None and shorter else resources.time
        trial = msgspec.structs.replace(resources, nodes=nodes, gpus=per_node, time=time)
        if not _problems(trial, partition, _node_type(profile, partition)):
            flag = f" --time {time}" if shorter else ""
            shapes.append(f"--nodes {nodes} --gpus {per_node}{flag} on {name}")
    return shapes


def _memory(resources: Resources, node: NodeType) -> tuple[int | None, str]:
    """As asked, else the GPUs' share of the node, where it is known: without a word about memory
    many clusters give a job all of a node's, so that no other job gets the GPUs it leaves. Of a job
    that leaves none nothing is asked: the profile's number may be a little too high."""
    if resources.memory is not None:
        return parse_memory_mb(resources.memory), "as asked"
    if not (node.memory_mb and node.gpus) or resources.exclusive or resources.gpus >= node.gpus:
        return None, ""
    share = node.memory_mb * resources.gpus // node.gpus
    if share > 1024:  # whole GiB: a megabyte above a site's memory per core would cost a core more
        share -= share % 1024
    return share, f"{resources.gpus} of {node.gpus} GPUs' share of a node"


def _cpus_per_task(resources: Resources, node: NodeType) -> tuple[int, str]:
    """Cores of a node's one task: as asked, else the GPUs' share of the node, else one a rank."""
    if resources.cpus_per_gpu is not None:
        return resources.cpus_per_gpu * resources.gpus, "cpus_per_gpu x gpus"
    if node.cpus is not None and node.gpus:
        share = node.cpus * resources.gpus // node.gpus
        return max(share, resources.gpus), f"{resources.gpus} of {node.gpus} GPUs' share of a node"
    return resources.gpus, "one per rank, the profile does not know the nodes"
