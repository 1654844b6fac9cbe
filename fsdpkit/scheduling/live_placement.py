"""What the live Slurm adds to a placement where the profile does not know the nodes.

A profile's own facts stay as they are. What Slurm does not say stays unknown, and is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import msgspec

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType, together
from fsdpkit.config.placement import Placement, cores_of_task, memory_of_node
from fsdpkit.config.profile import SiteProfile
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.listing import first_of
from fsdpkit.scheduling.live_cluster import LiveCluster, LiveNode, LivePartition, is_slice
from fsdpkit.scheduling.live_limits import count
from fsdpkit.scheduling.slurm_answers import answers_for

_HAS_SLICES = "has slices of GPUs (MIG), which such a job may get, and which NCCL does not join"


def completed(placement: Placement, resources: Resources, profile: SiteProfile) -> Placement:
    """With cores, memory and form of request by Slurm, if the profile has none. Never raises."""
    node, no_gpus = placement.node_type, profile.gpu_request.form == "none"
    known = node.cpus is not None and (no_gpus or node.gpus is not None)
    if known or profile.kind != "slurm":
        return placement
    if (answers := answers_for(profile)) is None:
        return _unknown(placement, resources, f"this is no login node of {profile.title}")
    try:
        live = answers.live(accounting=False)
    except SchedulerError as error:
        return _unknown(placement, resources, str(error).splitlines()[0])
    return completed_by(live, placement, resources, profile)


def completed_by(
    live: LiveCluster, placement: Placement, resources: Resources, profile: SiteProfile
) -> Placement:
    """The same, from an answer."""
    partitions = chosen(live, placement.select.get("partition"))
    if not placement.select.get("partition") and not _has(live, partitions, resources.gpus):
        # The centre's own plug-in may put a job that names none into any.
        others = [one for one in live.partitions if _has(live, [one], resources.gpus)]
        partitions = others or partitions
    names = {partition.name for partition in partitions}
    nodes = (node for node in live.all_nodes if names & {*node.partitions})
    kinds = (_as_asked(node, placement, resources, profile) for node in nodes)
    enough = [kind for kind in kinds if kind is not None]
    told = [*placement.warnings, *_about_requeueing(live, profile)]
    if not enough:
        told += _about_slices(live, names, resources.gpus)
        placement = replace(placement, warnings=tuple(told))
        return _unknown(
            placement, resources, f"Slurm shows no node there with {resources.gpus} such GPUs"
        )
    node = _node(placement.node_type, enough, partitions)
    way = placement.way
    if all(live.is_whole(partition) for partition in partitions) and way.whole_nodes is None:
        way = msgspec.structs.replace(way, whole_nodes="given")
    if way.max_memory_per_cpu_mb is None:
        caps = (max_memory_per_cpu_mb(partition, live) for partition in partitions)
        most = min(filter(None, caps), default=None)
        way = msgspec.structs.replace(way, max_memory_per_cpu_mb=most)
    allowed = {partition.allowed_qos for partition in partitions} if live.enforces("qos") else set()
    if not way.allowed_qos and len(allowed) == 1 and (only := allowed.pop()):
        way = msgspec.structs.replace(way, allowed_qos=[*only])
    form = profile.gpu_request.form or gpu_form(live)
    cpus, reason = cores_of_task(resources, node)
    memory_mb, memory_reason = memory_of_node(resources, way, node, cpus, form)
    if not (node.gpu_type or profile.gpu_request.type or placement.select.get("constraint")):
        told += _about_slices(live, names, resources.gpus)
    default_mb = min(
        filter(None, (default_memory_mb(p, live, cpus, resources.gpus) for p in partitions)),
        default=None,
    )
    if memory_mb and default_mb and resources.memory is None and not profile.partitions:
        # The centre gives a job without a word as much as it thinks right, and not all of a node.
        told += _about_memory(default_mb, memory_mb)
        memory_mb = None
    return replace(
        placement,
        node_type=node,
        way=way,
        cpus_per_task=cpus,
        cpus_reason=f"{reason}, as Slurm has it" if resources.cpus_per_gpu is None else reason,
        memory_mb=memory_mb,
        memory_reason=memory_reason,
        gpu_form=form,
        warnings=tuple(told),
    )


def _node(
    known: NodeType, kinds: Collection[NodeType], partitions: Collection[LivePartition]
) -> NodeType:
    """What jobs get of a node there; what the profile knows of it counts."""
    theirs = together([*kinds])
    for partition in partitions:
        most_cpus, most_mb = partition.given(theirs.cpus, theirs.memory_mb)
        theirs = msgspec.structs.replace(theirs, cpus=most_cpus, memory_mb=most_mb)
    ours = {key: value for key, value in msgspec.structs.asdict(known).items() if value}
    return msgspec.structs.replace(theirs, **ours)


def _has(live: LiveCluster, partitions: Collection[LivePartition], gpus: int) -> bool:
    """Whether a node there has so many GPUs."""
    names = {partition.name for partition in partitions}
    return any(
        sum(count for _, count in node.gpus) >= gpus
        for node in live.all_nodes
        if names & {*node.partitions}
    )


def with_qos(placement: Placement, resources: Resources, profile: SiteProfile) -> Placement:
    """With the QOS that a job must have where only some may be used. Raises UsageError if the job
    names another, or a person must choose."""
    allowed = placement.way.allowed_qos
    answers = answers_for(profile)
    if not allowed or "qos" in placement.select or answers is None:
        return placement
    name = placement.partition or "the default partition"
    only = f"{name} takes jobs of QOS {first_of(allowed, 12)}"
    if resources.qos is not None:
        if resources.qos not in allowed:
            raise UsageError(f"QOS {resources.qos}: {only} only")
        return placement
    try:
        own = answers.own()
    except SchedulerError as error:
        told = f"{only}, and yours are not known: {str(error).splitlines()[0]}"
        return replace(placement, warnings=(*placement.warnings, told))
    if resources.account is not None:
        own = [one for one in own if one.account == resources.account.lower()]
    if {one.default_qos for one in own} & {*allowed}:
        return placement
    usable = [qos for qos in allowed if any(qos in one.qos for one in own)]
    if len(usable) != 1:
        choice = (
            f"you may use {first_of(usable, 12)}: name one"
            if usable
            else "you may use none of them"
        )
        raise UsageError(f"{only}, and {choice} (--set resources.qos=NAME)")
    told = f"{only}, of which you may use {usable[0]}: the job asks for it"
    return replace(
        placement,
        select={**placement.select, "qos": usable[0]},
        warnings=(*placement.warnings, told),
    )


def chosen(live: LiveCluster, names: str | None) -> list[LivePartition]:
    """The partitions of these names, else the default one; empty if there are none such."""
    wanted = names.split(",") if names else []
    return [p for p in live.partitions if (p.name in wanted if wanted else p.default)]


def gpu_form(live: LiveCluster) -> str:
    """How a job asks for GPUs: --gpus-per-node needs the newest SelectType (slurm.conf)."""
    return "gres" if live.config.get("SelectType") in _GRES_ALONE else "gpus-per-node"


_GRES_ALONE: Collection[str | None] = ("select/linear", "select/cons_res")


def _as_asked(
    node: LiveNode, placement: Placement, resources: Resources, profile: SiteProfile
) -> NodeType | None:
    """The node as the request would get it, slices only if named; None: it lacks what is asked."""
    kind = placement.node_type.gpu_type or profile.gpu_request.type
    gpus = sum(n for name, n in node.gpus if (name == kind if kind else not is_slice(name)))
    features = _features(placement, resources)
    if profile.gpu_request.form != "none" and gpus < resources.gpus:
        return None
    if features is not None and not features <= {*node.features}:
        return None
    return NodeType(gpus=min(gpus, 64) or None, cpus=node.cpus, memory_mb=node.memory_mb, nodes=1)


def _features(placement: Placement, resources: Resources) -> set[str] | None:
    """Those that a node must have; None where that is more than features joined by `&`."""
    asked = filter(None, (placement.select.get("constraint"), resources.constraint))
    features = {feature for text in asked for feature in text.split("&")}
    return None if any(sign in each for each in features for sign in "|[]()*!,") else features


def free_for(
    live: LiveCluster, placement: Placement, resources: Resources, profile: SiteProfile
) -> list[set[str]]:
    """Names of the nodes on which the job could start, now or once others end, of each of its
    partitions; none where what it asks for is not understood here."""
    if _features(placement, resources) is None:
        return []
    others = {one.partition(":")[0] for one in placement.select.get("gres", "").split(",")} - {""}

    def serves(node: LiveNode) -> bool:
        kind = _as_asked(node, placement, resources, profile)
        return (
            kind is not None
            and node.usable
            and not node.states & {"RESERVED", "UNKNOWN", "REBOOT_ISSUED"}
            and (node.cpus or 0) >= placement.cpus_per_task
            and (node.memory_mb or 0) >= (resources.memory_mb or 0)
            and others <= {one.partition(":")[0] for one in node.gres.split(",")}
        )

    partitions = chosen(live, placement.select.get("partition"))
    return [{node.name for node in live.nodes_of(one) if serves(node)} for one in partitions]


def _unknown(placement: Placement, resources: Resources, why: str) -> Placement:
    if resources.cpus_per_gpu is not None or placement.node_type.cpus is not None:
        return placement
    told = (
        f"how many cores a node has is not known ({why}): one a rank is asked for; say how many "
        "with --set resources.cpus_per_gpu=N"
    )
    return replace(placement, warnings=(*placement.warnings, told))


def _about_slices(live: LiveCluster, names: Collection[str], gpus: int) -> Iterator[str]:
    """If a request without a type may get slices of GPUs, and where it does not."""
    sliced = {
        name
        for node in live.all_nodes
        if any(is_slice(kind) and count >= gpus for kind, count in node.gpus)
        for name in node.partitions
    }
    if found := sorted(sliced & {*names}):
        others = (one for one in live.partitions if one.up and one.name not in sliced)
        better = [one.name for one in others if _has(live, [one], gpus)]
        such = f", as --partition {better[0]}" if better else ""
        yield (f"partition {found[0]} {_HAS_SLICES}: name another{such}")


def slices_in(placement: Placement, resources: Resources, profile: SiteProfile) -> tuple[str, ...]:
    """If several ranks are to train on slices of GPUs, or may, as far as the profile knows them."""
    kind = placement.node_type.gpu_type or profile.gpu_request.type
    if resources.ranks < 2:
        return ()
    if is_slice(kind):
        return (
            f"{kind} is a slice of a GPU (MIG), and NCCL does not join those: ask for whole GPUs",
        )
    partition = placement.select.get("partition")
    if kind or not partition or placement.select.get("constraint") or resources.constraint:
        return ()
    kinds = {
        kind
        for name, way in profile.partitions.items()
        if way.directives(name).get("partition") == partition
        for kind in way.kinds
    }
    types = [profile.node_types[kind] for kind in kinds]
    sliced = any(is_slice(one.gpu_type) and (one.gpus or 0) >= resources.gpus for one in types)
    return (f"partition {partition} {_HAS_SLICES}: name another",) if sliced else ()


def _about_requeueing(live: LiveCluster, profile: SiteProfile) -> Iterator[str]:
    if live.config.get("JobRequeue") == "0" and profile.policy.requeue is None:
        yield (
            "this cluster queues no job again that does not ask for it (JobRequeue=0): the script "
            "asks with --requeue where [retry] wants it"
        )


def _about_memory(default_mb: int, share_mb: int) -> Iterator[str]:
    """If the cluster's default is less than the GPUs' share."""
    if default_mb < share_mb:
        yield (
            f"no memory is asked for, so each node gives the cluster's default, {default_mb} MB; "
            f"its GPUs' share would be {share_mb} MB: --set resources.memory={share_mb}M"
        )


def max_memory_per_cpu_mb(partition: LivePartition, live: LiveCluster) -> int | None:
    """The partition's, else the cluster's."""
    return partition.max_memory_per_cpu_mb or count(live.config.get("MaxMemPerCPU"))


def default_memory_mb(
    partition: LivePartition, live: LiveCluster, cpus: int, gpus: int
) -> int | None:
    """What a node gives a job that asks for none, by the partition's rule, else the cluster's."""
    rule = partition.default_memory or live.default_memory
    for key, times in (("gpu", gpus), ("cpu", cpus), ("node", 1)):
        if key in rule:
            return rule[key] * times
    return None
