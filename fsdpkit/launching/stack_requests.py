"""The agent's answer when a person asks where the ranks are while they run.

It has its own thread, because ranks that do not answer take time, and failures of other ranks must
be noticed meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time

from fsdpkit.launching import stacks
from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.stack_requests import NodeStacks, answer, shortened


class AskedForStacks:
    """Records where this node's ranks are, each time somebody asks."""

    def __init__(self, node: int, name: str, attempt: AttemptPaths, directory: HeartbeatDir):
        self._node, self._name, self._attempt, self._dir = node, name, attempt, directory
        self._now: tuple[RankHeartbeats, int] | None = None

    def look_at(self, rank_heartbeats: RankHeartbeats, launch: int) -> None:
        """From now on these are the ranks."""
        self._now = (rank_heartbeats, launch)

    def answer(self, asked: str) -> None:
        """Answer the request of this id; returns at once."""
        thread = threading.Thread(
            target=self._answer, args=(asked,), name="fsdpkit-stacks", daemon=True
        )
        thread.start()

    def _answer(self, asked: str) -> None:
        rank_heartbeats, launch = self._now or (None, 0)
        ranks = [] if rank_heartbeats is None else list(rank_heartbeats.ranks)
        found = stacks.read(ranks, self._dir).values()
        said = NodeStacks(
            id=asked,
            node=self._node,
            name=self._name,
            launch=launch,
            time_s=round(time.time(), 3),
            ranks=tuple(map(shortened, found)),
        )
        with contextlib.suppress(OSError):  # the requester is told that this node did not answer
            answer(self._attempt, said)
