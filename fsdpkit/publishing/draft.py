"""A first profile of a cluster, from what a live Slurm and a login node say: `fsdpkit site draft`.

Pure: the answers go in; tables, and for each of their keys where it was seen, come out. The same
answers always make the same text, whatever order Slurm gave them in. A fact that Slurm does not
state stays unknown and is listed as such.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.units import format_time
from fsdpkit.publishing.node_kinds import FEATURE, Kind, gpu_kinds
from fsdpkit.publishing.profile_text import cut, profile_text
from fsdpkit.scheduling.live_cluster import LiveCluster, LivePartition
from fsdpkit.scheduling.live_limits import LiveQos
from fsdpkit.scheduling.live_placement import gpu_form, max_memory_per_cpu_mb
from fsdpkit.scheduling.login_node import LoginNode


@dataclass(frozen=True)
class ProfileDraft:
    """The tables of a profile, and a note for some of their dotted keys."""

    tables: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def profile(self) -> SiteProfile:
        return msgspec.convert(self.tables, SiteProfile)

    @property
    def text(self) -> str:
        return profile_text(self.tables, self.notes)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", re.ASCII)
"""Names of partitions and QOS that a script may hold."""


def draft(
    live: LiveCluster, login: LoginNode, now_s: float, slurm_cluster: str | None = None
) -> ProfileDraft:
    """slurm_cluster: the name by which other clusters' commands reach it (sbatch -M)."""
    made = Making(live, login.host)
    date = time.strftime("%Y-%m-%d", time.gmtime(now_s))
    asked = f"Slurm {cut(live.config.get('SLURM_VERSION', ''), 20)} of cluster {cut(live.name, 60)}"
    host = cut(login.host, 80)
    seen = [what for what in ("config", "partition", "node") if what not in live.refused]
    commands = f"scontrol show {' and '.join(filter(None, (', '.join(seen[:-1]), seen[-1])))}"
    commands += "" if live.qos is None else ", sacctmgr show qos and assoc"
    sources = [
        {
            "what": f"{asked}: {commands}; asked on {host}",
            "checked": date,
            "level": "centre-config",
        },
        {
            "what": f"{host}: /sys, environment variables and PATH of a login node",
            "checked": date,
            "level": "measured",
        },
    ]
    tables: dict[str, Any] = {
        "schema": "fsdpkit.site/1",
        "title": cut(live.name, 60) or "a Slurm cluster",
        "unknown": list(_unknown(live, login, made)),
        "sources": sources,
        "identify": _identify(login),
    }
    if slurm_cluster:
        tables["slurm_clusters"] = slurm_cluster
    if live.qos is not None:
        find = "sacctmgr -nP show assoc user=$USER format=cluster,account,partition,qos"
        tables["account"] = {"find": find}
    tables["slurm"] = slurm_facts(live)
    if login.arch in ("x86_64", "aarch64", "ppc64le"):
        tables["login"] = {"arch": login.arch}
    tables["node_types"] = made.node_types
    tables["partitions"] = made.partitions
    tables["gpu_request"] = {"form": gpu_form(live) if made.with_gpus else "none"}
    if "node" in live.refused:
        del tables["gpu_request"]
    if login.fabric:
        tables["network"] = {"fabric": login.fabric}
    if login.container:
        tables["container"] = {"engine": login.container}
    return ProfileDraft({k: v for k, v in tables.items() if v}, made.notes | _login_notes(login))


def slurm_facts(live: LiveCluster) -> dict[str, Any]:
    default = next((p.name for p in live.partitions if p.default and _NAME.fullmatch(p.name)), None)
    facts = {"flavour": "slurmd", "version": live.version, "default_partition": default}
    return {key: value for key, value in facts.items() if value is not None}


def _identify(login: LoginNode) -> dict[str, Any]:
    """This host, and those whose names differ from it in a number at the end of the first word."""
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,200}", login.host) or login.host.startswith("localhost"):
        return {}
    word, dot, domain = login.host.partition(".")
    stem = re.sub(r"\d+$", "", word)
    number = r"\d+" if stem != word and stem else ""
    pattern = re.escape(stem if number else word).replace("\\-", "-") + number
    return {"hostname": pattern + re.escape(dot + domain), "examples": [login.host]}


def _login_notes(login: LoginNode) -> dict[str, str]:
    adapters = ", ".join(f"{name} ({layer})" for name, layer in login.adapters)
    seen = "seen on this login node; compute nodes may differ"
    notes = {
        "identify": "the login node that this was asked on, and those numbered like it",
        "login.arch": "of the login node that this was asked on",
        "network": f"{seen}: {adapters or ', '.join(login.interfaces)}",
        "container": f"{seen}: {'srun --help' if login.container == 'pyxis' else 'on PATH'}",
    }
    return {key: cut(note, 300) for key, note in notes.items()}


_REFUSED = {
    "config": "the cluster's name, Slurm's version and what it preempts",
    "partition": "partitions and their limits",
    "node": "nodes, their GPUs, cores and memory, and which partitions have them",
}
"""What stays unknown where Slurm does not show this user the one."""


def _unknown(live: LiveCluster, login: LoginNode, made: Making) -> Iterator[str]:
    yield "whether a job without an account is refused, and the form of an account"
    if made.with_gpus:
        yield "model, memory and maker of the GPUs: Slurm's name says no more than its words"
    elif devices := {one.partition(":")[0] for n in live.nodes for one in n.gres.split(",") if one}:
        yield cut(
            f"what fsdpkit could do with {', '.join(sorted(devices))}: these are no GPUs", 300
        )
    shown = ", ".join(login.interfaces)
    yield cut(f"interfaces of compute nodes; this login node has {shown or 'none'}", 300)
    if login.modules:
        paths, loaded = ":".join(login.module_paths), ", ".join(login.loaded_modules)
        yield cut(
            f"which modules jobs need ({login.modules}; module path {paths or 'empty'}; loaded "
            f"here: {loaded or 'none'})",
            600,
        )
    else:
        yield "whether there are modules: no variable of Lmod or environment-modules was set"
    if login.container is None:
        yield "the container engine: no apptainer or singularity on PATH, no pyxis in srun --help"
    yield "what the centre's own submit plug-in (job_submit, cli_filter) adds or refuses"
    for what, why in live.refused.items():
        yield cut(f"{_REFUSED[what]}: {why}", 300)
    for why in live.unread:
        yield cut(f"limits of QOS: {why}", 300)
    yield from made.left_out


@dataclass(frozen=True)
class _Way:
    """One way to ask a partition: for which kinds (none: unknown), how many, why not by itself."""

    kinds: tuple[Kind, ...]
    count: int
    why_not: str = ""


_FOR_TESTS = re.compile(r"debug|dbg|devel|test|interactive|(?<![a-z])dev(?![a-z])", re.IGNORECASE)
_SHORT_S = 4 * 3600


def is_for_tests(partition: LivePartition) -> bool:
    """Whether it is a queue to try things out, which a centre keeps free of other work."""
    short = partition.max_time_s is not None and partition.max_time_s <= _SHORT_S
    return short and _FOR_TESTS.search(partition.name) is not None


def not_from(partition: LivePartition, host: str) -> Iterator[str]:
    """Why it takes no jobs from this login node; nothing where it does."""
    here = {host, host.partition(".")[0]}
    if host and partition.login_nodes is not None and not here & {*partition.login_nodes}:
        yield f"AllocNodes={','.join(partition.login_nodes)}"


class Making:
    """Node types and partitions of a profile, which name one another."""

    def __init__(self, live: LiveCluster, host: str = "", *, everything: bool = False) -> None:
        """host: the login node. everything: also what a profile need not say, for a comparison."""
        self.live = live
        self.host = host
        self.everything = everything
        kinds = gpu_kinds(live)
        unknown = any(map(live.unknown_nodes, live.partitions))
        names_gpus = "gpu" in live.config.get("GresTypes", "").split(",")
        self.with_gpus = any(kind.gpus for kind in kinds) or (unknown and names_gpus)
        self._kinds = [k for k in kinds if k.gpus or everything or not self.with_gpus]
        self.node_types: dict[str, dict[str, Any]] = {}
        self.partitions: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, str] = {}
        self.left_out: list[str] = []
        order = sorted(live.partitions, key=lambda p: (not p.default, _makes_way(p, live), p.name))
        good = [p for p in order if _NAME.fullmatch(p.name)]
        ways = [(p, way) for p in good for way in self._ways(p)]
        if "node" in live.refused:
            ways = [(p, _Way((), 0)) for p in good]
        known = {kind.name: kind for _, way in ways for kind in way.kinds}
        if "partition" in live.refused:
            known = {kind.name: kind for kind in self._kinds}
        for kind in known.values():
            self._node_type(kind)
        for partition, way in ways:
            self._partition(partition, way)
        self._leave_out([p.name for p in order], {p.name for p, _ in ways})

    def _leave_out(self, names: list[str], kept: set[str]) -> None:
        if odd := [name for name in names if not _NAME.fullmatch(name)]:
            listed = ", ".join(map(repr, odd))
            self.left_out.append(cut(f"partitions with names for no script: {listed}", 300))
        if without := [name for name in names if _NAME.fullmatch(name) and name not in kept]:
            what = "GPUs" if self.with_gpus else "nodes"
            self.left_out.append(cut(f"partitions without {what}: {', '.join(without)}", 2000))

    def _ways(self, partition: LivePartition) -> Iterator[_Way]:
        """The kinds of nodes that a partition has, the most frequent first, then all together."""
        counts = [
            (sum(partition.name in node.partitions for node in kind.nodes), kind)
            for kind in self._kinds
        ]
        found = [
            (_capped(kind, partition), count)
            for count, kind in sorted(
                counts, key=lambda pair: (pair[1].slices, -pair[0], pair[1].name)
            )
            if count
        ]
        slices = any(kind.slices for kind, _ in found)
        for kind, count in found:
            untold = slices and not (kind.slices or kind.must_say_type or kind.constraint)
            yield _Way((kind,), count, "slices of GPUs may be given as well" if untold else "")
        whole = [(kind, count) for kind, count in found if kind.gpus and not kind.slices]
        apart = len({node.name for kind, _ in whole for node in kind.nodes})
        if len(whole) > 1 and not slices and apart == sum(len(kind.nodes) for kind, _ in whole):
            yield _Way(tuple(kind for kind, _ in whole), sum(count for _, count in whole))
        if not found and (hidden := self.live.unknown_nodes(partition)):
            yield _Way((), hidden)

    def _node_type(self, kind: Kind) -> None:
        facts = {
            "gpus": min(kind.gpus, 64) if self.with_gpus else None,
            "gpu_type": kind.slurm_type if kind.must_say_type or self.everything else None,
            "vendor": None if self.with_gpus else "none",
            "arch": kind.arch if kind.arch in ("x86_64", "aarch64", "ppc64le") else None,
            "nodes": len(kind.nodes),
            "cpus": kind.cpus,
            "memory_mb": kind.memory_mb,
            "features": [f for f in kind.features if FEATURE.fullmatch(f)],
        }
        self.node_types[kind.name] = {k: v for k, v in facts.items() if v not in (None, [])}
        self.notes[f"node_types.{kind.name}"] = cut("; ".join(kind.remarks), 400)

    def _partition(self, live: LivePartition, way: _Way) -> None:
        key = live.name
        if way.kinds and key in self.partitions:
            key = f"{live.name}-{way.kinds[0].name if len(way.kinds) == 1 else 'any'}"
        others = {p.name for p in self.live.partitions} - {live.name}
        while key in self.partitions or key in others:
            key += "-2"
        qos = LiveQos(name="")
        if self.live.enforces("limits"):
            qos = (self.live.qos or {}).get(live.qos or "", qos)
        names = [kind.name for kind in way.kinds]
        one = len(names) == 1
        facts: dict[str, Any] = {"node_type": names[0]} if one else {"node_types": names or None}
        if key != live.name:
            facts["select"] = {"partition": live.name}
        facts |= self._qos_of_jobs(live)
        if len(way.kinds) == 1 and not way.kinds[0].must_say_type:
            facts["constraint"] = self._constraint(way.kinds[0], live)
        remarks = [*self._why_not_automatic(live, way)]
        if not qos.allows_jobs:
            remarks.append(f"QOS {qos.name} allows no job")
        if remarks:
            facts |= {"automatic": False, "offered": False}
        remarks += live.denied
        if not way.kinds and way.count:
            remarks.append(f"{way.count} nodes that Slurm does not show, as of powered-down ones")
        facts |= self._limits(live, qos, way)
        if any(kind.shares_nodes for kind in way.kinds) and not facts["whole_nodes"]:
            facts["memory"] = "share"  # its GPUs are not all of a node's
        if live.qos:
            known = self.live.qos is not None and live.qos in self.live.qos
            remarks.append(f"QOS {live.qos}{'' if known else ', whose limits are not known'}")
        if live.max_time_s is None and qos.max_time_s is None:
            remarks.append("no limit of time")
        if live.billing:
            remarks.append(f"billed by {live.billing}")
        self.partitions[key] = {k: v for k, v in facts.items() if v is not None}
        self.notes[f"partitions.{key}"] = cut("; ".join(remarks), 400)

    def _constraint(self, kind: Kind, live: LivePartition) -> str | None:
        """Where a request without it could get another GPU."""
        others = (one for one in self._kinds if one.gpus and one.constraint != kind.constraint)
        mixed = any(live.name in node.partitions for one in others for node in one.nodes)
        return kind.constraint if mixed else None

    def _qos_of_jobs(self, live: LivePartition) -> dict[str, Any]:
        """The one that jobs there need; of several, all, unless a default of theirs is one."""
        allowed = [name for name in live.allowed_qos or () if _NAME.fullmatch(name)]
        if not allowed or not self.live.enforces("qos") or self._defaults() & {*allowed}:
            return {}
        return {"qos": allowed[0]} if len(allowed) == 1 else {"allowed_qos": allowed}

    def _defaults(self) -> set[str]:
        """QOS that a job gets without a word: of whoever asks, else Slurm's own."""
        own = {a.default_qos for a in self.live.associations or () if a.user and a.default_qos}
        return own or {"normal"}

    def _why_not_automatic(self, live: LivePartition, way: _Way) -> Iterator[str]:
        yield from live.restricted
        yield from not_from(live, self.host)
        if live.allowed_qos is not None and self.live.enforces("qos"):
            own = {name for a in self.live.associations or () if a.user for name in a.qos}
            if not {*live.allowed_qos} & (own or self._defaults()):
                yield f"AllowQos={','.join(live.allowed_qos)}"
        accounts = {a.account for a in self.live.associations or () if a.user}
        if accounts and accounts <= {*live.denied_accounts}:
            yield "not for the accounts of who drafted this"
        if not live.up:
            yield "not UP when asked"
        if any(kind.slices for kind in way.kinds):
            yield "slices of GPUs, which NCCL does not join to one job"
        if way.why_not:
            yield way.why_not
        if is_for_tests(live):
            yield "for short tests, by its name and its limit of time"

    def _limits(self, live: LivePartition, qos: LiveQos, way: _Way) -> dict[str, Any]:
        """The partition's own limits, and those of its QOS, whichever are stricter."""
        times = [t for t in (live.max_time_s, qos.max_time_s) if t is not None]
        bounds = [live.max_nodes, qos.of("MaxTRES").get("node"), qos.of("GrpTRES").get("node")]
        if way.count and way.count < (sum(len(kind.nodes) for kind in way.kinds) or 10**9):
            bounds.append(way.count)
        nodes = [n for n in bounds if n is not None]
        least = max(live.min_nodes or 1, qos.of("MinTRES").get("node", 1))
        gpus, of_node = "gres/gpu", max((kind.gpus for kind in way.kinds), default=64)
        all_gpus = (qos.of("MaxTRES").get(gpus), qos.of("GrpTRES").get(gpus))
        most_gpus = min((n for n in all_gpus if n is not None), default=None)
        least_gpus, per_node = qos.of("MinTRES").get(gpus), qos.of("MaxTRESPerNode").get(gpus, 64)
        minutes = qos.of("MaxTRESMins")
        possible = not nodes or least <= min(nodes)
        return {
            "min_nodes": least if least > 1 and possible else None,
            "max_nodes": min(nodes, default=None),
            "max_node_hours": minutes["node"] / 60 if minutes.get("node") else None,
            "max_gpu_hours": minutes[gpus] / 60 if minutes.get(gpus) else None,
            "max_gpus_per_node": per_node if 0 < per_node < of_node else None,
            "max_time": format_time(min(times)) if times else None,
            "default_time": format_time(live.default_time_s) if live.default_time_s else None,
            "min_gpus_per_job": None if (least_gpus or 0) > (most_gpus or 10**9) else least_gpus,
            "max_gpus_per_job": most_gpus,
            "max_gpus_per_user": qos.of("MaxTRESPU").get(gpus),
            "max_gpus_per_account": qos.of("MaxTRESPA").get(gpus),
            "max_nodes_per_user": qos.of("MaxTRESPU").get("node"),
            "max_jobs_per_user": qos.of("MaxJobsPU").get("") or None,
            "max_memory_per_cpu_mb": max_memory_per_cpu_mb(live, self.live),
            "whole_nodes": "given" if self.live.is_whole(live) else None,
            "preempt": preempted(live, self.live),
        }


def _capped(kind: Kind, partition: LivePartition) -> Kind:
    """The kind as a partition gives it, which may keep a part of each node for others."""
    cpus, memory_mb = partition.given(kind.cpus, kind.memory_mb)
    if (cpus, memory_mb) == (kind.cpus, kind.memory_mb):
        return kind
    remarks = (*kind.remarks, f"as partition {partition.name} gives them")
    name = f"{kind.name}-in-{partition.name}"
    return replace(kind, name=name, cpus=cpus, memory_mb=memory_mb, remarks=remarks)


def _makes_way(partition: LivePartition, live: LiveCluster) -> bool:
    return preempted(partition, live) in ("cancel", "requeue")


def preempted(partition: LivePartition, live: LiveCluster) -> str | None:
    """What happens to its jobs that must make way, where partitions decide it: those of a lower
    tier make way on nodes that they share."""
    kind = live.config.get("PreemptType", "")
    if kind == "preempt/none" or not kind:
        return "none" if kind else None
    if kind != "preempt/partition_prio" or partition.priority_tier is None:
        return None
    mode = partition.preempt_mode.partition(",")[0]
    if mode != "OFF" and "node" in live.refused:
        return None
    above = {
        p.name
        for p in live.partitions
        if p.priority_tier is not None and p.priority_tier > partition.priority_tier
    }
    shared = any(
        partition.name in node.partitions and above & set(node.partitions)
        for node in live.all_nodes
    )
    if not shared or mode == "OFF":
        return "none"
    return {"CANCEL": "cancel", "REQUEUE": "requeue"}.get(mode)
