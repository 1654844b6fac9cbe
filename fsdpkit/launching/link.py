"""How the agents of one attempt talk: signs of life and reports to the head's, orders from it.

All goes through one TCPStore, on the head node's agent, at the address where torchrun's ranks then
meet, too. Everything that can block on a dead network happens on one thread; whoever waits looks at
the clock instead. Keys:

    alive/<node>    a counter; who stops counting for `lost_s` is lost
    reports         a line of JSON for each report
    orders          how many there are; order/<n> is the n-th, as JSON
    left            how many agents have read the last one
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Literal

import msgspec

from fsdpkit.errors import NodeError, NodeLostError
from fsdpkit.launching.policy import Report

TICK_S = 0.25
_PREFIX = "fsdpkit"
_LINGER_S = 10.0
_CLOSE_S = 5.0
"""With these two an agent is gone before the batch shell, 20 s after the verdict, kills the step.
An exchange that takes longer loses no report: the last order is the answer to them."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the head's agent tells all agents to do, in place of what they do now."""

    do: Literal["run", "stop", "end"]
    launch: int = 0
    nodes: tuple[int, ...] = ()
    """run: which nodes take part."""
    delay_s: float = 0.0
    because: str = ""
    """Why the launch before is over; `hang` makes the agents ask ranks for their stacks."""
    status: int = 0
    """end: what to exit with."""
    message: str = ""


class HeadLostError(NodeLostError):
    """The head node's agent does not answer."""


class Link:
    """One agent's end. `tick` (on the head: the conductor) is called in each exchange, between what
    this agent tells and what it is told.

    lost_s: how long the head's agent may be silent; without end on the head itself, where what may
    stall is the run's file system, and no reason to end.
    """

    def __init__(self, store: Any, node: int, lost_s: float) -> None:
        self.store, self.node, self.lost_s = store, node, lost_s
        self.tick: Callable[[], None] | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.orders: queue.Queue[Order] = queue.Queue()
        self.broken: Exception | None = None
        self._exchanges = 0
        self.silent_s = 0.0
        """How long the head's agent has not answered, while this process was running: a job that
        is suspended hears nothing, either."""
        self._reports: queue.Queue[bytes] = queue.Queue()
        self._seen = 0
        self._over, self._something_to_tell = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fsdpkit-link", daemon=True)

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._count, name="fsdpkit-link-watch", daemon=True).start()

    def close(self) -> None:
        """Send what is left to send, and stop; gives up where the network is dead."""
        self._over.set()
        self._something_to_tell.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_CLOSE_S)

    def linger(self, others: int) -> bool:
        """On the head: stay until `others` have read the last order, `_LINGER_S` at most.

        Whether they all have.
        """
        deadline = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline and not self.broken:
            if self.store.add(f"{_PREFIX}/left", 0) >= others:
                return True
            time.sleep(TICK_S / 5)
        return False

    def report(self, report: Report) -> None:
        """Tell the head's agent how a launch ended here."""
        self._reports.put(msgspec.json.encode(asdict(report)) + b"\n")
        self._something_to_tell.set()

    @property
    def superseded(self) -> Order | None:
        """An order that waits to be taken, in place of the one in hand."""
        waiting: list[Order] = list(self.orders.queue)
        return waiting[-1] if waiting else None

    @property
    def lost(self) -> bool:
        """Whether the head node has been silent for too long."""
        return self.broken is not None or self.silent_s > self.lost_s

    def next_order(self) -> Order:
        """The next order; blocks. Raises HeadLostError."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.orders.get(timeout=TICK_S)
            if self.lost:
                raise HeadLostError(self.lost_message())

    def lost_message(self) -> str:
        why = f" ({self.broken})" if self.broken else f", for {self.silent_s:.0f} s"
        return f"the head node's agent does not answer any more{why}"

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._exchange()
                if self._something_to_tell.wait(TICK_S):
                    self._something_to_tell.clear()
            self._exchange()
            self.store.add(f"{_PREFIX}/left", 1)
        except Exception as error:  # the store is gone, and with it the head node's agent
            self.broken = error

    def _count(self) -> None:
        seen = 0
        while not self._over.wait(TICK_S):
            self.silent_s = 0.0 if seen != self._exchanges else self.silent_s + TICK_S
            seen = self._exchanges

    def _exchange(self) -> None:
        self.store.add(f"{_PREFIX}/alive/{self.node}", 1)
        with contextlib.suppress(queue.Empty):
            while True:
                self.store.append(f"{_PREFIX}/reports", self._reports.get_nowait().decode())
        if self.tick is not None:
            self.tick()
        count = self.store.add(f"{_PREFIX}/orders", 0)
        while self._seen < count:
            self._seen += 1
            text = self.store.get(f"{_PREFIX}/order/{self._seen}")
            order = msgspec.json.decode(text, type=Order)
            if order.do == "stop":
                self.on_stop()
            else:
                self.orders.put(order)
        self._exchanges += 1


class Board:
    """The head's side of the store: what all agents said, and where orders are published."""

    def __init__(self, store: Any, nodes: int) -> None:
        self._store = store
        self._read = 0
        self._alive = [f"{_PREFIX}/alive/{node}" for node in range(nodes)]
        for key in self._alive:
            store.add(key, 0)
        store.set(f"{_PREFIX}/reports", "")

    def alive(self) -> list[int]:
        """Each node's counter."""
        return [int(count) for count in self._store.multi_get(self._alive)]

    def reports(self) -> list[Report]:
        """Those that came since the last call."""
        new = bytes(self._store.get(f"{_PREFIX}/reports"))[self._read :]
        self._read += len(new)
        return [msgspec.json.decode(line, type=Report) for line in new.splitlines()]

    def order(self, order: Order) -> None:
        number = int(self._store.add(f"{_PREFIX}/published", 1))
        self._store.set(f"{_PREFIX}/order/{number}", msgspec.json.encode(order).decode())
        self._store.add(f"{_PREFIX}/orders", 1)


def make_store(host: str | None, port: int, *, is_head: bool, timeout_s: float) -> Any:
    """The store of this attempt's agents; without a host (one node) it stays in this process.

    torchrun's rendezvous, which is told the same address, shares the server. Raises NodeError if
    the head node's port cannot be reached, or not be opened.
    """
    from torch._C._distributed_c10d import HashStore, TCPStore

    if host is None:
        return HashStore()
    try:
        return TCPStore(
            host,
            port,
            is_master=is_head,
            multi_tenant=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        doing = "open" if is_head else "reach"
        raise NodeError(
            f"cannot {doing} the head node's port {host}:{port}: {str(error).splitlines()[0]}"
        ) from error
