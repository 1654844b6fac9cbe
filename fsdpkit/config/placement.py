"""Where a job fits: decided from the profile before anything is queued.

Pure: a job's resources and a site's facts in, a `Placement` or a refusal with reasons out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdpkit.config import assets, limits
from fsdpkit.config.job import Resources
from fsdpkit.config.linear_regex import matches
from fsdpkit.config.offers import offers
from fsdpkit.config.partition import NodeType, Partition, release
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.spelling import nearest
from fsdpkit.config.units import format_time
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


def place(resources: Resources, site: LoadedSite, *, saves: bool = True) -> Placement:
    """The first partition of the profile that fits. Raises UsageError with every reason.

    saves: whether the job needs time to save its work before it ends.
    """
    check_account(resources.account, site)
    if saves:
        limits.refuse_no_time(resources, site.profile)
    return place_to_plan(resources, site, saves=saves)


def place_to_plan(resources: Resources, site: LoadedSite, *, saves: bool = True) -> Placement:
    """`place` of a job that is not queued: it may lack an account, and not have a wrong one."""
    profile = site.profile
    if resources.account is not None:
        check_account(resources.account, site)
    _refuse_what_slurm_lacks(resources, profile)
    least_s = limits.shortest_s(profile) if saves else 0
    name, partition = _choose_partition(resources, profile, least_s)
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
    elif rules.pattern and not matches(rules.pattern, account):
        raise UsageError(
            f"{account!r} is not an account of {site.profile.title}{example}: it must match "
            f"{rules.pattern}.{how}"
        )


def _choose_partition(
    resources: Resources, profile: SiteProfile, least_s: int
) -> tuple[str | None, Partition]:
    named = resources.partition
    if not profile.partitions:
        partition = Partition()
        _first_that_fits(resources, profile, {profile.title: partition}, [profile.title], least_s)
        return named, partition
    if named is not None and named not in profile.partitions:
        raise UsageError(
            f"{profile.title} has no partition {named!r} in its profile."
            f"{nearest(named, profile.partitions)} Known: {', '.join(profile.partitions)}. If the "
            "cluster has it, describe it in a profile of your own, in "
            f"{assets.user_dir()}/site/profiles."
        )
    chosen = [name for name, partition in profile.partitions.items() if partition.automatic]
    chosen = chosen if named is None else [named]
    name = _first_that_fits(resources, profile, profile.partitions, chosen, least_s)
    return name, profile.partitions[name]


def _first_that_fits(
    resources: Resources,
    profile: SiteProfile,
    partitions: Mapping[str, Partition],
    chosen: Sequence[str],
    least_s: int,
) -> str:
    """Of those chosen. Raises UsageError with what is against each, and what would fit."""
    ways = {name: (one, _node_type(profile, one)) for name, one in partitions.items()}
    lines = [f"{_shape(resources)} does not fit {profile.title}:"]
    for name in chosen:
        wrong = limits.problems(resources, *ways[name], least_s)
        if not wrong:
            return name
        lines.append(f"  {name} ({_describe(*ways[name])}): {'; '.join(wrong)}")
    if not chosen:
        lines = [
            f"{profile.title} has no partition that is chosen when none is named: name one with "
            f"--partition ({', '.join(map(shlex.quote, partitions))})"
        ]
    raise UsageError("\n".join([*lines, *offers(resources, ways, chosen, least_s)]))


def _shape(resources: Resources) -> str:
    nodes = f"{resources.nodes} node{'' if resources.nodes == 1 else 's'}"
    gpus = f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}"
    spare = f" and {resources.spare} spare" if resources.spare else ""
    return f"{nodes}{spare} x {gpus} for {format_time(resources.time_s)}"


def _node_type(profile: SiteProfile, partition: Partition) -> NodeType:
    if partition.node_type is not None:
        return profile.node_types[partition.node_type]
    # A profile without partitions still says what its nodes are when it has but one kind.
    kinds = list(profile.node_types.values())
    return kinds[0] if len(kinds) == 1 else NodeType()


def _describe(partition: Partition, node: NodeType) -> str:
    facts = [node.gpu or "GPU model unknown"]
    if node.gpus is not None:
        facts.append(f"{node.gpus} per node")
    if partition.max_nodes is not None:
        facts.append(f"up to {partition.max_nodes} node{'s' if partition.max_nodes > 1 else ''}")
    return ", ".join(facts)


def _memory(resources: Resources, node: NodeType) -> tuple[int | None, str]:
    """As asked, else the GPUs' share of the node, where it is known: without a word about memory
    many clusters give a job all of a node's, so that no other job gets the GPUs it leaves. Of a job
    that leaves none nothing is asked: the profile's number may be a little too high."""
    if resources.memory_mb is not None:
        return resources.memory_mb, "as asked"
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
