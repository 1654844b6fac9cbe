"""Whether a node's ranks train in the job's world: what they noted of their process groups
(at_start/in_rank.py), and whether they have started launchers with worlds of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.reading import read_text


def wrong_world(node: HeartbeatDir, ranks: Sequence[RankProcess]) -> tuple[int, str] | None:
    """A rank whose process group is not the job's, and what its script did; None: no rank."""
    for rank in ranks:
        kind, _, why = _noted(node.world(rank.local_rank)).partition(" ")
        if kind == "wrong":
            return rank.rank, why
    return None


def made_a_group(node: HeartbeatDir, ranks: Sequence[RankProcess]) -> bool | None:
    """Whether any rank made a process group; None where that is not known of all of them."""
    notes = [_noted(node.world(rank.local_rank)) for rank in ranks]
    if any(note and note != "none" for note in notes):
        return True
    return False if notes and all(notes) else None


def inner_world(
    node: HeartbeatDir, ranks: Sequence[RankProcess], sizes: Sequence[int]
) -> tuple[int, str] | None:
    """A rank that has made no process group but has started ranks of another world, as `torchrun`
    inside a rank does, and a sentence about it. sizes: those of worlds that are the job's."""
    for rank in ranks:
        if _noted(node.world(rank.local_rank)) not in ("", "none"):
            continue
        for name, environ in _descendants(rank.pid):
            size = environ.get("WORLD_SIZE", "")
            if size.isdigit() and int(size) not in sizes and "RANK" in environ:
                return rank.rank, (
                    f"the script has started a launcher of its own, whose {name} has "
                    f"WORLD_SIZE={size}, in each of the job's {sizes[0]} ranks; name the training "
                    f"script itself as the job's entry, or start one process a node with "
                    f'launch.ranks_per_node = 1; to allow it: launch.world = "any".'
                )
    return None


def _noted(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(path).strip()
    return ""


def _descendants(pid: int) -> list[tuple[str, Mapping[str, str]]]:
    """Name and environment of each process below this one."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                found.append((child.name(), child.environ()))
    return found
