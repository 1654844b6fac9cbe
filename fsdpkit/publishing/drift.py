"""A profile held against the live cluster: `fsdpkit site diff`.

Pure. What a profile does not say is no difference, but may be filled in; what Slurm does not say is
none either. Compared is what both know, and where Slurm's silence means "no limit", that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fsdpkit.config.partition import NodeType, Partition, together
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.units import parse_time_s
from fsdpkit.publishing.draft import Making, not_from, slurm_facts
from fsdpkit.scheduling.live_cluster import LiveCluster, LivePartition
from fsdpkit.scheduling.live_placement import gpu_form

NO_LIMIT = "no limit"
_TIMES = ("max_time", "default_time")
_LIMITS = (
    *("min_nodes", "max_nodes", "max_time", "max_node_hours", "max_gpu_hours"),
    *("min_gpus_per_job", "max_gpus_per_job", "max_gpus_per_node", "max_gpus_per_user"),
    *("max_gpus_per_account", "max_nodes_per_user", "max_jobs_per_user"),
    *("max_memory_per_cpu_mb", "allowed_qos", "whole_nodes"),
)
"""What a cluster has gained of these refuses jobs that the profile lets pass: a difference."""
_OF_PARTITION = (*_LIMITS, "default_time", "preempt")
_OF_NODES = ("gpus", "gpu_type", "arch", "nodes", "cpus", "memory_mb", "features")
_SAYS_NO_LIMIT = ("max_nodes", "max_time")
"""Of these a partition without a value has no limit, unless a QOS has one that was not read."""


@dataclass(frozen=True)
class ProfileDifference:
    """One fact. profile: None where the profile does not have it."""

    key: str
    profile: Any
    cluster: Any


@dataclass(frozen=True)
class Drift:
    """differ: the profile says otherwise; missing: the profile says nothing."""

    differ: tuple[ProfileDifference, ...]
    missing: tuple[ProfileDifference, ...]
    not_compared: tuple[str, ...]


def drift(profile: SiteProfile, live: LiveCluster, host: str = "") -> Drift:
    """What the cluster says otherwise than its profile. host: the login node that asks."""
    found = _Comparing(profile, live, host)
    return Drift(tuple(found.differ), tuple(found.missing), tuple(found.not_compared))


class _Comparing:
    def __init__(self, profile: SiteProfile, live: LiveCluster, host: str) -> None:
        self.profile, self.live, self.host = profile, live, host
        self.differ: list[ProfileDifference] = []
        self.missing: list[ProfileDifference] = []
        self.not_compared: list[str] = []
        made = Making(live, everything=True)
        self._kinds = msgspec.convert(made.node_types, dict[str, NodeType])
        self._ways = msgspec.convert(made.partitions, dict[str, Partition])
        self._of_partition: dict[str, list[Partition]] = {}
        for name, way in self._ways.items():
            self._of_partition.setdefault(way.directives(name)["partition"], []).append(way)
        self._living = {partition.name: partition for partition in live.partitions}
        self._slurm()
        self._gpu_types()
        seen: set[str] = set()
        kinds: dict[str, list[NodeType]] = {}
        for name, partition in profile.partitions.items():
            if "partition" not in live.refused:
                self._partition(name, partition, seen, kinds)
        alone = not profile.partitions or "partition" in live.refused
        if alone and len(profile.node_types) == 1:
            kinds[next(iter(profile.node_types))] = list(self._kinds.values())
        for name, found in kinds.items():
            self._node_type(name, found)
        self._unlisted(seen)

    def _told(self, key: str, ours: Any, theirs: Any) -> None:
        """One fact that the cluster states."""
        if ours in (None, []):
            if theirs not in (None, [], NO_LIMIT):
                self.missing.append(ProfileDifference(key, None, theirs))
        elif theirs is not None and not _same(key, ours, theirs):
            self.differ.append(ProfileDifference(key, ours, theirs))

    def _slurm(self) -> None:
        facts = slurm_facts(self.live)
        for key in ("version", "default_partition"):
            self._told(f"slurm.{key}", getattr(self.profile.slurm, key), facts.get(key))

    def _gpu_types(self) -> None:
        known = sorted({kind.gpu_type for kind in self._kinds.values() if kind.gpu_type})
        asked = self.profile.gpu_request.type
        if asked is not None and known and asked not in known:
            self.differ.append(ProfileDifference("gpu_request.type", asked, ", ".join(known)))
        asked, known_form = self.profile.gpu_request.form, gpu_form(self.live)
        if (asked or "gpus-per-node") == "gpus-per-node" != known_form and known:
            self.differ.append(ProfileDifference("gpu_request.form", asked, known_form))

    def _partition(
        self, name: str, ours: Partition, seen: set[str], kinds: dict[str, list[NodeType]]
    ) -> None:
        key = f"partitions.{name}"
        asks = ours.directives(name)
        if "partition" not in asks:
            self.not_compared.append(f"{key}: names no partition of Slurm's")
            return
        living = self._living.get(asks["partition"])
        if living is None:
            self.differ.append(ProfileDifference(key, f"--partition={asks['partition']}", "none"))
            return
        seen.add(living.name)
        ways = self._of_partition.get(living.name, [])
        if not ways:
            self.not_compared.append(f"{key}: partition {living.name} has no nodes")
            return
        barred = [*living.restricted, *not_from(living, self.host)]
        if ours.automatic and barred:
            restricted = ", ".join(barred)
            self.differ.append(ProfileDifference(f"{key}.automatic", True, restricted))
        of_ours = together([self.profile.node_types[kind] for kind in ours.kinds])
        theirs = max(ways, key=lambda way: _likeness(of_ours, self._kind(way)))
        for kind in ours.kinds:
            found = ways if len(ours.kinds) > 1 else [theirs]
            kinds.setdefault(kind, []).extend(self._kind(way) for way in found if way.kinds)
        enforced = "AccountingStorageEnforce" in self.live.config
        if enforced and "qos" not in asks and theirs.qos is not None and not ours.allowed_qos:
            self.differ.append(ProfileDifference(f"{key}.qos", None, theirs.qos))
        if "qos" in asks:
            if self.live.qos is not None and asks["qos"] not in self.live.qos:
                self.differ.append(ProfileDifference(f"{key}.qos", asks["qos"], "none"))
            self.not_compared.append(f"{key}: its limits are those of QOS {asks['qos']}")
            return
        for field in _OF_PARTITION:
            self._limit(f"{key}.{field}", field, ours, theirs, living)

    def _kind(self, way: Partition) -> NodeType:
        """What is unknown of it is no difference."""
        return together([self._kinds[kind] for kind in way.kinds])

    def _limit(
        self, key: str, field: str, ours: Partition, theirs: Partition, living: LivePartition
    ) -> None:
        mine, found = getattr(ours, field), getattr(theirs, field)
        if field == "whole_nodes" and (mine or "given") != "given":
            return  # whether the rest of a node may stay unused is no setting of Slurm's
        if field == "max_time" and mine is None and ours.max_time_by_nodes:
            return
        unread = living.qos is not None and (
            self.live.qos is None or living.qos not in self.live.qos
        )
        unread |= field == "max_nodes" and "node" in self.live.refused  # how many has it?
        if found is None and field in _SAYS_NO_LIMIT and not unread:
            found = NO_LIMIT
        if field == "allowed_qos" and "AccountingStorageEnforce" not in self.live.config:
            return
        gained = field in _LIMITS and mine in (None, []) and found not in (None, [], NO_LIMIT)
        if gained and (field != "max_nodes" or self._limits_nodes(living)):
            self.differ.append(ProfileDifference(key, NO_LIMIT, found))
        else:
            self._told(key, mine, found)

    def _limits_nodes(self, living: LivePartition) -> bool:
        """Whether it has a limit, and not only so many nodes."""
        qos = (self.live.qos or {}).get(living.qos or "")
        of_qos = qos is not None and "node" in {**qos.of("MaxTRES"), **qos.of("GrpTRES")}
        return living.max_nodes is not None or of_qos

    def _node_type(self, name: str, found: list[NodeType]) -> None:
        """Against the kind that is most like it, in whichever partition."""
        ours = self.profile.node_types[name]
        if not found:
            return
        theirs = max(found, key=lambda kind: _likeness(ours, kind))
        for field in _OF_NODES:
            mine, told = getattr(ours, field), getattr(theirs, field)
            if field == "gpu_type" and mine is None:
                continue
            self._told(f"node_types.{name}.{field}", mine, told)

    def _unlisted(self, seen: set[str]) -> None:
        for name, way in self._ways.items():
            partition = way.directives(name)["partition"]
            if partition not in seen and self.profile.partitions and self._kind(way).gpus:
                seen.add(partition)
                shown = f"{self._kind(way).gpus} GPUs per node"
                self.missing.append(ProfileDifference(f"partitions.{partition}", None, shown))


_TELLING = ("gpu_type", "gpus", "cpus", "memory_mb", "nodes", "arch", "features")


def _likeness(ours: NodeType, theirs: NodeType) -> tuple[bool, ...]:
    """How much two kinds of nodes agree: on having GPUs, then in what ours says, then in theirs."""
    gpus = ours.vendor != "none" and ours.gpus != 0
    same = [getattr(ours, field) == getattr(theirs, field) for field in _TELLING]
    said = [getattr(ours, field) not in (None, []) for field in _TELLING]
    known = [both and one for both, one in zip(same, said, strict=True)]
    return (bool(theirs.gpus) == gpus, *known, *same)


def _same(key: str, ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return set(ours) == set(theirs)
    if key.rpartition(".")[2] in _TIMES and theirs != NO_LIMIT:
        return parse_time_s(ours) == parse_time_s(theirs)
    return bool(ours == theirs)


def lines(found: Drift) -> Iterator[str]:
    """For a person: what differs, then what could be filled in, then what was not compared."""
    for one in found.differ:
        yield f"{one.key}: the profile has {_shown(one.profile)}, the cluster {_shown(one.cluster)}"
    if found.missing:
        yield "Could be filled in:"
    for one in found.missing:
        yield f"  {one.key}: the cluster has {_shown(one.cluster)}"
    if found.not_compared:
        yield "Not compared:"
    for words in found.not_compared:
        yield f"  {words}"


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
