"""An agent's connection to the head node's agent; on the head node itself, its log of messages.

A connection that breaks, stalls or leads to somebody else is made again for as long as its owner
wants; unanswered messages are repeated on the new one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from fsdpkit.errors import NodeError, NotMetError
from fsdpkit.launching.message_log import HeadAnswer, Letter, MessageLog
from fsdpkit.runs.failures import PORTS_BLOCKED
from fsdpkit.staging import wire
from fsdpkit.staging.wire import AttemptKeys, SignedFrames, StrangeError

_CONNECT_S = 5.0
_ANSWER_S = 5.0
"""So long without an answer, and the connection is made anew."""
_AGAIN_S = 0.25
_LOOK_S = 2.0
_TELL_S = _LEAVE_S = 25.0
"""For so long nothing reaches an agent that is there: it is said then, and after as long again this
one gives up. Less of both where nodes have to meet in less time."""
_REFUSED_S = 3.0
"""A machine that refuses connections for so long is there, and the head's agent is not."""
_READ_BYTES = 1 << 16


class Connection(Protocol):
    """What a link needs of it. `broken` says why the other end is gone."""

    broken: Exception | None

    def send(self, letter: Letter) -> None: ...
    def wait(self, seconds: float, enough: Callable[[], bool]) -> list[HeadAnswer]: ...
    def nudge(self) -> None: ...
    def close(self) -> None: ...


class LocalConnection:
    """On the head node: straight to the message log."""

    def __init__(self, message_log: MessageLog) -> None:
        self.broken: Exception | None = None
        self._message_log, self._seen, self._version = message_log, 0, 0

    def send(self, letter: Letter) -> None:
        self._seen = letter.seen
        self._message_log.hear(0, letter)
        self._version = self._message_log.version

    def wait(self, seconds: float, enough: Callable[[], bool]) -> list[HeadAnswer]:
        """What the message log has, once this time is over, `enough` or something new has come."""
        self._message_log.wait(
            seconds, lambda: enough() or self._message_log.version != self._version
        )
        return [self._message_log.answer(0, self._seen)]

    def nudge(self) -> None:
        self._message_log.nudge()

    def close(self) -> None:
        pass


class PeerConnection:
    """From another node, authenticated both ways. said: gets a sentence, once, if something else
    than this run's head agent answers there."""

    def __init__(
        self, host: str, port: int, node: int, keys: AttemptKeys, said: Callable[[str], None]
    ) -> None:
        self.broken: Exception | None = None
        self._host, self._port, self._node, self._keys, self._said = host, port, node, keys, said
        self._socket: socket.socket | None = None
        self._frames: SignedFrames | None = None
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._refused_s: float | None = None
        self._asked_s: float | None = None
        self._strange = False

    def open(
        self,
        within_s: float,
        listens: Callable[[], bool] = lambda: False,
        unheard: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Connect for the first time: the head's agent may come minutes later. listens: whether
        that agent says on record that it is there. unheard: gets the address and why it was not
        reached, once, when that has lasted. Raises NodeError."""
        began_s = looked_s = time.monotonic()
        tell_s, leave_s = (min(each, within_s / 4) for each in (_TELL_S, _LEAVE_S))
        listens_s, told = None, False
        while (error := self._connect()) is not None:
            now = time.monotonic()
            place = f"{self._host}:{self._port}"
            if listens_s is None and now - looked_s > _LOOK_S:
                looked_s = now
                listens_s = now if listens() else None
            waits_s = now - listens_s if listens_s and not isinstance(error, NodeError) else 0.0
            if waits_s > tell_s and not told:
                told = True
                unheard(f"{place}: {error}")
            if waits_s > tell_s + leave_s:
                raise NodeError(
                    f"the head node's agent listens at {place}, and for {waits_s:.0f} s nothing "
                    f"from here has reached it ({error}): a packet filter between the nodes "
                    "keeps them apart",
                    PORTS_BLOCKED,
                )
            if now - began_s > within_s:
                why = f"cannot reach the head node's port {place}: {error}"
                raise NotMetError(why, _why_not_met(error))
            time.sleep(_AGAIN_S)

    def send(self, letter: Letter) -> None:
        if self._socket is None and (error := self._connect()) is not None:
            self._note(error)
            return
        assert self._socket is not None
        assert self._frames is not None
        frame = self._frames.seal(msgspec.msgpack.encode(letter))
        try:
            self._socket.settimeout(_ANSWER_S)
            self._socket.sendall(frame)
        except OSError:
            self._drop()
            return
        self._asked_s = self._asked_s or time.monotonic()

    def wait(self, seconds: float, enough: Callable[[], bool]) -> list[HeadAnswer]:
        """Answers that arrive within this time; at once if there are some, or `nudge` is called."""
        if self._socket is None:
            self._sleep(seconds, [self._woken])
            return []
        readable = self._sleep(seconds, [self._woken, self._socket])
        if self._socket not in readable:
            if self._asked_s is not None and time.monotonic() - self._asked_s > _ANSWER_S:
                self._drop()
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
            assert self._frames is not None
            answers = [msgspec.msgpack.decode(b, type=HeadAnswer) for b in self._frames.take(data)]
        except (OSError, StrangeError, msgspec.MsgspecError):
            data = b""
        if not data:
            self._drop()
            return []
        self._asked_s = None
        return answers

    def nudge(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def close(self) -> None:
        self._drop()
        self._wake.close()
        self._woken.close()

    def _sleep(self, seconds: float, sockets: list[socket.socket]) -> list[socket.socket]:
        poll = select.poll()  # select() supports no descriptor above 1023
        numbers = {each.fileno(): each for each in sockets}
        for number in numbers:
            poll.register(number, select.POLLIN)
        readable = [numbers[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]
        if self._woken in readable:
            with contextlib.suppress(OSError):
                self._woken.recv(_READ_BYTES)
        return readable

    def _connect(self) -> Exception | None:
        """Try once; why not."""
        deadline = time.monotonic() + _CONNECT_S
        try:
            connection = socket.create_connection((self._host, self._port), timeout=_CONNECT_S)
        except OSError as error:
            return error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = _receive(connection, wire.GREETING_BYTES, deadline)
            claim, frames = wire.claimed(self._keys, wire.AGENTS, self._node, greeting)
            connection.sendall(claim)
            frames.open(_receive(connection, wire.GRANT_BYTES, deadline)[wire.LENGTH_BYTES :])
        except (OSError, StrangeError) as error:
            connection.close()
            if isinstance(error, OSError):
                return error
            if not self._strange:
                self._strange = True
                self._said(
                    f"what answers at {self._host}:{self._port} does not know this run's secret; "
                    "not believed, and tried again"
                )
            return NodeError("what answers there does not know this run's secret", "port-taken")
        self._socket, self._frames = connection, frames
        self._refused_s = self._asked_s = None
        return None

    def _note(self, error: Exception) -> None:
        now = time.monotonic()
        if not isinstance(error, ConnectionRefusedError):
            self._refused_s = None
        elif self._refused_s is None:
            self._refused_s = now
        elif now - self._refused_s > _REFUSED_S:
            self.broken = error

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._frames = self._asked_s = None


def _why_not_met(error: Exception | None) -> str:
    if isinstance(error, NodeError):
        return error.cause
    return "rendezvous-timeout" if isinstance(error, TimeoutError) else "head-address"


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly that many bytes. Raises OSError if they do not arrive in time."""
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the connection was closed")
        data += more
    return data
