"""What each node of a run uses, from the newest two lines of its samples, for `fsdpkit top`. Pure,
except for `SampleReader`, which reads those lines.

Nodes that stand out come first: those whose agent is silent, then those that do least, because an
idle node among busy ones is what a person looks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.reporting.logs.lines import LineReader, position_of_last
from fsdpkit.reporting.scales import duration

_STALE_S = 30.0
_MISSED = 3
"""So many samples left out make a node stale: they thin out as a run grows older."""
_GIB = 2**30
_GPU_WIDTH = 6 + 5 + 8
_OTHER_WIDTH = 6 + 10 + 9 + 9 + 15
"""Of the columns behind a node's name."""


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


class SampleReader:
    """The newest samples of each node, as their files grow."""

    def __init__(self) -> None:
        self._files: dict[Path, LineReader] = {}
        self._newest: dict[Path, list[dict[str, Any]]] = {}

    def read(self, path: Path) -> list[dict[str, Any]]:
        """The last two samples in the file, or fewer."""
        with contextlib.suppress(OSError):
            if path not in self._files:
                start = position_of_last(path, 3)  # one may be torn
                self._files[path] = LineReader(path, start, newest=True)
            reader = self._files[path]
            lines = reader.read()
            while reader.more:
                lines = (lines + reader.read())[-2:]
            found = [one for line in lines if (one := _sample(line))]
            self._newest[path] = [*self._newest.get(path, []), *found][-2:]
        return self._newest.get(path, [])


def _sample(line: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) and _number(found, "time_s") is not None else {}


def usage_of(
    number: int, name: str, samples: Sequence[Mapping[str, Any]], now_s: float
) -> NodeUsage:
    """A node's usage by its last two samples (or fewer), oldest first."""
    if not samples:
        return NodeUsage(number=number, name=name)
    last, before = samples[-1], samples[-2] if len(samples) > 1 else None
    time_s = _number(last, "time_s") or 0.0
    elapsed_s = time_s - (_number(before, "time_s") or 0.0) if before else 0.0
    age_s = max(0.0, now_s - time_s)
    gpus = last.get("gpus")
    gpus = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    busy = [v for gpu in gpus if (v := _number(gpu, "utilization_percent")) is not None]
    held = [
        (used, _number(gpu, "memory_total_bytes"))
        for gpu in gpus
        if (used := _number(gpu, "memory_used_bytes")) is not None
    ]
    memory, total = max(held, key=lambda one: one[0], default=(None, None))
    return NodeUsage(
        number=number,
        name=name,
        time_s=time_s,
        age_s=age_s,
        stale=age_s > max(_STALE_S, _MISSED * elapsed_s),
        gpus=len(gpus),
        gpu_percent=sum(busy) / len(busy) if busy else None,
        gpu_lowest_percent=min(busy, default=None),
        gpu_memory_bytes=memory,
        gpu_memory_total_bytes=total,
        cpu_percent=_number(last, "cpu_percent"),
        memory_bytes=_number(last, "memory_used_bytes"),
        memory_total_bytes=_number(last, "memory_total_bytes"),
        sent_bytes_per_s=_rate("network_sent_bytes", before, last, elapsed_s),
        received_bytes_per_s=_rate("network_received_bytes", before, last, elapsed_s),
    )


def _rate(
    key: str, before: Mapping[str, Any] | None, last: Mapping[str, Any], elapsed_s: float
) -> float | None:
    first, second = _number(before or {}, key), _number(last, key)
    if first is None or second is None or elapsed_s <= 0 or second < first:
        return None
    return (second - first) / elapsed_s


def _number(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


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
    names = max([4, *(len(node.name) for node in nodes)])
    with_gpus = any(node.gpus for node in nodes)
    names = min(names, max(8, width - (_GPU_WIDTH if with_gpus else 0) - _OTHER_WIDTH))
    rows = max(1, height - 3)
    shown = ordered if len(ordered) <= rows else ordered[: max(1, rows - 1)]
    lines = [title, summary(nodes), _header(names, with_gpus)]
    lines += [_row(node, names, with_gpus) for node in shown]
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
    gpu = [node.gpu_percent for node in fresh if node.gpu_percent is not None]
    lowest = [n.gpu_lowest_percent for n in fresh if n.gpu_lowest_percent is not None]
    cpu = [node.cpu_percent for node in fresh if node.cpu_percent is not None]
    sent = [node.sent_bytes_per_s for node in fresh if node.sent_bytes_per_s is not None]
    received = [n.received_bytes_per_s for n in fresh if n.received_bytes_per_s is not None]
    parts = []
    parts += [f"GPU {sum(gpu) / len(gpu):.0f} % (lowest {min(lowest):.0f} %)"] if gpu else []
    parts += [f"CPU {sum(cpu) / len(cpu):.0f} %"] if cpu else []
    parts += [f"out {sum(sent) / 1e6:,.0f} MB/s"] if sent else []
    parts += [f"in {sum(received) / 1e6:,.0f} MB/s"] if received else []
    return f"{count}; {', '.join(parts)}" if parts else count


def _header(names: int, with_gpus: bool) -> str:
    gpu = f"{'GPU %':>6}{'low':>5}{'GiB':>8}" if with_gpus else ""
    return f"{'NODE':<{names}}{gpu}{'CPU %':>6}{'GiB':>10}{'out MB/s':>9}{'in MB/s':>9}  SEEN"


def _row(node: NodeUsage, names: int, with_gpus: bool) -> str:
    # Nodes are distinguished by the end of their names.
    name = node.name if len(node.name) <= names else f"…{node.name[1 - names :]}"
    if node.time_s is None:
        return f"{name:<{names}}  no sample yet"
    cells = [f"{name:<{names}}"]
    if with_gpus:
        cells += [f"{_whole(node.gpu_percent):>6}", f"{_whole(node.gpu_lowest_percent):>5}"]
        cells += [f"{_of(node.gpu_memory_bytes, node.gpu_memory_total_bytes):>8}"]
    cells += [f"{_whole(node.cpu_percent):>6}"]
    cells += [f"{_of(node.memory_bytes, node.memory_total_bytes):>10}"]
    cells += [f"{_rate_of(node.sent_bytes_per_s):>9}", f"{_rate_of(node.received_bytes_per_s):>9}"]
    seen = " ".join(duration(node.age_s or 0.0).split()[:2])
    return "".join(cells) + f"  {seen}{', stale' if node.stale else ''}"


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
