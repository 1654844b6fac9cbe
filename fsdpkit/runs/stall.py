"""That the ranks of a node do nothing: since when, where each is, and where it is to meet others.

    node-<i>.still.json     in the attempt's directory, there as long as it lasts

The node's agent writes it and takes it away again (launching/stall_watch.py); nothing is ended
because of it. A person hears of it, from `diagnose`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from fsdpkit.runs.layout import AttemptPaths, write_atomically
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.stack_requests import NodeStacks


class Stall(NodeStacks, frozen=True, kw_only=True):
    """A node whose ranks have neither computed nor read, written, printed or logged anything."""

    since_s: float
    """Unix time."""
    addresses: Mapping[int, str] = msgspec.field(default_factory=dict)
    """By rank, `host:port` where it is to meet the others, as far as that is known."""


def read_stall(attempt: AttemptPaths, node: int) -> Stall | None:
    """None where its ranks are at work, or the file cannot be read."""
    return record_in(attempt.node_still(node), Stall)


def write_stall(attempt: AttemptPaths, found: Stall) -> None:
    """Raises OSError."""
    data = msgspec.json.encode(found).decode(errors="replace")
    write_atomically(attempt.node_still(found.node), data + "\n")


def remove_stall(attempt: AttemptPaths, node: int) -> None:
    with contextlib.suppress(OSError):
        attempt.node_still(node).unlink()
