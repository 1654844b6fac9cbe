"""What each node of a run uses, from the newest two lines of its samples: for `top` and `watch`.

Nodes that stand out come first: those whose agent is silent, then those that do least, because an
idle node among busy ones is what a person looks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from fsdpkit.reporting.logs.lines import LineReader, position_of_last
from fsdpkit.reporting.words import duration
from fsdpkit.runs.history import Attempt
from fsdpkit.runs.samples import Sample, sample_in

_STALE_S = 30.0
_MISSED = 3
"""So many samples left out make a node stale: they thin out as a run grows older."""
_GIB = 2**30


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One node. None: not measured, or not there."""

    number: int
    name: str
    time_s: float | None = None
    """Of the newest sample, Unix time."""
    age_s: float | None = None
    stale: bool = False
    """Whether samples that were due have not come."""
    gpus: int = 0
    gpu_percent: float | None = None
    """Mean over the node's GPUs."""
    gpu_lowest_percent: float | None = None
    gpu_memory_bytes: float | None = None
    """Of the GPU that holds most."""
    gpu_memory_total_bytes: float | None = None
    """Of the same GPU."""
    cpu_percent: float | None = None
    """Of all cores."""
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    sent_bytes_per_s: float | None = None
    """Through the node's network interfaces, not by RDMA; as the next."""
    received_bytes_per_s: float | None = None


_Column = tuple[str, int, Callable[[NodeUsage], str]]
"""Its heading, how wide it is, and a node's cell."""


class SampleReader:
    """The newest samples of each node, as their files grow."""

    def __init__(self) -> None:
        self._files: dict[Path, LineReader] = {}
        self._newest: dict[Path, list[Sample]] = {}

    def read(self, path: Path) -> list[Sample]:
        """The last two samples in the file, or fewer."""
        with contextlib.suppress(OSError):
            if path not in self._files:
                start = position_of_last(path, 3)  # one may be torn
                self._files[path] = LineReader(path, start, newest=True)
            reader = self._files[path]
            lines = reader.read()
            while reader.more:
                lines = (lines + reader.read())[-2:]
            found = [one for line in lines if (one := sample_in(line)) is not None]
            self._newest[path] = [*self._newest.get(path, []), *found][-2:]
        return self._newest.get(path, [])


def usage_in(
    attempt: Attempt, reader: SampleReader, now_s: float, most: int | None = None
) -> list[NodeUsage]:
    """Of the attempt's first `most` nodes."""
    return [
        usage_of(
            node.number,
            node.name or f"node {node.number}",
            reader.read(attempt.paths.node_samples(node.number)),
            # A node that has ended is not late.
            now_s if node.ended_s is None and attempt.ended_s is None else 0.0,
        )
        for node in sorted(attempt.nodes, key=lambda node: node.number)[:most]
    ]


def usage_of(number: int, name: str, samples: Sequence[Sample], now_s: float) -> NodeUsage:
    """A node's usage by its last two samples (or fewer), oldest first."""
    if not samples:
        return NodeUsage(number=number, name=name)
    before, last = samples[0], samples[-1]
    elapsed_s, age_s = last.time_s - before.time_s, max(0.0, now_s - last.time_s)
    busy = [g.utilization_percent for g in last.gpus if g.utilization_percent is not None]
    held = [
        (gpu.memory_used_bytes, gpu.memory_total_bytes)
        for gpu in last.gpus
        if gpu.memory_used_bytes is not None
    ]
    memory, total = max(held, key=lambda one: one[0], default=(None, None))
    return NodeUsage(
        number=number,
        name=name,
        time_s=last.time_s,
        age_s=age_s,
        stale=age_s > max(_STALE_S, _MISSED * elapsed_s),
        gpus=len(last.gpus),
        gpu_percent=sum(busy) / len(busy) if busy else None,
        gpu_lowest_percent=min(busy, default=None),
        gpu_memory_bytes=memory,
        gpu_memory_total_bytes=total,
        cpu_percent=last.cpu_percent,
        memory_bytes=last.memory_used_bytes,
        memory_total_bytes=last.memory_total_bytes,
        sent_bytes_per_s=_rate(before.network_sent_bytes, last.network_sent_bytes, elapsed_s),
        received_bytes_per_s=_rate(
            before.network_received_bytes, last.network_received_bytes, elapsed_s
        ),
    )


def _rate(first: float | None, second: float | None, elapsed_s: float) -> float | None:
    if first is None or second is None or elapsed_s <= 0 or second < first:
        return None
    return (second - first) / elapsed_s


def worst_first(nodes: Iterable[NodeUsage]) -> list[NodeUsage]:
    """Without samples, stale, then by the idlest GPU, or else by the CPU."""

    def rank(node: NodeUsage) -> tuple[int, float, int]:
        if node.time_s is None:
            return (0, 0.0, node.number)
        if node.stale:
            return (1, -(node.age_s or 0.0), node.number)
        busy = node.cpu_percent if node.gpu_lowest_percent is None else node.gpu_lowest_percent
        return (2, round(busy or 0.0), node.number)

    return sorted(nodes, key=rank)


def frame(title: str, nodes: Sequence[NodeUsage], width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` columns: title, all nodes in a line, the worst."""
    ordered = worst_first(nodes)
    columns = (*_GPU_COLUMNS, *_COLUMNS) if any(node.gpus for node in nodes) else _COLUMNS
    left = width - sum(column[1] for column in columns) - _SEEN_WIDTH
    names = min(max([4, *(len(node.name) for node in nodes)]), max(8, left))
    rows = max(1, height - 3)
    shown = ordered if len(ordered) <= rows else ordered[: max(1, rows - 1)]
    heads = "".join(f"{head:>{wide}}" for head, wide, _ in columns)
    lines = [title, summary(nodes), f"{'NODE':<{names}}{heads}  SEEN"]
    lines += [_row(node, names, columns) for node in shown]
    if len(shown) < len(ordered):
        lines.append(f"and {len(ordered) - len(shown)} more nodes, busier than these")
    return [line.rstrip()[:width] for line in lines[:height]]


def summary(nodes: Sequence[NodeUsage]) -> str:
    """`64 nodes, 1 stale; GPU 93 % (lowest 12 %), CPU 31 %, out 1,204 MB/s, in 1,199 MB/s`."""
    fresh = [node for node in nodes if node.time_s is not None and not node.stale]
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    if stale := len([node for node in nodes if node.stale]):
        count += f", {stale} stale"
    if missing := len([node for node in nodes if node.time_s is None]):
        count += f", {missing} without a sample"

    def known(name: str) -> list[float]:
        return [value for node in fresh if (value := getattr(node, name)) is not None]

    parts = []
    if gpu := known("gpu_percent"):
        lowest = min(known("gpu_lowest_percent"))
        parts.append(f"GPU {sum(gpu) / len(gpu):.0f} % (lowest {lowest:.0f} %)")
    if cpu := known("cpu_percent"):
        parts.append(f"CPU {sum(cpu) / len(cpu):.0f} %")
    for way, name in (("out", "sent_bytes_per_s"), ("in", "received_bytes_per_s")):
        if rates := known(name):
            parts.append(f"{way} {sum(rates) / 1e6:,.0f} MB/s")
    return f"{count}; {', '.join(parts)}" if parts else count


_GPU_COLUMNS: tuple[_Column, ...] = (
    ("GPU %", 6, lambda node: _whole(node.gpu_percent)),
    ("low", 5, lambda node: _whole(node.gpu_lowest_percent)),
    ("GiB", 8, lambda node: _of(node.gpu_memory_bytes, node.gpu_memory_total_bytes)),
)
_COLUMNS: tuple[_Column, ...] = (
    ("CPU %", 6, lambda node: _whole(node.cpu_percent)),
    ("GiB", 10, lambda node: _of(node.memory_bytes, node.memory_total_bytes)),
    ("out MB/s", 9, lambda node: _rate_of(node.sent_bytes_per_s)),
    ("in MB/s", 9, lambda node: _rate_of(node.received_bytes_per_s)),
)
_SEEN_WIDTH = 15
"""Of the last column: when a node was seen last."""


def _row(node: NodeUsage, names: int, columns: Sequence[_Column]) -> str:
    # Nodes are distinguished by the end of their names.
    name = node.name if len(node.name) <= names else f"…{node.name[1 - names :]}"
    if node.time_s is None:
        return f"{name:<{names}}  no sample yet"
    cells = "".join(f"{cell(node):>{width}}" for _, width, cell in columns)
    seen = " ".join(duration(node.age_s or 0.0).split()[:2])
    return f"{name:<{names}}{cells}  {seen}{', stale' * node.stale}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _of(used: float | None, total: float | None) -> str:
    if used is None:
        return "-"
    return f"{used / _GIB:.0f}" + (f"/{total / _GIB:.0f}" if total else "")


def _rate_of(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return "-"
    return f"{bytes_per_s / 1e6:,.1f}" if bytes_per_s < 1e9 else f"{bytes_per_s / 1e6:,.0f}"
