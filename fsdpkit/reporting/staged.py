"""How far the copies on the nodes' own disks are, in numbers and in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fsdpkit.config.units import format_bytes
from fsdpkit.reporting.words import duration

if TYPE_CHECKING:
    from fsdpkit.runs.history import History
    from fsdpkit.runs.staging import StagedNode, StageRecord


class StageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt copies, or has copied, to its nodes' own disks."""

    began_s: float
    """Unix time."""
    ended_s: float | None = None
    """None: it has not come to its end."""
    bytes: int
    """For one node."""
    files: int
    what: list[str] = []
    """`environment`, `data`."""
    nodes: int
    ready: int
    """Nodes that have all of it."""
    reused: int = 0
    """Nodes that had all of it before."""
    share: float
    """Of all nodes' bytes, 0 to 1."""
    bytes_per_s: float | None = None
    """To one node, the mean so far. None, as the next: it does not go on, or is not known yet."""
    left_s: float | None = None
    """For the slowest node."""
    goes_on: bool = False
    done: bool = False
    """Whether every node has all of it."""

    @property
    def so_far(self) -> str:
        """`3 of 8 nodes ready, 61 % of 2.1 GB, 410 MB/s, 20 s left`."""
        told = [f"{self.ready} of {_nodes(self.nodes)} ready"]
        told.append(f"{100 * self.share:.0f} % of {format_bytes(self.bytes)}")
        told += [f"{format_bytes(self.bytes_per_s)}/s"] if self.bytes_per_s else []
        told += [f"{duration(self.left_s)} left"] if self.left_s is not None else []
        return ", ".join(told)

    @property
    def outcome(self) -> str:
        """`2.1 GB in 3,214 files to 8 nodes in 41 s; 6 of 8 had it already`; of what has not come
        to a good end, how far it is or came."""
        if not self.done or self.ended_s is None:
            return self.so_far if self.goes_on else f"not done: {self.so_far}"
        files = f"{self.files:,} file{'s' * (self.files != 1)}"
        took = duration(max(0.0, self.ended_s - self.began_s))
        words = f"{format_bytes(self.bytes)} in {files} to {_nodes(self.nodes)} in {took}"
        if not self.reused:
            return words
        return f"{words}; {self.reused} of {self.nodes} had it already"


def stage_progress(
    record: StageRecord | None, nodes: int, *, goes_on: bool = False
) -> StageProgress | None:
    """nodes: how many the attempt has. goes_on: whether it is at this stage now."""
    if record is None:
        return None
    told = list(record.nodes.values())
    count = max(nodes, len(told), 1)
    has = sum(record.bytes if n.state == "ready" else min(n.bytes, record.bytes) for n in told)
    moving = goes_on and record.ended_s is None
    copied = [n for n in told if n.bytes and n.seconds and not (n.reused and n.state == "ready")]
    return StageProgress(
        began_s=record.began_s,
        ended_s=record.ended_s,
        bytes=record.bytes,
        files=record.files,
        what=[*record.what],
        nodes=count,
        ready=sum(node.state == "ready" for node in told),
        reused=sum(node.reused and node.state == "ready" for node in told),
        share=has / (record.bytes * count) if record.bytes else 1.0,
        bytes_per_s=sum(n.bytes / n.seconds for n in copied) / len(copied)
        if moving and copied
        else None,
        left_s=_left_s(told, record.bytes) if moving and len(told) == count else None,
        goes_on=moving,
        done=record.done,
    )


def stage_of(history: History, nodes: int, *, running: bool) -> StageProgress | None:
    """Of its newest attempt. running: by the scheduler."""
    if not history.attempts:
        return None
    newest = history.attempts[-1]
    at_it = running and not newest.launches and newest.ending is None
    return stage_progress(newest.stage, nodes, goes_on=at_it)


def _left_s(nodes: Iterable[StagedNode], size: int) -> float | None:
    """Of the slowest, at its pace so far; None as long as one has nothing."""
    waiting = [node for node in nodes if node.state == "copying"]
    if not all(node.bytes and node.seconds for node in waiting):
        return None
    return max((max(0, size - n.bytes) * n.seconds / n.bytes for n in waiting), default=None)


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
