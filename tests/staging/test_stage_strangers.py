"""Ports on which nodes copy: what somebody without the job's secret gets there is nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fsdpkit.staging import wire
from fsdpkit.staging.manifest import StageError
from fsdpkit.staging.port import Line, StagePort, connect
from fsdpkit.staging.wire import AttemptKeys, StrangeError
from tests.programs import until

KEYS = AttemptKeys(bytes(32), "job")


class Served:
    """A port that answers each message with itself, and who has been there."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.port = StagePort(KEYS, wire.HUB, self._serve)
        self.address = ("127.0.0.1", self.port.open("127.0.0.1"))

    def _serve(self, line: Line) -> None:
        self.nodes.append(line.node)
        while True:
            line.send(line.receive(at_rest=True))

    def raw(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=300)

    def refused(self, count: int) -> bool:
        """Once so many are."""
        return bool(until(lambda: self.port.refused == count))


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.port.close()


def everything(connected: socket.socket) -> bytes:
    """That the other side sends until it closes."""
    data = b""
    try:
        while more := connected.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


def forged(keys: AttemptKeys = KEYS, kind: bytes = wire.HUB) -> Callable[[bytes], bytes]:
    return lambda greeting: wire.claimed(keys, kind, 1, greeting)[0]


def renumbered(greeting: bytes) -> bytes:
    """Another node's number in a claim that was overheard."""
    claim = forged()(greeting)
    return claim.replace((1).to_bytes(4, "big"), (2).to_bytes(4, "big"), 1)


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(lambda _: b"GET / HTTP/1.1\r\n\r\n" * 20, id="garbage"),
        pytest.param(lambda _: b"\xff" * wire.CLAIM_BYTES, id="a huge length"),
        pytest.param(forged(AttemptKeys(b"x" * 32, "job")), id="another secret"),
        pytest.param(forged(AttemptKeys(bytes(32), "later")), id="another attempt"),
        pytest.param(forged(kind=wire.BLOCKS), id="what is for another port"),
        pytest.param(renumbered, id="another node's number"),
        pytest.param(lambda _: forged()(wire.greeting()), id="a claim from another connection"),
    ],
)
def test_who_does_not_show_the_secret_gets_a_greeting_and_no_more(
    served: Served, claim: Callable[[bytes], bytes]
) -> None:
    with served.raw() as stranger:
        greeting = stranger.recv(wire.GREETING_BYTES, socket.MSG_WAITALL)
        stranger.sendall(claim(greeting))
        assert everything(stranger) == b""
    assert served.refused(1)
    assert served.nodes == []


def test_a_recorded_connection_cannot_be_played_again(served: Served) -> None:
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between:
        threading.Thread(target=overheard, args=[between, served, said], daemon=True).start()
        line = connect(KEYS, wire.HUB, 1, between.getsockname())
        line.send(b"tell")
        assert line.receive() == b"tell"
        line.close()
    with served.raw() as stranger:
        stranger.sendall(b"".join(said))
        assert len(everything(stranger)) == wire.GREETING_BYTES
    assert (served.refused(1), served.nodes) == (True, [1])


def overheard(between: socket.socket, served: Served, said: list[bytes]) -> None:
    """Hand on what a client and the port say, and keep what the client said."""
    client, _ = between.accept()
    with client, served.raw() as server:
        back = threading.Thread(target=handed_on, args=[server, client, []])
        back.start()
        handed_on(client, server, said)
        back.join()


def handed_on(source: socket.socket, sink: socket.socket, said: list[bytes]) -> None:
    while more := source.recv(1 << 16):
        said.append(more)
        sink.sendall(more)
    sink.shutdown(socket.SHUT_WR)


def test_who_only_waits_keeps_nobody_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdpkit.staging.port._STRANGERS", 8)
    monkeypatch.setattr("fsdpkit.staging.port._CLAIM_S", 50.0)
    with ExitStack() as at_end:
        idle = [at_end.enter_context(served.raw()) for _ in range(40)]
        assert served.refused(32)
        line = connect(KEYS, wire.HUB, 3, served.address)
        at_end.callback(line.close)
        line.send(b"here")
        assert (line.receive(), served.nodes) == (b"here", [3])
        assert all(len(everything(each)) <= wire.GREETING_BYTES for each in idle[:32])
        idle += [at_end.enter_context(served.raw()) for _ in range(10)]
        assert served.refused(42)
        line.send(b"still here")
        assert line.receive() == b"still here"


def test_a_port_that_is_taken_is_passed_over(served: Served) -> None:
    taken = served.address[1]
    other = StagePort(KEYS, wire.HUB, lambda line: None)
    with ExitStack() as at_end:
        at_end.callback(other.close)
        with pytest.raises(StageError, match=str(taken)) as why:
            other.open("127.0.0.1", taken)
        assert why.value.cause == "port-taken"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        assert other.open("127.0.0.1", taken, port) == port


def test_who_only_waits_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdpkit.staging.port._CLAIM_S", 0.5)
    with served.raw() as idle:
        idle.sendall(wire.MAGIC)
        assert len(everything(idle)) == wire.GREETING_BYTES
    assert served.refused(1)


def test_of_many_strangers_the_crowd_from_one_address_goes_first(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdpkit.staging.port._STRANGERS", 4)
    monkeypatch.setattr("fsdpkit.staging.port._CLAIM_S", 50.0)
    with socket.create_connection(served.address, source_address=("127.0.0.2", 0)) as slow:
        greeting = slow.recv(wire.GREETING_BYTES, socket.MSG_WAITALL)
        with ExitStack() as at_end:
            for _ in range(20):
                at_end.enter_context(served.raw())
            assert served.refused(17)
            claim, frames = wire.claimed(KEYS, wire.HUB, 1, greeting)
            slow.sendall(claim)
            grant = slow.recv(wire.GRANT_BYTES, socket.MSG_WAITALL)
            assert frames.open(grant[wire.LENGTH_BYTES :]) == b""


def test_a_node_believes_nobody_who_does_not_know_the_secret() -> None:
    other = StagePort(AttemptKeys(b"x" * 32, "job"), wire.HUB, lambda line: None)
    address = ("127.0.0.1", other.open("127.0.0.1"))
    with pytest.raises((OSError, StrangeError)):
        connect(KEYS, wire.HUB, 1, address)
    other.close()
    with socket.create_server(("127.0.0.1", 0)) as liar:
        threading.Thread(target=pretends, args=[liar], daemon=True).start()
        with pytest.raises(StrangeError):
            connect(KEYS, wire.HUB, 1, liar.getsockname())


def pretends(liar: socket.socket) -> None:
    client, _ = liar.accept()
    client.sendall(wire.greeting() + bytes(wire.GRANT_BYTES))
    everything(client)
