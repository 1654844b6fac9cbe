"""Ports on which the ranks of `fsdpkit check` listen as their own connections do, to be tried from
elsewhere: `ports.json` of the attempt, which exists while they listen.

Ranks of `jobs/check_nodes.py` write it; `fsdpkit check` reads it and says when it has tried them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_bytes

_FILE, _TRIED = "ports.json", "ports-tried"


class RankPort(msgspec.Struct, frozen=True, kw_only=True):
    """One node's. Whoever connects is sent `word`, by which the rank is known."""

    node: str
    host: str
    port: int
    word: str


def save_ports(ports: list[RankPort], attempt_dir: Path) -> None:
    """Raises OSError."""
    write_atomically(attempt_dir / _FILE, msgspec.json.encode(ports).decode())


def load_ports(attempt_dir: Path) -> list[RankPort] | None:
    """None: no rank listens, not yet or no longer. Raises OSError or msgspec.DecodeError."""
    try:
        return msgspec.json.decode(read_bytes(attempt_dir / _FILE), type=list[RankPort])
    except FileNotFoundError:
        return None


def close_ports(attempt_dir: Path) -> None:
    (attempt_dir / _FILE).unlink(missing_ok=True)


def say_tried(attempt_dir: Path) -> None:
    """The ranks need not listen any longer. Raises OSError."""
    write_atomically(attempt_dir / _TRIED, "")


def are_tried(attempt_dir: Path) -> bool:
    return (attempt_dir / _TRIED).exists()
