"""`check.json`: what the job `check` measured on each node, and which nodes are outliers.

Rank 0 of `jobs/check_nodes.py` writes it; `fsdpkit check` reads and judges it. Judging is pure. A
figure is compared with the median over nodes, and with the site profile's expectation if there is
one: speeds depend on the cluster, but its nodes should be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Literal

import msgspec

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_bytes

FILE = "check.json"
SLOW = 0.7
"""Below this part of the expected speed a node is slow."""
_CLOCK_S = 0.5
"""Clocks that differ by more put the failures of two nodes into the wrong order."""


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU. None: not answered."""

    index: int
    """Its place in CUDA_VISIBLE_DEVICES."""
    name: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    clock_mhz: int | None = None
    """Of the streaming multiprocessors, now; low on an idle GPU."""
    clock_max_mhz: int | None = None
    temperature_c: int | None = None
    uncorrected_ecc_errors: int | None = None
    """Since the driver was loaded."""
    remap_pending: bool | None = None
    """A damaged row of memory waits for a reset of the GPU to be replaced."""
    remap_failed: bool | None = None
    """There was no row left to replace a damaged one."""
    processes: list[str] = []


class RankSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured alone."""

    rank: int
    matmul_tflop_s: float | None = None
    """float32 on a CPU core's threads, bfloat16 on a GPU, or float16 on one that lacks it."""
    error: str | None = None
    """Why it has no figure."""


class ReportedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the job. Bandwidths are bus bandwidths of an all-reduce, in 10^9 bytes a second:
    2 (k - 1) / k times the message over the time, for k ranks."""

    name: str
    cpus: int
    """CPUs that its ranks may use."""
    memory_total_gb: float
    memory_available_gb: float
    clock_offset_s: float
    """Its clock minus the first node's."""
    clock_error_s: float
    """Half the round trip with which that was measured."""
    unresolved: list[str] = []
    """Nodes whose names it cannot resolve, with the reason."""
    gpus: list[GpuState] = []
    """As they were before the first measurement."""
    loaded_clock_mhz: list[int | None] = []
    """Each GPU's clock while it multiplied matrices."""
    xid_errors: list[int] = []
    ranks: list[RankSpeed]
    in_node_gb_s: float | None = None
    """Among its own ranks; None with one rank."""

    @property
    def slowest_tflop_s(self) -> float | None:
        return min((r.matmul_tflop_s for r in self.ranks if r.matmul_tflop_s), default=None)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce among the ranks of two nodes alone."""

    nodes: tuple[str, str]
    gb_s: float


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the job measured."""

    schema: Literal["fsdpkit.check/1"] = "fsdpkit.check/1"
    created_s: float
    device: Literal["cpu", "cuda"]
    message_mib: int
    nodes: list[ReportedNode]
    pairs: list[Pair] = []
    all_nodes_gb_s: float | None = None
    """Among all ranks at once."""
    seconds: float

    def between_nodes_gb_s(self, node: str) -> float | None:
        """The node's best pair: a good node has a good partner sooner or later, a slow one none."""
        return max((pair.gb_s for pair in self.pairs if node in pair.nodes), default=None)


@dataclass(frozen=True)
class NodeVerdict:
    """What is to be said of one node. `reasons` make it slow or broken; `notes` are to be known."""

    node: str
    state: Literal["ok", "slow", "broken"]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save(report: NodeReport, attempt_dir: Path) -> Path:
    """Write it, complete or not at all. Raises OSError."""
    path = attempt_dir / FILE
    write_atomically(path, msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    return path


def load(attempt_dir: Path) -> NodeReport:
    """Raises NotFoundError if the job wrote none, StorageError if it cannot be read."""
    path = attempt_dir / FILE
    try:
        return msgspec.json.decode(read_bytes(path), type=NodeReport)
    except FileNotFoundError as error:
        raise NotFoundError(f"the job ended before it wrote {path}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def judge(report: NodeReport, expected_gb_s: float | None = None) -> list[NodeVerdict]:
    """Each node's verdict. expected_gb_s: between nodes, as the site profile has it."""
    slow = _slow(report, expected_gb_s)
    verdicts = []
    for node in report.nodes:
        broken, notes = _broken(node), tuple(_notes(node))
        reasons = (*broken, *slow.get(node.name, ()))
        state: Literal["ok", "slow", "broken"] = "broken" if broken else "slow" if reasons else "ok"
        verdicts.append(NodeVerdict(node.name, state, reasons, notes))
    return verdicts


def remarks(report: NodeReport, expected_gb_s: float | None = None) -> list[str]:
    """What concerns no single node: the network as a whole, two nodes, or a bad path."""
    said = []
    figures = _between_nodes(report)
    if figures and expected_gb_s and max(figures.values()) < SLOW * expected_gb_s:
        said.append(
            f"no pair of nodes reaches {SLOW:g} x {expected_gb_s:g} GB/s, the profile's "
            f"expectation (best: {max(figures.values()):.3g} GB/s): is the fast fabric in use? "
            "See network.socket_ifname and network.env of the profile"
        )
    if len(figures) == 2 and expected_gb_s is None:
        said.append(
            "two nodes have only one path between them and none to compare it with: check with "
            "--nodes 3 or more, or set network.all_reduce_gb_s in the site profile"
        )
    return [*said, *_bad_paths(report, figures)]


def _bad_paths(report: NodeReport, figures: Mapping[str, float]) -> Iterator[str]:
    """Pairs that are slow although each of the two is fast with others: a cable or a switch."""
    for pair in report.pairs:
        worse = min(figures[node] for node in pair.nodes)
        if len(figures) > 2 and pair.gb_s < SLOW * worse:
            yield (
                f"{' and '.join(pair.nodes)} exchange {pair.gb_s:.3g} GB/s, though each reaches "
                f"{worse:.3g} GB/s with another node: tell the centre of the path between them"
            )


def _between_nodes(report: NodeReport) -> dict[str, float]:
    found = {node.name: report.between_nodes_gb_s(node.name) for node in report.nodes}
    return {name: figure for name, figure in found.items() if figure is not None}


def _slow(report: NodeReport, expected_gb_s: float | None) -> dict[str, list[str]]:
    """By node, each figure of its own that is too low."""
    between = _between_nodes(report)
    # If even the best pair is below it, the expectation says nothing about a single node.
    expected = expected_gb_s if between and expected_gb_s else None
    if expected and max(between.values()) < SLOW * expected:
        expected = None
    found: dict[str, list[str]] = {}
    for what, unit, figures, least in (
        ("multiplies matrices at", "TFLOP/s", _matmul(report), None),
        ("all-reduces within itself at", "GB/s", _in_node(report), None),
        ("all-reduces with its best partner at", "GB/s", between, expected),
    ):
        if not figures:
            continue
        middle = median_high(figures.values())  # of two, the better one
        for node, figure in figures.items():
            if figure < SLOW * middle:
                found.setdefault(node, []).append(
                    f"{what} {figure:.3g} {unit}, the median node at {middle:.3g}"
                )
            elif least and figure < SLOW * least:
                found.setdefault(node, []).append(
                    f"{what} {figure:.3g} {unit}, the profile expects {least:g}"
                )
    return found


def _matmul(report: NodeReport) -> dict[str, float]:
    found = {node.name: node.slowest_tflop_s for node in report.nodes}
    return {name: figure for name, figure in found.items() if figure is not None}


def _in_node(report: NodeReport) -> dict[str, float]:
    return {n.name: n.in_node_gb_s for n in report.nodes if n.in_node_gb_s is not None}


def _broken(node: ReportedNode) -> Sequence[str]:
    """What makes a node unfit for any training."""
    reasons = [f"rank {rank.rank}: {rank.error}" for rank in node.ranks if rank.error]
    reasons += [
        f"GPU {gpu.index}: a row of its memory is beyond repair"
        for gpu in node.gpus
        if gpu.remap_failed
    ]
    if node.xid_errors:
        listed = ", ".join(map(str, node.xid_errors))
        reasons.append(f"the driver reported XID {listed} while the GPUs were measured")
    return reasons


def _notes(node: ReportedNode) -> Iterator[str]:
    if abs(node.clock_offset_s) - node.clock_error_s > _CLOCK_S:
        yield (
            f"its clock is {node.clock_offset_s:+.1f} s off the first node's: tell the centre "
            "(chrony or NTP)"
        )
    if node.unresolved:
        yield f"cannot resolve {'; '.join(node.unresolved)}: tell the centre, or use addresses"
    for gpu in node.gpus:
        if gpu.uncorrected_ecc_errors:
            yield f"GPU {gpu.index}: {gpu.uncorrected_ecc_errors} uncorrected ECC errors"
        if gpu.remap_pending:
            yield f"GPU {gpu.index}: a row of its memory waits for a reset to be replaced"
