"""Notices that a node's ranks do nothing, and records where they are while that lasts.

A start-up that waits for ever (a wrong address, a peer that is missing) logs no step, so that no
heartbeat stops and nothing fails for half an hour. Here nothing is ended either: ranks may wait for
a good reason. The thread is one of its own, because ranks that do not answer take time.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fsdpkit.launching import machine, stacks
from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.launching.node_launch import AgentNode
from fsdpkit.launching.sampling import steps_made
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import Beat, read_heartbeat
from fsdpkit.runs.log_ends import end_of
from fsdpkit.runs.stack_requests import Stall, remove_stall, shortened, write_stall

_PATIENCE = 6
"""Looks in a row at which nothing must have moved."""
_SOME_CORES, _SOME_BYTES_PER_S = 0.01, 4096
"""Of each process: threads that only wake to look at a clock use less."""
_CORES_AT_WORK, _BYTES_AT_WORK_PER_S = 0.2, 64 << 10
"""Of all processes together. Whatever compiles, loads or saves uses more; a tracker, a notebook
that nobody types in, or a look at a clock now and then uses less."""
_DOWNLOAD_PER_S = 1 << 20
"""Through the node's interfaces: into memory, by recv(2), the kernel counts it for no process."""
_LATE = 3
"""A look that comes so many times too late shows that the job was suspended."""
_END_BYTES = 16 << 10
_CONNECTS = re.compile(
    r"connect\S*(?: to)?(?: host)? \[?(?P<host>[\w.:-]{1,255}?)\]?(?::|, )(?P<port>\d{1,5})\b"
)
_FAILS = re.compile("(?i)fail|retry|refused|timed? ?out")
"""With that, torch's TCPStore and gloo name an address that they try again."""


class _Look(NamedTuple):
    at_s: float
    """By time.monotonic()."""
    work: machine.ProcessWork
    beats: list[Beat | None]
    printed_bytes: list[int]
    steps: int | None
    network_bytes: int

    @property
    def signs(self) -> object:
        """Of work, where nothing is used."""
        return self.beats, self.printed_bytes, self.steps


@dataclass
class StallWatch:
    """Looks at the ranks of one launch on this node, every `interval_s` seconds."""

    rank_heartbeats: RankHeartbeats
    node: AgentNode
    launch: int
    interval_s: float
    _over: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look within the block."""
        thread = threading.Thread(target=self._watch, name="fsdpkit-standing", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            remove_stall(self.node.attempt, self.node.number)

    def _watch(self) -> None:
        patience_s, still, since_s = _PATIENCE * self.interval_s, False, time.time()
        before = self._look()
        while not self._over.wait(self.interval_s):
            now = self._look()
            self.node.printed.looked(works=self._works(before, now))
            if self._moved(before, now):
                since_s = time.time()
                if still:  # it waits now and then, and gets over it
                    remove_stall(self.node.attempt, self.node.number)
                    still, patience_s = False, 2 * patience_s
            elif not still and time.time() - since_s >= patience_s:
                still = True
                with contextlib.suppress(OSError):
                    self._record(since_s)
                now = self._look()  # a rank that was asked by a signal may have complained
            before = now

    def _look(self) -> _Look:
        printed_bytes = []
        for rank in self.rank_heartbeats.ranks:
            with contextlib.suppress(OSError, ValueError):
                printed_bytes += rank.printed_bytes()
        hearts = [
            self.rank_heartbeats.node.rank(rank.local_rank) for rank in self.rank_heartbeats.ranks
        ]
        work = machine.work_of(os.getpid(), itself=False)
        beats = [*map(read_heartbeat, hearts)]
        steps, network = steps_made(self.rank_heartbeats.dir), machine.network_bytes()
        return _Look(time.monotonic(), work, beats, printed_bytes, steps, network)

    def _moved(self, before: _Look, now: _Look) -> bool:
        elapsed_s, processes = now.at_s - before.at_s, now.work.processes
        cpu_s = now.work.cpu_s - before.work.cpu_s
        moved = now.work.moved_bytes - before.work.moved_bytes
        return (
            not self.rank_heartbeats.ranks
            or elapsed_s > _LATE * self.interval_s
            or before.signs != now.signs
            or not 0 <= cpu_s < _SOME_CORES * elapsed_s * processes  # less: a process has ended
            or not 0 <= moved < _SOME_BYTES_PER_S * elapsed_s * processes
        )

    def _works(self, before: _Look, now: _Look) -> bool:
        """Whether something was computed, read or written, or that is not known."""
        elapsed_s = now.at_s - before.at_s
        return (
            not self.rank_heartbeats.ranks
            or not now.work.processes
            or elapsed_s > _LATE * self.interval_s
            or (before.beats, before.steps) != (now.beats, now.steps)
            or not 0 <= now.work.cpu_s - before.work.cpu_s < _CORES_AT_WORK * elapsed_s
            or not 0
            <= now.work.moved_bytes - before.work.moved_bytes
            < _BYTES_AT_WORK_PER_S * elapsed_s
            or now.network_bytes - before.network_bytes > _DOWNLOAD_PER_S * elapsed_s
            or machine.is_held(os.getpid())
        )

    def _record(self, since_s: float) -> None:
        ranks = list(self.rank_heartbeats.ranks)
        where, addresses = stacks.peek(ranks, self.rank_heartbeats.node)
        for rank in ranks:
            if rank.rank not in addresses and (address := self._address(rank)) is not None:
                addresses[rank.rank] = address
        found = Stall(
            id="",
            node=self.node.number,
            name=self.node.name,
            launch=self.launch,
            time_s=round(time.time(), 3),
            since_s=round(since_s, 3),
            ranks=tuple(shortened(where[rank.rank]) for rank in ranks),
            addresses=addresses,
        )
        if not self._over.is_set():
            write_stall(self.node.attempt, found)
        if self._over.is_set():
            remove_stall(self.node.attempt, self.node.number)

    def _address(self, rank: RankProcess) -> str | None:
        """That of which torch complains."""
        end = end_of(self.node.attempt.rank_file(rank.rank, "err", self.launch), _END_BYTES)
        lines = end.text.splitlines() if end is not None else []
        found = [m for line in lines if _FAILS.search(line) and (m := _CONNECTS.search(line))]
        return f"{found[-1]['host']}:{found[-1]['port']}" if found else None
