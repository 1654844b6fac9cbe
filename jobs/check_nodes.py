"""Ranks that measure their nodes and train nothing; `fsdpkit check --nodes` reads what they write.

    torchrun ... jobs/check_nodes.py

The order matters, because each part needs the previous ones: every rank multiplies matrices alone;
the nodes exchange their descriptions; the ranks of each node all-reduce among themselves; then all
ranks together; then the nodes in pairs.

The pairs identify a slow node. All ranks together only show that there is one, since a ring is as
fast as its slowest link, and leaving out one node at a time would take as many rounds as nodes. So
nodes are paired as in a round-robin tournament: in each of at most four rounds all nodes form
disjoint pairs at the same time, each round with new partners. A node counts as fast as its best
pair: a good node is misjudged only if all four partners are bad, and a bad one is slow with each.
The time does not grow with the number of nodes.

A figure is the best of several repetitions, as other load on the node can only lower it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from fsdpkit.config.gpu import has_bfloat16
from fsdpkit.launching import nvml
from fsdpkit.runs.node_report import NodeReport, Pair, RankSpeed, ReportedNode, save
from fsdpkit.training.device_code import capability_of
from fsdpkit.training.distributed import Ranks, gather, process_group

ROUNDS = 4
"""Of pairs, at most."""
REPETITIONS = 10
PINGS = 8
MESSAGE_MIB = {"cuda": 256, "cpu": 8}
MATRIX = {"cuda": 8192, "cpu": 512}
MULTIPLY_S = {"cuda": 3.0, "cpu": 0.6}
TIMEOUT_S = 300
"""Of one collective; a path between nodes that carries nothing ends the job after it."""


@record
def main() -> None:
    started = time.monotonic()
    with process_group(TIMEOUT_S) as ranks:
        attempt = Path(os.environ.get("FSDPKIT_ATTEMPT_DIR", "."))
        nodes, network = measure(ranks)
        report = NodeReport(
            created_s=round(time.time(), 3),
            device="cuda" if ranks.device.type == "cuda" else "cpu",
            message_mib=MESSAGE_MIB[ranks.device.type],
            nodes=nodes,
            pairs=[pair for each in gather(network.pairs) for pair in each],
            all_nodes_gb_s=network.all_nodes_gb_s,
            seconds=round(time.monotonic() - started, 1),
        )
        if ranks.is_first:
            path = save(report, attempt)
            print(f"{len(nodes)} nodes measured in {report.seconds} s: {path}", flush=True)


@dataclass
class Network:
    """What this rank took part in; empty where nothing was measured."""

    in_node_gb_s: float | None = None
    all_nodes_gb_s: float | None = None
    pairs: list[Pair] = field(default_factory=list)
    """Those whose lowest rank this is."""


def measure(ranks: Ranks) -> tuple[list[ReportedNode], Network]:
    """All nodes, in the order of their ranks, on every rank; a collective."""
    environ = os.environ if ranks.local_rank == 0 else {"CUDA_VISIBLE_DEVICES": ""}
    gpus, memory = nvml.gpu_states(environ), psutil.virtual_memory()
    with nvml.xid_errors(environ) as xids:
        clocks: list[int | None] = []
        speed = multiply(
            ranks, lambda: clocks.extend(gpu.clock_mhz for gpu in nvml.gpu_states(environ))
        )
        everyone = gather((node_name(), speed))
        places: dict[str, list[int]] = {}
        for rank, (name, _) in enumerate(everyone):
            places.setdefault(name, []).append(rank)
        # A GPU that failed alone would keep the others waiting in their first all-reduce.
        whole = not any(speed.error for _, speed in everyone)
        network = measure_network(places, ranks) if whole else Network()
    offset_s, error_s = clock_offset([members[0] for members in places.values()], ranks)
    node = None
    if ranks.local_rank == 0:
        node = ReportedNode(
            name=node_name(),
            cpus=len(os.sched_getaffinity(0)),
            memory_total_gb=round(memory.total / 2**30, 1),
            memory_available_gb=round(memory.available / 2**30, 1),
            clock_offset_s=offset_s,
            clock_error_s=error_s,
            unresolved=unresolved([name for name in places if name != node_name()]),
            gpus=gpus,
            loaded_clock_mhz=clocks,
            xid_errors=xids,
            ranks=[speed for name, speed in everyone if name == node_name()],
            in_node_gb_s=network.in_node_gb_s,
        )
    return [each for each in gather(node) if each], network


def node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def multiply(ranks: Ranks, at_half: Callable[[], None]) -> RankSpeed:
    """This rank's speed alone. Never raises: a device that cannot compute is a finding.

    The first half of the time warms up: a GPU that will throttle does so within seconds. `at_half`
    is called while the device is warm.
    """
    try:
        size, dtype = MATRIX[ranks.device.type], torch.float32
        if ranks.device.type == "cuda":
            bfloat16 = has_bfloat16(capability_of(ranks.device))
            dtype = torch.bfloat16 if bfloat16 else torch.float16
        left, right = (torch.randn(size, size, device=ranks.device).to(dtype) for _ in range(2))
        half_s = MULTIPLY_S[ranks.device.type] / 2
        _fastest_s(lambda: left @ right, ranks.device, half_s)
        at_half()
        fastest_s = _fastest_s(lambda: left @ right, ranks.device, half_s)
    except RuntimeError as error:  # what torch makes of any CUDA or memory error
        return RankSpeed(rank=ranks.rank, error=str(error).strip().partition("\n")[0])
    return RankSpeed(rank=ranks.rank, matmul_tflop_s=2 * size**3 / fastest_s / 1e12)


def _fastest_s(action: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The shortest of the calls within `seconds`, of two at least."""
    end, fastest_s, calls = time.perf_counter() + seconds, float("inf"), 0
    while calls < 2 or time.perf_counter() < end:
        fastest_s, calls = min(fastest_s, _timed_s(action, device)), calls + 1
    return fastest_s


def _timed_s(action: Callable[[], object], device: torch.device) -> float:
    _finish(device)
    started = time.perf_counter()
    action()
    _finish(device)
    return time.perf_counter() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_network(places: Mapping[str, Sequence[int]], ranks: Ranks) -> Network:
    """Within nodes, among all, then in pairs. places: each node's ranks. A collective."""
    found = Network()
    if ranks.local_world_size > 1:
        found.in_node_gb_s = alone(places[node_name()], ranks.device)
    if len(places) == 1:
        return found
    dist.barrier()
    found.all_nodes_gb_s = bus_bandwidth_gb_s(dist.group.WORLD, ranks.device)
    for games in tournament(list(places))[:ROUNDS]:
        dist.barrier()  # no round disturbs the one before
        for pair in games:
            if node_name() in pair:
                members = sorted([*places[pair[0]], *places[pair[1]]])
                gb_s = alone(members, ranks.device)
                if ranks.rank == members[0]:
                    found.pairs.append(Pair(nodes=pair, gb_s=gb_s))
    return found


def alone(members: Sequence[int], device: torch.device) -> float:
    """The bus bandwidth among these ranks, which must all call it, while others do as they like.

    The group is gone afterwards, as torch names such groups by their members and by how many
    groups a process has: ranks that had sat out a round would wait under another name.
    """
    group = dist.new_group(list(members), use_local_synchronization=True)
    gb_s = bus_bandwidth_gb_s(group, device)
    dist.destroy_process_group(group)
    return gb_s


def bus_bandwidth_gb_s(group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Of an all-reduce in `group`: 2 (k - 1) / k times the message over the time.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    message = torch.zeros(MESSAGE_MIB[device.type] * 2**18, device=device)
    times_s = [
        _timed_s(lambda: dist.all_reduce(message, group=group), device)
        for _ in range(REPETITIONS + 1)
    ]
    fastest_s = min(times_s[1:])  # the first one also connects
    members = dist.get_world_size(group)
    return 2 * (members - 1) / members * message.nbytes / fastest_s / 1e9


def tournament(players: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds in which everyone meets everyone once, by the circle method; one sits out each round
    if their number is odd."""
    circle: list[str | None] = [*players, *([None] if len(players) % 2 else [])]
    rounds = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return rounds


def clock_offset(leaders: Sequence[int], ranks: Ranks) -> tuple[float, float]:
    """This node's clock minus rank 0's, and how far off that can be, in seconds; 0 on other ranks.

    Each leader in turn asks rank 0 for its time; the shortest round trip counts (Cristian 1989).
    """
    offset_s, error_s = 0.0, 0.0
    for leader in leaders[1:]:
        if ranks.rank == 0:
            _tell_the_time(leader)
        elif ranks.rank == leader:
            offset_s, error_s = _asked_the_time()
    return offset_s, error_s


def _tell_the_time(leader: int) -> None:
    for _ in range(PINGS):
        dist.recv(torch.zeros(1, dtype=torch.float64), src=leader)
        dist.send(torch.tensor([time.time()], dtype=torch.float64), dst=leader)


def _asked_the_time() -> tuple[float, float]:
    best = (0.0, float("inf"))
    answer = torch.zeros(1, dtype=torch.float64)
    for _ in range(PINGS):
        asked_s = time.time()
        dist.send(torch.zeros(1, dtype=torch.float64), dst=0)
        dist.recv(answer, src=0)
        heard_s = time.time()
        offset_s = (asked_s + heard_s) / 2 - float(answer)
        best = min(best, (offset_s, (heard_s - asked_s) / 2), key=lambda found: found[1])
    return best


def unresolved(names: Sequence[str]) -> list[str]:
    """Those that do not resolve here, or only to this node itself, with the reason."""
    found = []
    for name in names:
        try:
            addresses = {str(a[4][0]) for a in socket.getaddrinfo(name, None)}
        except socket.gaierror as error:
            found.append(f"{name} ({error.strerror})")
            continue
        loopback = all(a.startswith("127.") or a == "::1" for a in addresses)
        if loopback and os.environ.get("FSDPKIT_ALLOW_LOOPBACK") != "1":
            found.append(f"{name} (resolves to {', '.join(sorted(addresses))})")
    return found


if __name__ == "__main__":
    main()
