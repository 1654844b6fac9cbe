"""Ports and connections between nodes that copy: who does not show the job's secret gets nothing.

Whoever connects has a few seconds for the handshake. Of the connections that have not made it only
some are kept: where there are more, the oldest from the address that has most of them is closed.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

from fsdpkit.staging import wire
from fsdpkit.staging.manifest import BLOCK, StageError
from fsdpkit.staging.wire import AttemptKeys, StrangeError

Address = tuple[str, int]
_CLAIM_S = 5.0
_STRANGERS = 256
_BACKLOG = 1024
_MAPPED = "::ffff:"
"""Goes before an IPv4 address where both kinds are listened for."""
_FILES = 1 << 16
_UNSENT_S = 60.0
_FULL_S = 0.1
_KEPT = (socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)
"""The kernel notices a machine that is gone."""


class Line:
    """A connection; on one that `connect` or a port hands out both have shown the secret."""

    silent_s = 15.0
    """Who sends nothing for so long is given up."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        self._socket, self.host = connected, host
        self.node = -1
        """Who is at the other end, at the side that listens."""
        self._frames: wire.SignedFrames
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEPT:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)

    def claim(self, keys: AttemptKeys, kind: bytes, node: int) -> None:
        """Be admitted. Raises OSError, StrangeError."""
        until_s = time.monotonic() + _CLAIM_S
        greeting = self._read(wire.GREETING_BYTES, until_s)
        claim, self._frames = wire.claimed(keys, kind, node, greeting)
        self._socket.sendall(claim)
        grant = self._read(wire.GRANT_BYTES, until_s)
        self._frames.open(grant[wire.LENGTH_BYTES :])

    def admit(self, keys: AttemptKeys, kind: bytes) -> None:
        """Raises OSError, StrangeError."""
        until_s = time.monotonic() + _CLAIM_S
        greeting = wire.greeting()
        self._socket.settimeout(_CLAIM_S)
        self._socket.sendall(greeting)
        claim = self._read(wire.CLAIM_BYTES, until_s)
        grant, self.node, self._frames = wire.granted(keys, kind, greeting, claim)
        self._socket.sendall(grant)

    def send(self, body: bytes, more: bytes = b"") -> None:
        """A frame, and bytes after it. Raises OSError."""
        self._socket.settimeout(_UNSENT_S)
        self._socket.sendall(self._frames.seal(body), socket.MSG_MORE if more else 0)
        for start in range(0, len(more), BLOCK):
            self._socket.sendall(memoryview(more)[start : start + BLOCK])

    def receive(self, at_rest: bool = False) -> bytes:
        """A frame's body. at_rest: it may take any time. Raises OSError, StrangeError."""
        self._socket.settimeout(None if at_rest else self.silent_s)
        length = self._read(wire.LENGTH_BYTES)
        self._socket.settimeout(self.silent_s)
        return self._frames.open(self._read(wire.rest_bytes(length)))

    def receive_into(self, view: memoryview, until_s: float | None = None) -> None:
        """The bytes that come after a frame. Raises OSError."""
        while view:
            if until_s is not None:
                self._socket.settimeout(max(0.01, until_s - time.monotonic()))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the connection was closed")
            view = view[count:]

    def shut(self) -> None:
        """Whoever waits for something on it, at either end, gets an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._socket.close()

    def _read(self, size: int, until_s: float | None = None) -> bytes:
        data = bytearray(size)
        self.receive_into(memoryview(data), until_s)
        return bytes(data)


def connect(keys: AttemptKeys, kind: bytes, node: int, address: Address) -> Line:
    """As node `node` to what listens there. Raises OSError, StrangeError."""
    line = Line(socket.create_connection(address, timeout=_CLAIM_S), address[0])
    try:
        line.claim(keys, kind, node)
    except BaseException:
        line.close()
        raise
    return line


class StagePort:
    """Listens, and calls `serve`, in a thread of its own, with whoever has shown the secret."""

    def __init__(self, keys: AttemptKeys, kind: bytes, serve: Callable[[Line], None]) -> None:
        self.refused = 0
        """Connections that did not show the secret, or on which something else came later."""
        self._keys, self._kind, self._serve = keys, kind, serve
        self._lines: dict[Line, None] = {}
        self._strangers: dict[Line, None] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._listening: socket.socket | None = None

    def open(self, host: str, *ports: int) -> int:
        """Serve from now on, at the first of these ports that is free (none: at any), and return
        it. Raises StageError."""
        for port in ports or (0,):
            with contextlib.suppress(OSError):
                self._listening = _listen(host, port)
                break
        else:
            told = f"cannot listen at {host or 'this node'}, port {', '.join(map(str, ports[:3]))}"
            raise StageError("port-taken", told)
        allow_files(_FILES)
        threading.Thread(target=self._accept, args=[self._listening], daemon=True).start()
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        self._closed = True
        if self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
        for line in list(self._lines):
            line.shut()

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed:
            try:
                connected, address = listening.accept()
            except OSError:  # no more descriptors
                time.sleep(_FULL_S)
                continue
            line = Line(connected, str(address[0]).replace(_MAPPED, ""))
            self._lines[line] = self._strangers[line] = None
            try:
                threading.Thread(target=self._answer, args=[line], daemon=True).start()
            except RuntimeError:  # no more threads
                self._refuse(line)
                self._over(line)
                time.sleep(_FULL_S)
            strangers = list(self._strangers)
            if len(strangers) > _STRANGERS:
                crowd = Counter(each.host for each in strangers).most_common(1)[0][0]
                self._refuse(next(each for each in strangers if each.host == crowd))

    def _answer(self, line: Line) -> None:
        try:
            line.admit(self._keys, self._kind)
            if line in self._strangers:
                del self._strangers[line]
                self._serve(line)
        except StrangeError:
            self._refuse(line)
        except OSError:
            if line in self._strangers:
                self._refuse(line)
        finally:
            self._over(line)

    def _over(self, line: Line) -> None:
        del self._lines[line]
        line.close()

    def _refuse(self, line: Line) -> None:
        with self._lock:
            self.refused += 1
            self._strangers.pop(line, None)
        line.shut()


def _listen(host: str, port: int) -> socket.socket:
    """Where that name leads to here; at all addresses for "" and what is loopback only to us."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    addresses = [str(each[4][0]) for each in found]
    at = next((a for a in addresses if a == host or not ip_address(a).is_loopback), "")
    both = not at and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in at else socket.AF_INET
    return socket.create_server((at, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def allow_files(wanted: int) -> None:
    """One for each node may be more than a process gets unasked: so many, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
