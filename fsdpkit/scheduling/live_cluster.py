"""What a live Slurm says of itself: its configuration, partitions, nodes and QOS, as records.

Asking and reading only: what becomes of it says `fsdpkit.publishing`. All of Slurm's text is a
stranger's: of a key that comes twice the first counts, since free text (reasons, comments) stands
at the end of a line; a value that cannot be read is unknown. An answer that breaks off is no
answer.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdpkit.config.units import parse_time_s
from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.answers import call
from fsdpkit.scheduling.refusals import remedy_for

_LIMIT_S = 60.0
"""For one command; thousands of nodes take slurmctld a second or two, a busy one longer."""
_MAX_BYTES = 256 * 2**20
_MAX_LINE = 2**20


@dataclass(frozen=True)
class LiveNode:
    """One node that exists, up or not."""

    name: str
    arch: str | None
    cpus: int | None
    memory_mb: int | None
    gpus: tuple[tuple[str | None, int], ...]
    """Of each type that Slurm counts, and how many."""
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    usable: bool
    """Neither down nor drained, failed or in maintenance just now."""


@dataclass(frozen=True)
class LivePartition:
    """One partition. None: without a limit, or not read."""

    name: str
    default: bool
    up: bool
    max_time_s: int | None
    default_time_s: int | None
    max_nodes: int | None
    min_nodes: int | None
    max_cpus_per_node: int | None
    max_memory_mb: int | None
    """Per node."""
    whole_nodes: bool
    restricted: tuple[str, ...]
    """Why not everybody may use it, or find it."""
    denied: tuple[str, ...]
    """Who may not, where all others may."""
    qos: str | None
    """Of the partition itself, whose limits hold for each job."""
    priority_tier: int | None
    preempt_mode: str
    billing: str | None


@dataclass(frozen=True)
class LiveQos:
    """The limits of a QOS. None: without one."""

    name: str
    max_time_s: int | None = None
    per_job: Mapping[str, int] = field(default_factory=dict)
    """By Slurm's names of what it counts: node, gres/gpu, …"""
    per_user: Mapping[str, int] = field(default_factory=dict)
    per_account: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveCluster:
    """A whole answer."""

    config: Mapping[str, str]
    partitions: tuple[LivePartition, ...]
    nodes: tuple[LiveNode, ...]
    qos: Mapping[str, LiveQos] | None
    """None: accounting did not say."""
    unread: tuple[str, ...] = ()
    """What else gave no answer, and why."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """What Slurm does not let this user see of `config`, `partition` and `node`, and in which
    words; nothing is known of it."""

    @property
    def not_read(self) -> list[str]:
        """Every source that gave no answer, and why."""
        return [*self.refused.values(), *self.unread]

    @property
    def name(self) -> str:
        return self.config.get("ClusterName", "")

    @property
    def version(self) -> str | None:
        """As in 24.11."""
        found = re.match(r"(\d{2}\.\d{2})\.\d", self.config.get("SLURM_VERSION", ""))
        return found[1] if found else None


QOS_FORMAT = "Name,MaxWall,MaxTRES,MaxTRESPU,MaxTRESPA,MinTRES"


def ask(cluster: str | None = None) -> LiveCluster:
    """The cluster that Slurm's commands on this machine speak to, or another by its name.

    Raises SchedulerError if slurmctld does not answer, or not to the end, or lets this user see
    neither partitions nor nodes. Accounting may be silent.
    """
    which = ["-M", cluster] if cluster else []
    show = ["scontrol", *which, "--all", "--oneliner", "show"]
    refused: dict[str, str] = {}

    def seen(what: str, argv: Sequence[str]) -> Iterator[str] | None:
        try:
            return _asked(argv)
        except RefusedError as error:
            refused[what] = " ".join(str(error).split())
            return None

    config = seen("config", ["scontrol", *which, "show", "config"])
    partitions = seen("partition", [*show, "partition"])
    nodes = seen("node", [*show, "node"])
    if partitions is nodes is None:
        raise SchedulerError("\n".join(refused.values()))
    qos, unread = None, []
    try:
        qos = parse_qos(_asked(["sacctmgr", "-nP", "show", "qos", f"format={QOS_FORMAT}"]))
    except SchedulerError as error:
        unread.append(str(error).splitlines()[0])
    return LiveCluster(
        {} if config is None else parse_config(config),
        () if partitions is None else tuple(parse_partitions(partitions)),
        () if nodes is None else tuple(parse_nodes(nodes)),
        qos,
        tuple(unread),
        refused,
    )


class RefusedError(SchedulerError):
    """Slurm answers, and does not show this user what was asked for (slurm.conf, PrivateData)."""


_REFUSALS = re.compile(r"[Aa]ccess/permission denied|[Aa]ccess denied|[Pp]ermission denied")


def _asked(argv: Sequence[str]) -> Iterator[str]:
    """The lines that a command prints, once it has ended well. Raises SchedulerError."""
    with tempfile.TemporaryFile() as told:
        try:
            done = call(argv, _LIMIT_S, {"SLURM_TIME_FORMAT": "standard"}, told)
        except subprocess.TimeoutExpired:
            raise SchedulerError(f"{argv[0]} has not answered within {_LIMIT_S:.0f} s") from None
        if done.returncode != 0:
            words = done.stderr.strip()[-2000:]
            what = " ".join([argv[0], *(w for w in argv[1:] if not w.startswith("-"))])
            lines = [f"{what}: {words or f'exit status {done.returncode}'}"]
            if _REFUSALS.search(words):
                raise RefusedError(lines[0])
            raise SchedulerError("\n".join([*lines, *filter(None, [remedy_for(words)])]))
        if told.tell() > _MAX_BYTES:
            raise SchedulerError(f"{argv[0]} printed more than {_MAX_BYTES >> 20} MiB")
        told.seek(0)
        lines_read = []
        for line in told:
            if len(line) > _MAX_LINE:
                raise SchedulerError(f"{argv[0]} printed a line of {len(line)} bytes")
            lines_read.append(line.decode(errors="replace").rstrip("\n"))
    return iter(lines_read)


_KEY = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=")


def fields_of(line: str) -> dict[str, str]:
    """`Key=value Key=value …`; the first of a key counts."""
    found: dict[str, str] = {}
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    for key, end in zip(keys, ends, strict=False):
        found.setdefault(key[1], line[key.end() : end].strip())
    return found


def parse_config(lines: Iterator[str]) -> dict[str, str]:
    """Output of `scontrol show config`. Raises SchedulerError if it breaks off."""
    found: dict[str, str] = {}
    for line in lines:
        if match := re.match(r"(\w+)\s*=\s*(.*?)\s*$", line):
            found.setdefault(match[1], match[2])
    for key in ("ClusterName", "SLURM_VERSION"):
        if key not in found:
            raise SchedulerError(f"scontrol show config broke off: it has no {key}")
    return found


def parse_partitions(lines: Iterator[str]) -> Iterator[LivePartition]:
    """Output of `scontrol --oneliner show partition`. Raises SchedulerError."""
    seen = 0
    for line in lines:
        if not line.strip():
            continue
        told = _whole(line, "partition", ("PartitionName", "MaxTime", "MaxNodes", "State", "Nodes"))
        seen += 1
        yield LivePartition(
            name=told["PartitionName"],
            default=told.get("Default") == "YES",
            up=told["State"] == "UP",
            max_time_s=_time_s(told["MaxTime"]),
            default_time_s=_time_s(told.get("DefaultTime")),
            max_nodes=_count(told["MaxNodes"]),
            min_nodes=_count(told.get("MinNodes")),
            max_cpus_per_node=_count(told.get("MaxCPUsPerNode")),
            max_memory_mb=_count(told.get("MaxMemPerNode")),
            # 25.05 and later have no OverSubscribe=EXCLUSIVE any more.
            whole_nodes="EXCLUSIVE" in told.get("OverSubscribe", "")
            or told.get("Exclusive") == "NODE",
            restricted=tuple(_restrictions(told)),
            denied=tuple(f"{key}={told[key]}" for key in told if key.startswith("Deny")),
            qos=_text(told.get("QoS")),
            priority_tier=_count(told.get("PriorityTier")),
            preempt_mode=told.get("PreemptMode", ""),
            billing=_text(told.get("TRESBillingWeights")),
        )
    if not seen:
        raise SchedulerError("scontrol show partition named no partition")


def _restrictions(told: Mapping[str, str]) -> Iterator[str]:
    for key in ("AllowGroups", "AllowAccounts", "AllowQos", "AllocNodes"):
        if (value := told.get(key, "ALL")) != "ALL":
            yield f"{key}={value}"
    for key in ("Hidden", "RootOnly", "ReqResv"):
        if told.get(key) == "YES":
            yield f"{key}=YES"


def parse_nodes(lines: Iterator[str]) -> Iterator[LiveNode]:
    """Output of `scontrol --oneliner show node`, without those that do not exist yet. Raises
    SchedulerError."""
    seen = 0
    for line in lines:
        if not line.strip():
            continue
        told = _whole(line, "node", ("NodeName", "CPUTot", "RealMemory", "State", "CfgTRES"))
        seen += 1
        states = set(re.split(r"[+*~#!%$@^-]", told["State"]))
        if "FUTURE" in states:
            continue
        memory = _count(told["RealMemory"])
        kept = _count(told.get("MemSpecLimit")) or 0
        yield LiveNode(
            name=told["NodeName"],
            arch=_text(told.get("Arch")),
            cpus=_count(told.get("CPUEfctv")) or _count(told["CPUTot"]),
            memory_mb=None if memory is None else max(1, memory - kept),
            gpus=gpus_of(told.get("Gres", "")),
            features=tuple(_listed(told.get("AvailableFeatures"))),
            partitions=tuple(_listed(told.get("Partitions"))),
            usable=not states & {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "MAINTENANCE"},
        )
    if not seen:
        raise SchedulerError("scontrol show node named no node")


def gpus_of(gres: str) -> tuple[tuple[str | None, int], ...]:
    """`gpu:a100:2(S:0-1),gpu:v100:2,nvme:1`: the GPUs by type."""
    found: dict[str | None, int] = {}
    for one in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = one.split(":")
        if name != "gpu":
            continue
        count = int(rest.pop()) if rest and re.fullmatch(r"\d{1,4}", rest[-1], re.ASCII) else 1
        kind = ":".join(rest) or None
        found[kind] = found.get(kind, 0) + count
    return tuple((kind, count) for kind, count in found.items() if count)


def parse_qos(lines: Iterator[str]) -> dict[str, LiveQos]:
    """Output of `sacctmgr -nP show qos format=` QOS_FORMAT."""
    found = {}
    for line in lines:
        cells = line.split("|")
        if len(cells) == len(QOS_FORMAT.split(",")):
            name, wall, job, user, account, least = cells
            limits = [_tres(text) for text in (job, user, account, least)]
            found[name] = LiveQos(name, _time_s(wall), *limits)
    return found


def _tres(text: str) -> dict[str, int]:
    pairs = (one.partition("=") for one in text.split(",") if "=" in one)
    counted = ((name, _count(value)) for name, _, value in pairs)
    return {name: value for name, value in counted if value is not None}


def _whole(line: str, what: str, keys: tuple[str, ...]) -> dict[str, str]:
    told = fields_of(line)
    if lacking := [key for key in keys if key not in told]:
        shown = "".join(c if c.isprintable() else "?" for c in line[:60])
        raise SchedulerError(f"scontrol show {what} broke off: {lacking[0]} is not in {shown!r}")
    return told


def _count(text: str | None) -> int | None:
    """A number above none; UNLIMITED, N/A and what is no number are no limit."""
    if text is None or not re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return None
    return int(text) or None


def _time_s(text: str | None) -> int | None:
    """UNLIMITED, NONE and more than a year are no limit."""
    try:
        return parse_time_s(text) if text and ":" in text else None
    except ValueError:
        return None


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "N/A", "(null)", "NONE", "None") else value


def _listed(text: str | None) -> list[str]:
    return [word for word in (_text(text) or "").split(",") if word]
