"""Where a job fits: decided from the profile before anything is queued.

Pure: a job's resources and a site's facts in, a `Placement` or a refusal with reasons out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fsdpkit.config import assets, limits
from fsdpkit.config.job import Resources
from fsdpkit.config.limits import problems
from fsdpkit.config.partition import NodeType, Partition, release
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.spelling import nearest
from fsdpkit.config.units import format_time, parse_memory_mb
from fsdpkit.errors import UsageError

OLDEST_TESTED = (22, 5)


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
    check_account(resources.account, site)
    return place_to_plan(resources, site)


def place_to_plan(resources: Resources, site: LoadedSite) -> Placement:
    """`place` of a job that is not queued: it may lack an account, and not have a wrong one."""
    profile = site.profile
    if resources.account is not None:
        check_account(resources.account, site)
    _refuse_what_slurm_lacks(resources, profile)
    name, partition = _choose_partition(resources, profile)
    node_type = _node_type(profile, partition)
    cpus, reason = _cpus_per_task(resources, node_type)
    told = [
        *limits.warnings(resources, str(name), partition, node_type),
        *_about_slurm(profile),
        *_about_architecture(profile, node_type),
    ]
    if profile.partitions:
        select = partition.directives(str(name))
    else:
        select = {"partition": name} if name else {}
    memory_mb, memory_reason = _memory(resources, node_type)
    return Placement(name, select, node_type, cpus, reason, memory_mb, memory_reason, tuple(told))


def _refuse_what_slurm_lacks(resources: Resources, profile: SiteProfile) -> None:
    """Raises UsageError for what only Slurm's own daemon is known to do."""
    if resources.spare and profile.slurm.flavour == "psslurm":
        raise UsageError(
            f"{profile.title} runs psslurm in place of slurmd, and whether a job outlives a lost "
            "node there is not known: leave out --spare"
        )


def _about_slurm(profile: SiteProfile) -> Iterator[str]:
    facts = profile.slurm
    if facts.launcher not in (None, "srun"):
        yield (
            f"{profile.title} asks for {facts.launcher} to start tasks; the script uses srun, to "
            "start one shell per node, and nobody has reported a run there: try a short job first"
        )
    if facts.flavour == "psslurm":
        yield (
            f"{profile.title} runs psslurm in place of slurmd, with which nobody has reported a "
            "run: try a short job first"
        )
    if facts.version is not None and release(facts.version) < OLDEST_TESTED:
        tested = "{:02}.{:02}".format(*OLDEST_TESTED)
        yield (
            f"{profile.title} may run Slurm {facts.version}, older than the {tested} that fsdpkit "
            "is tested with: try a short job first"
        )


def _about_architecture(profile: SiteProfile, node: NodeType) -> Iterator[str]:
    login = profile.login.arch
    if login and node.arch and login != node.arch:
        yield (
            f"login nodes of {profile.title} are {login}, these nodes {node.arch}: an environment "
            "that was made on a login node does not run there; make it in a job"
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
        if wrong := problems(resources, Partition(), _node_type(profile, Partition())):
            raise UsageError(
                f"{_shape(resources)} does not fit {profile.title}: {'; '.join(wrong)}"
            )
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
        wrong = problems(resources, partition, _node_type(profile, partition))
        if not wrong:
            return name, partition
        refusals.append(f"  {name} ({_describe(partition, profile)}): {'; '.join(wrong)}")
    lines = [f"{_shape(resources)} does not fit {profile.title}:", *refusals]
    if fits := _shapes_that_fit(resources, candidates, profile):
        lines.append(f"What would fit: {'; '.join(fits)}.")
    elif fits := _largest_that_fit(resources, candidates, profile):
        lines.append(f"Most that would fit: {'; '.join(fits)}.")
    raise UsageError("\n".join(lines))


def _shape(resources: Resources) -> str:
    spare = f" and {resources.spare} spare" if resources.spare else ""
    return f"{resources.nodes} nodes{spare} x {resources.gpus} GPUs for {resources.time}"


def _node_type(profile: SiteProfile, partition: Partition) -> NodeType:
    if partition.node_type is not None:
        return profile.node_types[partition.node_type]
    # A profile without partitions still says what its nodes are when it has but one kind.
    kinds = list(profile.node_types.values())
    return kinds[0] if len(kinds) == 1 else NodeType()


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
        if shape := _trial(resources, name, partition, profile, nodes, per_node):
            shapes.append(shape)
    return shapes


def _largest_that_fit(
    resources: Resources, candidates: dict[str, Partition], profile: SiteProfile
) -> list[str]:
    """For each partition most of the nodes asked for that its limits allow, with fewer ranks."""
    shapes = []
    for name, partition in candidates.items():
        node = _node_type(profile, partition)
        if not node.gpus:
            continue
        per_node = min(resources.gpus, node.gpus)
        if partition.whole_nodes is not None:
            per_node = node.gpus
        limit = [resources.nodes, partition.max_nodes, node.nodes]
        if partition.max_gpus_per_job is not None:
            limit.append(partition.max_gpus_per_job // per_node)
        most = min(one for one in limit if one is not None) - resources.spare
        fewer = (_trial(resources, name, partition, profile, n, per_node) for n in {most, 1})
        shapes += [shape for shape in fewer if shape][:1]
    return shapes


def _trial(
    resources: Resources,
    name: str,
    partition: Partition,
    profile: SiteProfile,
    nodes: int,
    gpus: int,
) -> str | None:
    """Options for a job of this shape, its time cut to the limit; None if it does not fit."""
    if nodes < 1 or gpus < 1:
        return None
    limit_s = partition.max_time_s(nodes + resources.spare)
    shorter = limit_s is not None and resources.time_s > limit_s
    time = format_time(limit_s) if limit_s and shorter else resources.time
    trial = msgspec.structs.replace(resources, nodes=nodes, gpus=gpus, time=time)
    if problems(trial, partition, _node_type(profile, partition)):
        return None
    return f"--nodes {nodes} --gpus {gpus}{f' --time {time}' if shorter else ''} on {name}"


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
