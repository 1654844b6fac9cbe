"""Where a job fits: decided from the profile before anything is queued.

Pure: a job's resources and a site's facts in, a `Placement` or a refusal with reasons out.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fsdpkit.config import assets, limits
from fsdpkit.config.job import MOST_NODES, Resources
from fsdpkit.config.limits import PartitionLimits
from fsdpkit.config.linear_regex import matches
from fsdpkit.config.partition import NodeType, Partition, release, together
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
    """Of each node; 0: all that it has; None: it is left to Slurm."""
    memory_reason: str
    gpu_form: str
    """In which form GPUs are asked for, as in [gpu_request]."""
    way: Partition
    """What is known of the partition."""
    warnings: tuple[str, ...]


def place(resources: Resources, site: LoadedSite, *, saves: bool = True) -> Placement:
    """The first partition of the profile that fits. Raises UsageError with every reason. saves:
    whether the job needs time to save its work before it ends."""
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
    name, partition, told = _choose_partition(resources, profile, least_s)
    node_type = PartitionLimits(partition, limits.kinds_of(profile, partition)).node(resources)
    told += [
        *limits.warnings(resources, str(name), partition, node_type),
        *_about_slurm(profile),
        *_about_nodes(profile, node_type),
    ]
    if profile.partitions:
        select = partition.directives(str(name))
    else:
        select = {"partition": name} if name else {}
    form = profile.gpu_request.form or "gpus-per-node"
    cpus, reason = cores_of_task(resources, node_type)
    memory_mb, memory_reason = memory_of_node(resources, partition, node_type, cpus, form)
    return Placement(
        name,
        select,
        node_type,
        cpus,
        reason,
        memory_mb,
        memory_reason,
        form,
        partition,
        tuple(told),
    )


def for_trying_out(resources: Resources, profile: SiteProfile) -> list[str]:
    """Partitions for interactive work in which the job would start; none if it names one."""
    if resources.partition is not None:
        return []
    least_s = limits.shortest_s(profile)
    ways = {
        name: limits.PartitionLimits(one, limits.kinds_of(profile, one), least_s)
        for name, one in profile.partitions.items()
        if one.interactive
    }
    return [name for name, way in ways.items() if way.starts(resources)]


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


def _about_nodes(profile: SiteProfile, node: NodeType) -> Iterator[str]:
    if profile.kind == "slurm" and node.vendor == "none":
        yield f"these nodes of {profile.title} have no GPUs: ranks run on CPU cores"
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
) -> tuple[str | None, Partition, list[str]]:
    """Its name, what is known of it, and what to know of the choice."""
    named = resources.partition
    if not profile.partitions:
        partition = Partition()
        _those_that_fit(resources, profile, {profile.title: partition}, [profile.title], least_s)
        return named, partition, []
    if named is not None:
        return _choose_named(resources, profile, named.split(","), least_s)
    automatic = [name for name, partition in profile.partitions.items() if partition.automatic]
    fitting = _those_that_fit(resources, profile, profile.partitions, automatic, least_s)
    starting = [n for n in fitting if not [*limits.waits(resources, profile.partitions[n])]]
    name = (starting or fitting)[0]
    return name, profile.partitions[name], []


def _choose_named(
    resources: Resources, profile: SiteProfile, names: Sequence[str], least_s: int
) -> tuple[str, Partition, list[str]]:
    """One partition, or of several those that fit, of which Slurm takes the first with room."""
    for name in names:
        if name not in profile.partitions:
            raise UsageError(
                f"{profile.title} has no partition {name!r} in its profile."
                f"{nearest(name, profile.partitions)} Known: {', '.join(profile.partitions)}. If "
                "the cluster has it, describe it in a profile of your own, in "
                f"{assets.user_dir()}/site/profiles."
            )
    ways = {name: _ways_of(profile, name) for name in names}
    every = [way for name in names for way in ways[name]]
    known = _those_that_fit(resources, profile, profile.partitions, every, least_s)
    first = {name: [way for way in ways[name] if way in known][:1] for name in names}
    fitting = list(dict.fromkeys(way for found in first.values() for way in found))
    left_out = [f"partition {n}: the job does not fit there" for n in names if not first[n]]
    if len(fitting) == 1:
        return fitting[0], profile.partitions[fitting[0]], left_out
    return ",".join(fitting), _joined(profile, fitting), left_out


def _ways_of(profile: SiteProfile, name: str) -> list[str]:
    """The profile's ways to ask for what --partition names, its own first: the same partition and
    QOS of Slurm's may have nodes of several kinds, each with a way. What is not to be proposed is
    only among them if nothing there is."""
    named = profile.partitions[name]
    return [name] + [
        other
        for other, way in profile.partitions.items()
        if other != name
        and way.offered >= named.offered
        and (way.qos, way.select) == (named.qos, {"partition": name})
    ]


def _joined(profile: SiteProfile, names: Sequence[str]) -> Partition:
    """Several partitions as one, for a job that may start in any. Raises UsageError if one request
    cannot ask for them all."""
    ways = [profile.partitions[name].directives(name) for name in names]
    asked = {"partition": ",".join(dict.fromkeys(way.pop("partition", "") for way in ways))}
    kinds = [kind for name in names for kind in profile.partitions[name].kinds]
    if "" in asked["partition"].split(",") or any(way != ways[0] for way in ways):
        raise UsageError(
            f"--partition {','.join(names)}: {profile.title} asks for each of these in another "
            "way: name one of them"
        )
    first = msgspec.structs.asdict(profile.partitions[names[0]])
    one_memory = {profile.partitions[name].memory for name in names}
    least = (profile.partitions[name].max_memory_per_cpu_mb for name in names)
    return Partition(
        node_types=list(dict.fromkeys(kinds)),
        select=asked | ways[0],
        memory=one_memory.pop() if len(one_memory) == 1 else "share",
        max_memory_per_cpu_mb=min(filter(None, least), default=None),
        **{key: first[key] for key in ("whole_nodes", "preempt", "allowed_qos")},
    )


def _those_that_fit(
    resources: Resources,
    profile: SiteProfile,
    partitions: Mapping[str, Partition],
    chosen: Sequence[str],
    least_s: int,
) -> list[str]:
    """Of those chosen, at least one. Raises UsageError: what is against each, what would fit."""
    ways = {
        n: PartitionLimits(p, limits.kinds_of(profile, p), least_s) for n, p in partitions.items()
    }
    lines = [f"{_shape(resources)} does not fit {profile.title}:"]
    fitting = []
    for name in chosen:
        way = ways[name]
        if wrong := way.problems(resources):
            described = _describe(way.partition, way.node(resources))
            lines.append(f"  {name} ({described}): {'; '.join(wrong)}")
        else:
            fitting.append(name)
    if fitting:
        return fitting
    if not chosen:
        lines = [
            f"{profile.title} has no partition that is chosen when none is named: name one with "
            f"--partition ({', '.join(map(shlex.quote, partitions))})"
        ]
    raise UsageError("\n".join([*lines, *_offers(resources, ways, chosen)]))


def _shape(resources: Resources) -> str:
    nodes = f"{resources.nodes} node{'' if resources.nodes == 1 else 's'}"
    gpus = f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}"
    spare = f" and {resources.spare} spare" if resources.spare else ""
    return f"{nodes}{spare} x {gpus} for {format_time(resources.time_s)}"


def _describe(partition: Partition, node: NodeType) -> str:
    facts = [node.gpu or "GPU model unknown"]
    if node.gpus is not None:
        facts.append(f"{node.gpus} per node")
    if partition.max_nodes is not None:
        facts.append(f"up to {partition.max_nodes} node{'s' if partition.max_nodes > 1 else ''}")
    return ", ".join(facts)


def memory_of_node(
    resources: Resources, partition: Partition, node: NodeType, cpus: int, form: str
) -> tuple[int | None, str]:
    """As asked, else as the partition has it: all of a node that no other job can use, else the
    GPUs' share, where it is known. Without a word about memory some clusters give a job a little
    for each core, others all of a node's, so that no other job gets the GPUs it leaves."""
    if resources.memory_mb is not None:
        return resources.memory_mb, "as asked"
    how = partition.memory
    if how == "never" or (how is None and form == "none"):
        return None, ""
    whole = resources.exclusive or partition.whole_nodes == "given"
    whole = whole or (node.gpus is not None and resources.gpus >= node.gpus > 0)
    if how == "all" or (how is None and whole):
        return 0, "all of a node" if how == "all" else "all of a node that no other job can use"
    if not (node.memory_mb and node.gpus):
        return None, ""
    share = node.memory_mb * min(resources.gpus, node.gpus) // node.gpus
    if most := partition.max_memory_per_cpu_mb:
        share = min(share, most * cpus)
    if share > 1024:  # whole GiB: a megabyte above a site's memory per core would cost a core more
        share -= share % 1024
    return share, f"{resources.gpus} of {node.gpus} GPUs' share of a node"


def cores_of_task(resources: Resources, node: NodeType) -> tuple[int, str]:
    """Cores of a node's one task: as asked, else the GPUs' share of the node, else one a rank."""
    if resources.cpus_per_gpu is not None:
        return resources.cpus_per_gpu * resources.gpus, "cpus_per_gpu x gpus"
    if node.cpus is not None and node.gpus:
        share = node.cpus * resources.gpus // node.gpus
        return max(share, resources.gpus), f"{resources.gpus} of {node.gpus} GPUs' share of a node"
    return resources.gpus, "one per rank, the profile does not know the nodes"


def _offers(
    resources: Resources, ways: Mapping[str, PartitionLimits], chosen: Collection[str]
) -> list[str]:
    """What would fit instead, tried against the limits that refused, as lines for the person who
    asked; empty if nothing would. chosen: those of `ways` that the request may get as it
    stands."""
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
