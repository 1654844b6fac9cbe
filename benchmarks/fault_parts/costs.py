"""What failures cost a run on N nodes: measured here where that transfers, assumed where it cannot.

`Measured` is read from results/faults.json and results/checkpoints-cpu-2.json. Every field of
`Assumptions` says in its metadata why it has its value; the tables show them all, and sensitivity
says what another value would change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fault_parts.model import Kind, Repair, System
from benchmarks.fault_parts.rates import LLAMA3, Published, shares
from fsdpkit.config.retry import Retry


def assumed(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class Assumptions:
    """What two CPU cores cannot measure."""

    ranks_per_node: int = assumed(8, "", "one a GPU, in the machines of every published rate")
    state_bytes: float = assumed(
        1e9,
        "bytes a rank",
        "weights and AdamW's moments, 12 bytes a parameter: 11 billion parameters on 17 nodes, "
        "70 billion on 105, 405 billion on 608",
    )
    storage_write_bytes_per_s: float = assumed(
        0.625e9,
        "bytes/s a node",
        "20 GB/s for 32 nodes: the lower of two levels that NVIDIA's DGX SuperPOD reference "
        "architecture asks of storage",
    )
    storage_read_bytes_per_s: float = assumed(
        1.25e9, "bytes/s a node", "40 GB/s for 32 nodes: likewise"
    )
    slowdown: float = assumed(
        0.01,
        "of the time a save is written",
        "steps on GPUs wait little for writing threads; on two cores that do both it was 0.7",
    )
    import_s: float = assumed(
        30.0,
        "s",
        "Python and torch from storage that all nodes read at once, beyond the measured; only "
        "where ranks start cold",
    )
    warm_restarts: int = assumed(
        1,
        "",
        "1: ranks that restart in the job, on standby nodes too, are forked from a process that "
        "has imported torch (`launch.warm`); 0: they import it",
    )
    join_s_per_rank: float = assumed(
        0.003,
        "s a rank",
        "rendezvous and communicators: under 30 s for 10,000 GPUs in MegaScale (Jiang et al., "
        "NSDI 2024, section 3.5), which tuned it",
    )
    network_notice_s: float = assumed(
        30.0,
        "s",
        "NCCL gives up a lost InfiniBand link after 7 tries of 4.3 s (NCCL_IB_RETRY_CNT, "
        "NCCL_IB_TIMEOUT = 20), then the rank dies",
    )
    slurmd_timeout_s: float = assumed(
        300.0, "s", "slurm.conf's SlurmdTimeout: until Slurm ends a job whose head node is lost"
    )
    requeue_hold_s: float = assumed(
        115.0, "s", "Slurm holds a requeued job for 120 s (cred_expire), the cluster measured for 5"
    )
    queue_s: float = assumed(1800.0, "s", "until a requeued job of this size starts; a guess")
    nodes_per_spare: int = assumed(
        64, "nodes", "one spare node each (resources.spare); BLOOM held 4 for 48 (section 3.4)"
    )

    spares_for_devices: int = assumed(
        1, "", "1: a node on which a restart failed is exchanged for a spare one; 0: it is not"
    )

    def spares(self, nodes: int) -> int:
        """None where `nodes_per_spare` is 0."""
        return max(1, nodes // self.nodes_per_spare) if self.nodes_per_spare else 0

    def told(self) -> list[dict[str, Any]]:
        """Name, value, unit and source of each."""
        return [
            {"name": f.name, "value": getattr(self, f.name), **f.metadata} for f in fields(self)
        ]


@dataclass(frozen=True)
class Measured:
    """Times of fsdpkit on this machine, in seconds; rates are those of one rank."""

    restart_s: float
    requeue_s: float
    notice_crash_s: float
    notice_hang_s: float
    notice_node_s: float
    copy_bytes_per_s: float
    write_bytes_per_s: float
    read_bytes_per_s: float
    missing: tuple[str, ...] = ()

    @classmethod
    def read(cls, results: Path) -> Measured:
        """From the result files; what faults.json does not have yet is assumed and named."""
        path = results / "faults.json"
        faults = json.loads(path.read_text("utf-8")) if path.exists() else {}
        saves = json.loads((results / "checkpoints-cpu-2.json").read_text("utf-8"))
        return cls.of(faults, saves["samples"])

    @classmethod
    def of(cls, faults: dict[str, Any], saves: dict[str, Any]) -> Measured:
        """`faults`: restart_s and requeue_s, from the notice to the first step; notice_s of crash,
        hang and node; policy, the hang_s and lost_s that these were measured with."""
        policy, notice = faults.get("policy", {}), faults.get("notice_s", {})
        asked = Retry()
        hang_s = notice.get("hang", asked.hang_s) - policy.get("hang_s", asked.hang_s)
        node_s = notice.get("node", asked.lost_s) - policy.get("lost_s", asked.lost_s)
        wanted = [*PLACEHOLDERS, "notice_s.hang", "notice_s.node"]
        missing = [name for name in wanted if _look_up(faults, name) is None]
        values = {name: _look_up(faults, name) or value for name, value in PLACEHOLDERS.items()}
        return cls(
            restart_s=values["restart_s"],
            requeue_s=values["requeue_s"],
            notice_crash_s=values["notice_s.crash"],
            notice_hang_s=asked.hang_s + max(hang_s, 0.0),
            notice_node_s=asked.lost_s + max(node_s, 0.0),
            **_rates(saves),
            missing=tuple(missing),
        )

    def told(self) -> dict[str, Any]:
        return asdict(self)


# Where nothing is measured yet; about what starting torch on two cores takes.
PLACEHOLDERS = {"restart_s": 15.0, "requeue_s": 20.0, "notice_s.crash": 1.0}


def _look_up(faults: dict[str, Any], name: str) -> float | None:
    found: Any = faults
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return None if found is None else float(found)


def _rates(saves: dict[str, Any]) -> dict[str, float]:
    """Bytes a second of one rank: copying shards aside, writing while nothing trains, resuming."""
    saved, resumed = saves["saved"], saves["resumed"]
    ranks = len(saved)

    def rate(way: str, seconds: str) -> float:
        return float(median(s["bytes"] / s[seconds] for s in saved[0][way])) / ranks

    slowest = (max(each) for each in zip(*(r["resume_s"] for r in resumed["2"]), strict=True))
    size = saved[0]["background"][-1]["bytes"]
    return {
        "copy_bytes_per_s": rate("background", "blocked_s"),
        "write_bytes_per_s": rate("waiting", "written_s"),
        "read_bytes_per_s": size / median(slowest) / ranks,
    }


def system_of(
    nodes: int, measured: Measured, given: Assumptions, rate: Published = LLAMA3
) -> System:
    """The run on so many nodes, under the default policy of `[retry]`."""
    ranks = nodes * given.ranks_per_node
    node_bytes = given.ranks_per_node * given.state_bytes
    written_s = max(
        given.state_bytes / measured.write_bytes_per_s,
        node_bytes / given.storage_write_bytes_per_s,
    )
    read_s = max(
        given.state_bytes / measured.read_bytes_per_s, node_bytes / given.storage_read_bytes_per_s
    )
    copied_s = given.state_bytes / measured.copy_bytes_per_s
    joined_s = given.join_s_per_rank * ranks
    # On a node whose device or link is broken, the first restart fails before anything is read.
    failed_s = measured.restart_s + (0 if given.warm_restarts else given.import_s) + joined_s
    restart_s = failed_s + read_s
    requeue = Repair(
        given.requeue_hold_s + given.queue_s,
        measured.requeue_s + given.import_s + joined_s + read_s,
    )
    notice_s = {
        "crash": measured.notice_crash_s,
        "hang": measured.notice_hang_s,
        "device": measured.notice_crash_s,
        "network": given.network_notice_s,
        "node": measured.notice_node_s,
    }
    kinds = []
    for fault, share in shares().items():
        broken = fault in ("device", "network")
        repair = Repair(notice_s[fault], restart_s + failed_s if broken else restart_s)
        if broken and not given.spares_for_devices:
            repair = Repair(notice_s[fault] + failed_s + requeue.away_s, requeue.start_s)
        replaced = fault == "node" or (broken and bool(given.spares_for_devices))
        kinds.append(Kind(fault, share, repair, replaced, silent=fault == "node"))
    return System(
        nodes=nodes,
        failures_per_s=rate.per_node_s * nodes,
        kinds=tuple(kinds),
        spares=given.spares(nodes),
        requeue=requeue,
        head_requeue=Repair(given.slurmd_timeout_s + requeue.away_s, requeue.start_s),
        blocked_s=copied_s + given.slowdown * written_s,
        written_s=written_s,
    )
