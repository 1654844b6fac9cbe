"""The messages between the agents of one attempt, and the head node's record of them.

Each agent writes letters: numbered messages, repeated until the head has confirmed them, and the
number of the last order that it has read. The head's answers contain all later orders. So a letter
may be lost or sent twice without effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from fsdpkit.launching.policy import Report
from fsdpkit.launching.reach import Door, Reached

_LINGER_S = 10.0
"""With link.CLOSE_S an agent goes before the batch shell kills the step, 20 s after the verdict."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the head's agent tells all agents to do, replacing what they do now."""

    do: Literal["try", "run", "meet", "stop", "stacks", "end"]
    launch: int = 0
    nodes: tuple[int, ...] = ()
    """run: which nodes take part."""
    delay_s: float = 0.0
    """run: before the ranks start; stop: until Slurm ends the job, 0 while that is not known."""
    because: str = ""
    """Why the launch before is over; `hang` makes the agents ask ranks for their stacks."""
    status: int = 0
    """What ended the launch before; end: what to exit with."""
    message: str = ""
    """The same in words; stacks: the id of the request."""
    host: str = ""
    """meet: where the ranks of the launch meet, at `port`."""
    port: int = 0
    doors: tuple[Door, ...] = ()
    """try: what to connect to, and say whether that works."""
    rendezvous: bool = False
    """run: ranks use the interface of the rendezvous, for they do not meet on the chosen one."""


class Meeting(msgspec.Struct, frozen=True):
    """Where the ranks of a launch meet, told by the agent that has opened the port."""

    launch: int
    host: str
    port: int


class Said(msgspec.Struct, frozen=True):
    """One message of an agent: exactly one of the fields behind its number is set."""

    number: int
    report: Report | None = None
    meeting: Meeting | None = None
    tried: Reached | None = None


class Letter(msgspec.Struct, frozen=True):
    """From an agent to the head's. seen: how many orders it has read; left: it reads no more."""

    seen: int = 0
    said: tuple[Said, ...] = ()
    left: bool = False


class HeadAnswer(msgspec.Struct, frozen=True):
    """From the head's agent. orders: those after number `first`; heard: the last of `said`."""

    first: int
    orders: tuple[Order, ...] = ()
    heard: int = 0


class MessageLog:
    """The head's side: the messages of all agents, and the orders to them. Thread-safe. nodes: how
    many agents there are, standby nodes included."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.on_order: Callable[[], None] = lambda: None
        self.version = 0
        """Grows with everything that is said or ordered."""
        self._changed = threading.Condition()
        self._counts, self._heard = [0] * nodes, [0] * nodes
        self._left: set[int] = set()
        self._new: list[tuple[int, Said]] = []
        self._orders: list[Order] = []

    def hear(self, node: int, letter: Letter) -> HeadAnswer:
        """Take in a letter that this node's agent wrote."""
        with self._changed:
            self._counts[node] += 1
            for said in letter.said:
                if said.number == self._heard[node] + 1:
                    self._heard[node] = said.number
                    if said.report is None or said.report.node == node:
                        self._new.append((node, said))
            if letter.left:
                self._left.add(node)
            if letter.said or letter.left:
                self._news()
            return self.answer(node, letter.seen)

    def answer(self, node: int, seen: int) -> HeadAnswer:
        """The orders that this node's agent has not read."""
        with self._changed:
            return HeadAnswer(seen, tuple(self._orders[seen:]), self._heard[node])

    def alive(self) -> list[int]:
        """How many letters of each node came."""
        with self._changed:
            return list(self._counts)

    def said(self) -> list[tuple[int, Said]]:
        """What came since the last call, and from which node."""
        with self._changed:
            new, self._new = self._new, []
            return new

    def order(self, order: Order) -> None:
        with self._changed:
            self._orders.append(order)
            self._news()
        self.on_order()

    def _news(self) -> None:
        self.version += 1
        self._changed.notify_all()

    def wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Until `enough`, asked at each new version and `nudge`, or time is up."""
        with self._changed:
            self._changed.wait_for(enough, seconds)

    def nudge(self) -> None:
        """Let who waits ask again."""
        with self._changed:
            self._changed.notify_all()

    def linger(self, others: int) -> bool:
        """Wait until that many other agents have read the last order; returns whether they have."""
        self.wait(_LINGER_S, lambda: len(self._left - {0}) >= others)
        return len(self._left - {0}) >= others
