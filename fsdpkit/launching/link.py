"""An agent's side of the communication with the head: its messages, and the orders it receives.

Everything that can block on a dead network happens on one thread, so callers that wait can keep to
a deadline.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from fsdpkit.errors import NodeLostError, NotMetError
from fsdpkit.launching.connection import Connection
from fsdpkit.launching.message_log import HeadAnswer, Letter, Meeting, Order, Said
from fsdpkit.launching.policy import Report
from fsdpkit.launching.reach import Door, Reached

TICK_S = 0.25
_NODES_A_TICK = 256
_CLOSE_S = 5.0
_LOOK_S = 0.01


def pace_s(nodes: int) -> float:
    """How often an agent says a word. Of many, each does so less often: the head reads a thousand
    letters a second."""
    return TICK_S * max(1.0, nodes / _NODES_A_TICK)


def patience_s(lost_s: float, nodes: int) -> float:
    """How long an agent may be silent: as `[retry]` says, and never less than a few words."""
    return max(lost_s, 3 * pace_s(nodes))


class HeadLostError(NodeLostError):
    """The head node's agent does not answer; it may have failed for a reason of its own."""

    cause = "connection-reset"


class Link:
    """One agent's end. `ticks` (on the head: the conductor's) are called in each exchange, between
    sending and receiving.

    lost_s: how long the head's agent may be silent; without end on the head itself, where what may
    stall is the run's file system, and no reason to end. every_s: how often a word is said.
    """

    def __init__(self, line: Connection, lost_s: float, every_s: float = TICK_S) -> None:
        self.line, self.lost_s = line, lost_s
        self.ticks: list[Callable[[], None]] = []
        self.on_stop: Callable[[float], None] = lambda _: None
        self.on_stacks: Callable[[str], None] = lambda _: None
        self.on_try: Callable[[tuple[Door, ...]], None] = lambda _: None
        self.orders: queue.Queue[Order] = queue.Queue()
        self.broken: Exception | None = None
        self.silent_s = 0.0
        """How long the head's agent has not answered, while this process was running."""
        self._tick_s = every_s
        self._exchanges = self._seen = self._numbered = self._told = 0
        self._said: list[Said] = []
        self._lock = threading.Lock()
        self._meeting: Order | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fsdpkit-link", daemon=True)

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._count, name="fsdpkit-link-watch", daemon=True).start()

    def close(self) -> None:
        """Send what is left to send, and stop; gives up if the network is dead."""
        self._over.set()
        self.line.nudge()
        if self._thread.ident is not None:
            self._thread.join(timeout=_CLOSE_S)
        if not self._thread.is_alive():
            self.line.close()

    def tell(self, **said: Report | Meeting | Reached) -> None:
        """Tell the head's agent one of the things that `Said` has a name for."""
        with self._lock:
            self._numbered += 1
            self._said.append(Said(self._numbered, **said))  # type: ignore[arg-type]
        self.line.nudge()

    def meeting(self, launch: int, within_s: float) -> tuple[str, int]:
        """Where the ranks of this launch meet: host and port. Raises NodeError if unknown."""

        deadline = time.monotonic() + within_s
        # No lock: a signal handler may end this wait with an exception at any point.
        while (order := self._meeting) is None or order.launch != launch:
            if time.monotonic() > deadline:
                why = f"no node said within {within_s:.0f} s where the ranks are to meet"
                raise NotMetError(why, "rendezvous-timeout")
            time.sleep(_LOOK_S)
        return order.host, order.port

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
            while not self._over.is_set() and self.line.broken is None:
                self._exchange()
            self._leave()
        except Exception as error:  # our own, on the head; the other agents will notice
            self.broken = error
        self.broken = self.broken or self.line.broken

    def _exchange(self) -> None:
        self._tell()
        for tick in self.ticks:
            tick()
        until_s = time.monotonic() + self._tick_s
        while (left_s := until_s - time.monotonic()) > 0:
            for answer in self.line.wait(left_s, self._has_something_to_do):
                self._take(answer)
            if self.ticks or self._has_something_to_do():
                break

    def _leave(self) -> None:
        """Wait until the head's agent has received everything, including that this one leaves."""
        deadline = time.monotonic() + _CLOSE_S
        while self.line.broken is None and time.monotonic() < deadline:
            self._tell(left=True)
            answers = self.line.wait(TICK_S, lambda: False)
            for answer in answers:
                self._take(answer)
            if answers and not self._said:
                return

    def _tell(self, left: bool = False) -> None:
        with self._lock:
            letter = Letter(self._seen, tuple(self._said), left)
            self._told = self._numbered
        self.line.send(letter)

    def _has_something_to_do(self) -> bool:
        """Whether to begin the next exchange before its time."""
        return self._over.is_set() or self._numbered > self._told

    def _take(self, answer: HeadAnswer) -> None:
        self._exchanges += 1
        with self._lock:
            self._said = [said for said in self._said if said.number > answer.heard]
        for number, order in enumerate(answer.orders, answer.first + 1):
            if number == self._seen + 1:
                self._seen = number
                self._obey(order)

    def _obey(self, order: Order) -> None:
        if order.do == "stop":
            self.on_stop(order.delay_s)
        elif order.do == "stacks":
            self.on_stacks(order.message)
        elif order.do == "try":  # takes seconds where nothing answers
            threading.Thread(target=self.on_try, args=(order.doors,), daemon=True).start()
        elif order.do == "meet":
            self._meeting = order
        else:
            self.orders.put(order)

    def _count(self) -> None:
        seen = 0
        while not self._over.wait(TICK_S):
            self.silent_s = 0.0 if seen != self._exchanges else self.silent_s + TICK_S
            seen = self._exchanges
