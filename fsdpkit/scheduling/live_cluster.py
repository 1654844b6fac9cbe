"""What a live Slurm says of itself: its configuration, partitions, nodes and QOS, as records.

Reading only: who asks is `slurm_answers`. All of Slurm's text is a
stranger's: of a key that comes twice the first counts, since free text (reasons, comments) stands
at the end of a line; a value that cannot be read is unknown. An answer that breaks off is no
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.exclusions import expand
from fsdpkit.scheduling.live_limits import LiveAssociation, LiveQos, count, time_s


@dataclass(frozen=True)
class LiveNode:
    """One node that exists, up or not."""

    name: str
    arch: str | None
    cpus: int | None
    memory_mb: int | None
    gres: str
    """What Slurm counts of it, without the sockets that things are bound to."""
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    state: str
    """Slurm's words, as in IDLE+CLOUD+POWERED_DOWN."""

    @cached_property
    def gpus(self) -> tuple[tuple[str | None, int], ...]:
        """Of each type that Slurm counts, and how many."""
        return gpus_of(self.gres)

    @property
    def states(self) -> set[str]:
        """Each word, without the signs that older releases append."""
        return {*re.split(r"[+*~#!%$@^-]", self.state)}

    @property
    def exists(self) -> bool:
        """False: named for later (slurm.conf, State=FUTURE)."""
        return "FUTURE" not in self.states

    @property
    def usable(self) -> bool:
        """Neither down nor drained, failed, silent or in maintenance just now; one that is powered
        down comes when it is wanted, and what is not known is not against it."""
        silent = "NOT_RESPONDING" in self.states or "*" in self.state
        powered = any(word.startswith("POWER") for word in self.states)
        return not self.states & _AWAY and not (silent and not powered)


_AWAY = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE"),
    *("INVAL", "INVALID_REG"),
}


@dataclass(frozen=True)
class LivePartition:
    """One partition. None: without a limit, or not read."""

    name: str
    default: bool
    state: str
    """UP; DOWN: queues jobs; DRAIN: starts those that are queued; INACTIVE: neither."""
    max_time_s: int | None
    default_time_s: int | None
    max_nodes: int | None
    min_nodes: int | None
    max_cpus_per_node: int | None
    max_memory_mb: int | None
    """Per node."""
    whole_nodes: bool
    shares_nodes: bool
    """Jobs may get the same parts of nodes."""
    restricted: tuple[str, ...]
    """Why not everybody may use it, or find it, whoever asks and from where."""
    denied: tuple[str, ...]
    """Who may not, where all others may."""
    allowed_qos: tuple[str, ...] | None
    """None: all, as of the next two."""
    allowed_accounts: tuple[str, ...] | None
    login_nodes: tuple[str, ...] | None
    """From which jobs may come."""
    denied_qos: tuple[str, ...]
    denied_accounts: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of all, also those that are powered down and not listed; empty where not read."""
    max_memory_per_cpu_mb: int | None
    default_memory: Mapping[str, int]
    """What a job gets that asks for none, in megabytes: by cpu, node or gpu."""
    qos: str | None
    """Of the partition itself, whose limits hold for each job."""
    priority_tier: int | None
    preempt_mode: str
    billing: str | None

    @property
    def up(self) -> bool:
        return self.state == "UP"

    def given(self, cpus: int | None, memory_mb: int | None) -> tuple[int | None, int | None]:
        """Of a node's cores and memory what its jobs get: it may keep some for others."""
        return (
            min(filter(None, (cpus, self.max_cpus_per_node)), default=None),
            min(filter(None, (memory_mb, self.max_memory_mb)), default=None),
        )


@dataclass(frozen=True)
class LiveCluster:
    """A whole answer."""

    config: Mapping[str, str]
    partitions: tuple[LivePartition, ...]
    nodes: tuple[LiveNode, ...]
    qos: Mapping[str, LiveQos] | None
    """None: accounting did not say."""
    associations: tuple[LiveAssociation, ...] | None = None
    """This user's, and those of the accounts above; None: accounting did not say."""
    unread: tuple[str, ...] = ()
    """What else gave no answer, and why."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """What Slurm hides of `config`, `partition` and `node`, and its words; none of it is known."""

    @property
    def not_read(self) -> list[str]:
        """Every source that gave no answer, and why."""
        return [*self.refused.values(), *self.unread]

    @cached_property
    def all_nodes(self) -> tuple[LiveNode, ...]:
        """Those that exist, with those that a partition lists and Slurm does not show, as of nodes
        in a cloud that are powered down, where the ones numbered like them are all alike."""
        shown = {node.name for node in self.nodes}
        alike: dict[str, dict[tuple[object, ...], LiveNode]] = {}
        for node in self.nodes:
            facts = (node.cpus, node.memory_mb, node.gpus, node.features)
            alike.setdefault(_stem(node.name), {})[facts] = node
        hidden: dict[str, list[str]] = {}
        for partition in self.partitions:
            for name in partition.nodes:
                if name not in shown:
                    hidden.setdefault(name, []).append(partition.name)
        found = (
            replace(kinds[0], name=name, partitions=tuple(partitions), state="POWERED_DOWN")
            for name, partitions in hidden.items()
            if len(kinds := [*alike.get(_stem(name), {}).values()]) == 1
        )
        return (*(node for node in self.nodes if node.exists), *found)

    def nodes_of(self, partition: LivePartition) -> list[LiveNode]:
        """Those of `all_nodes` that it has."""
        return [node for node in self.all_nodes if partition.name in node.partitions]

    def unknown_nodes(self, partition: LivePartition) -> int:
        """How many nodes it has of which nothing is known."""
        return len({*partition.nodes} - {node.name for node in self.nodes_of(partition)})

    def enforces(self, what: str) -> bool:
        """Whether accounting's `associations`, `limits` or `qos` hold; if nobody says, they may."""
        enforced = self.config.get("AccountingStorageEnforce")
        return enforced is None or what in enforced.split(",")

    def is_whole(self, partition: LivePartition) -> bool:
        """Whether its jobs get whole nodes."""
        linear = self.config.get("SelectType") == "select/linear"
        return partition.whole_nodes or (linear and not partition.shares_nodes)

    @property
    def default_memory(self) -> dict[str, int]:
        """As of a partition, where that has no rule of its own."""
        return _default_memory(self.config)

    @property
    def name(self) -> str:
        return self.config.get("ClusterName", "")

    @property
    def version(self) -> str | None:
        """As in 24.11."""
        found = re.match(r"(\d{2}\.\d{2})\.\d", self.config.get("SLURM_VERSION", ""))
        return found[1] if found else None


_KEY = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=")


def fields_of(line: str) -> dict[str, str]:
    """`Key=value Key=value …`; the first of a key counts."""
    found: dict[str, str] = {}
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    for key, end in zip(keys, ends, strict=False):
        found.setdefault(key[1], line[key.end() : end].strip())
    return found


AS_OF = "Configuration data as of"
"""The key of slurmctld's time among the settings."""


def parse_config(lines: Iterator[str]) -> dict[str, str]:
    """Output of `scontrol show config`. Raises SchedulerError if it breaks off."""
    found: dict[str, str] = {}
    for line in lines:
        if match := re.match(rf"(\w+)\s*=\s*(.*?)\s*$|({AS_OF}) (\S+)", line):
            found.setdefault(match[1] or match[3], match[2] if match[1] else match[4])
    for key in ("ClusterName", "SLURM_VERSION"):
        if key not in found:
            raise SchedulerError(f"scontrol show config broke off: it has no {key}")
    return found


def parse_partitions(lines: Iterator[str]) -> Iterator[LivePartition]:
    """Output of `scontrol --oneliner show partition`. Raises SchedulerError."""
    keys = ("PartitionName", "MaxTime", "MaxNodes", "State", "Nodes")
    for told in _records(lines, "partition", keys):
        yield LivePartition(
            name=told["PartitionName"],
            default=told.get("Default") == "YES",
            state=told["State"],
            max_time_s=time_s(told["MaxTime"]),
            default_time_s=time_s(told.get("DefaultTime")),
            max_nodes=count(told["MaxNodes"]),
            min_nodes=count(told.get("MinNodes")),
            max_cpus_per_node=count(told.get("MaxCPUsPerNode")),
            max_memory_mb=count(told.get("MaxMemPerNode")),
            # 25.05 and later have no OverSubscribe=EXCLUSIVE any more.
            whole_nodes="EXCLUSIVE" in told.get("OverSubscribe", "")
            or told.get("Exclusive") == "NODE",
            shares_nodes=told.get("OverSubscribe", "").startswith(("YES", "FORCE")),
            restricted=tuple(_restrictions(told)),
            denied=tuple(f"{key}={told[key]}" for key in told if key.startswith("Deny")),
            allowed_qos=_only(told.get("AllowQos")),
            allowed_accounts=_only(told.get("AllowAccounts")),
            login_nodes=None
            if told.get("AllocNodes", "ALL") == "ALL"
            else expand(told["AllocNodes"]),
            denied_qos=tuple(_listed(told.get("DenyQos"))),
            denied_accounts=tuple(_listed(told.get("DenyAccounts"))),
            nodes=expand(_text(told["Nodes"]) or "") or (),
            max_memory_per_cpu_mb=count(told.get("MaxMemPerCPU")),
            default_memory=_default_memory(told),
            qos=_text(told.get("QoS")),
            priority_tier=count(told.get("PriorityTier")),
            preempt_mode=told.get("PreemptMode", ""),
            billing=_text(told.get("TRESBillingWeights")),
        )


def _restrictions(told: Mapping[str, str]) -> Iterator[str]:
    for key in ("AllowGroups", "AllowAccounts"):
        if (value := told.get(key, "ALL")) != "ALL":
            yield f"{key}={value}"
    for key in ("Hidden", "RootOnly", "ReqResv"):
        if told.get(key) == "YES":
            yield f"{key}=YES"


def _default_memory(told: Mapping[str, str]) -> dict[str, int]:
    jobs = fields_of(told.get("JobDefaults", "").replace(",", " "))
    read = {"cpu": told.get("DefMemPerCPU"), "node": told.get("DefMemPerNode")}
    found = {key: count(text) for key, text in {**read, "gpu": jobs.get("DefMemPerGPU")}.items()}
    return {key: value for key, value in found.items() if value is not None}


def _only(text: str | None) -> tuple[str, ...] | None:
    return None if text in (None, "ALL") else tuple(_listed(text))


def parse_nodes(lines: Iterator[str]) -> Iterator[LiveNode]:
    """Output of `scontrol --oneliner show node`. Raises SchedulerError."""
    keys = ("NodeName", "CPUTot", "RealMemory", "State", "CfgTRES")
    for told in _records(lines, "node", keys):
        memory = count(told["RealMemory"])
        kept = count(told.get("MemSpecLimit")) or 0
        yield LiveNode(
            name=told["NodeName"],
            arch=_text(told.get("Arch")),
            cpus=count(told.get("CPUEfctv")) or count(told["CPUTot"]),
            memory_mb=None if memory is None else max(1, memory - kept),
            gres=re.sub(r"\([^)]*\)", "", told.get("Gres", "")),
            features=tuple(_listed(told.get("AvailableFeatures"))),
            partitions=tuple(_listed(told.get("Partitions"))),
            state=told["State"],
        )


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def is_slice(gpu_type: str | None) -> bool:
    """Whether it is a part of a GPU (MIG), by the names that NVIDIA gives those."""
    return whole_of(gpu_type) < 1


def whole_of(gpu_type: str | None) -> float:
    """How much of a GPU it is: a slice's name counts sevenths first."""
    found = re.search(r"(\d)g\.\d+gb", gpu_type or "")
    return min(int(found[1]) / 7, 0.99) if found else 1.0


def gpus_of(gres: str) -> tuple[tuple[str | None, int], ...]:
    """`gpu:a100:2,gpu:v100:2,nvme:1`: the GPUs by type."""
    found: dict[str | None, int] = {}
    for one in gres.split(","):
        name, *rest = one.split(":")
        if name != "gpu":
            continue
        count = int(rest.pop()) if rest and re.fullmatch(r"\d{1,4}", rest[-1], re.ASCII) else 1
        kind = ":".join(rest) or None
        found[kind] = found.get(kind, 0) + count
    return tuple((kind, count) for kind, count in found.items() if count)


def _records(lines: Iterator[str], what: str, keys: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """At least one, each with all of `keys`. Raises SchedulerError."""
    told: dict[str, str] | None = None
    for line in filter(str.strip, lines):
        told = fields_of(line)
        if lacking := [key for key in keys if key not in told]:
            shown = "".join(c if c.isprintable() else "?" for c in line[:60])
            where = f"{lacking[0]} is not in {shown!r}"
            raise SchedulerError(f"scontrol show {what} broke off: {where}")
        yield told
    if told is None:
        raise SchedulerError(f"scontrol show {what} named no {what}")


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "N/A", "(null)", "NONE", "None") else value


def _listed(text: str | None) -> list[str]:
    return [word for word in (_text(text) or "").split(",") if word]
