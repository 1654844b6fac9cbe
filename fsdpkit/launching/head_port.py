"""The head node's port: admits only agents that prove they know the run's secret.

It has a thread of its own, which touches no file and decides nothing: a stalled disk must not make
the head node look dead. Whoever connects has a few seconds to prove it. Of the connections that
have not done so yet only the newest are kept, so neither idle connections nor a flood of them
takes anything from the agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fsdpkit.errors import NodeError, PortTakenError
from fsdpkit.launching.listening import BACKLOG, listen
from fsdpkit.launching.message_log import Letter, MessageLog
from fsdpkit.staging import wire
from fsdpkit.staging.port import allow_files
from fsdpkit.staging.wire import AttemptKeys, SignedFrames, StrangeError

_CLAIM_S = 5.0
_STRANGERS = 256
"""Connections that have not shown the secret."""
_UNSENT_BYTES = 4 << 20
"""An agent that reads nothing is dropped with this much unsent; it connects again."""
_OTHER_FILES = 256
_READ_BYTES = 1 << 16


class HeadPort:
    """Serves `message_log` to the agents of the other nodes."""

    def __init__(self, message_log: MessageLog, keys: AttemptKeys) -> None:
        self.refused = 0
        """How many connections did not show the secret, or were not what comes next on theirs."""
        self.first_refused = ""
        """From which address the first of them came."""
        self._message_log, self._keys = message_log, keys
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._agents: dict[int, _Agent] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # of broken connections
        self._thread = threading.Thread(target=self._run, name="fsdpkit-gate", daemon=True)
        self._over = asyncio.Event()
        self._listening: socket.socket | None = None

    def open(self, host: str, port: int) -> int:
        """Listen, and serve from now on; returns the port. Raises NodeError, PortTakenError."""
        try:
            self._listening = listen(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(port, os.strerror(error.errno)) from error
            why = error.strerror or error
            told = f"cannot open the head node's port {host}:{port}: {why}"
            raise NodeError(told, "head-address") from error
        allow_files(self._message_log.nodes + _STRANGERS + _OTHER_FILES)
        self._message_log.on_order = lambda: self._call(self._push)
        self._thread.start()
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop serving."""
        self._message_log.on_order = lambda: None
        self._call(self._over.set)
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def _call(self, function: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve_all())
        finally:
            self._loop.close()

    async def _serve_all(self) -> None:
        server = await asyncio.start_server(
            self._serve, sock=self._listening, limit=_READ_BYTES, backlog=BACKLOG
        )
        await self._over.wait()
        server.close()
        for writer in [*self._strangers, *(agent.writer for agent in self._agents.values())]:
            writer.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            agent = await self._admit(reader, writer)
            if agent is None:
                self._refuse(writer)
                return
            while data := await reader.read(_READ_BYTES):
                for body in agent.frames.take(data):
                    self._answer(agent, msgspec.msgpack.decode(body, type=Letter))
        except (StrangeError, msgspec.MsgspecError):
            self._refuse(writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Agent | None:
        """The agent at the other end, once it has proved that it knows the secret."""
        greeting = wire.greeting()
        self._strangers[writer] = None
        if len(self._strangers) > _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        try:
            writer.write(greeting)
            claim = await asyncio.wait_for(reader.readexactly(wire.CLAIM_BYTES), _CLAIM_S)
            grant, node, frames = wire.granted(self._keys, wire.AGENTS, greeting, claim)
        except (StrangeError, EOFError, OSError, asyncio.TimeoutError):
            return None
        finally:
            self._strangers.pop(writer, None)
        if not 0 < node < self._message_log.nodes:
            return None
        if before := self._agents.get(node):
            before.writer.close()  # it has lost that connection
        agent = self._agents[node] = _Agent(node, frames, writer)
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(grant)
        return agent

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername") or ("an unknown address",)
        self.first_refused = self.first_refused or str(peer[0])
        self.refused += 1

    def _answer(self, agent: _Agent, letter: Letter) -> None:
        agent.seen = letter.seen
        self._send(agent, msgspec.msgpack.encode(self._message_log.hear(agent.node, letter)))

    def _push(self) -> None:
        for agent in list(self._agents.values()):
            self._send(
                agent, msgspec.msgpack.encode(self._message_log.answer(agent.node, agent.seen))
            )

    def _send(self, agent: _Agent, body: bytes) -> None:
        if agent.writer.transport.get_write_buffer_size() > _UNSENT_BYTES:
            agent.writer.transport.abort()
        elif not agent.writer.is_closing():
            agent.writer.write(agent.frames.seal(body))


class _Agent:
    """A connection of another node's agent. seen: how many orders it said to have read."""

    def __init__(self, node: int, frames: SignedFrames, writer: asyncio.StreamWriter) -> None:
        self.node, self.frames, self.writer, self.seen = node, frames, writer, 0
