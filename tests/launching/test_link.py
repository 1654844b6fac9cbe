"""Agents that talk over real connections on loopback, undisturbed and with strangers about."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from fsdpkit.launching import connection, head_port, message_log
from fsdpkit.launching import link as link_module
from fsdpkit.launching.connection import PeerConnection
from fsdpkit.launching.head_port import HeadPort
from fsdpkit.launching.link import HeadLostError, Link
from fsdpkit.launching.message_log import HeadAnswer, Letter, MessageLog, Order, Said
from fsdpkit.launching.policy import Report
from fsdpkit.staging import wire
from fsdpkit.staging.wire import CLAIM_BYTES, GREETING_BYTES, AttemptKeys, SignedFrames
from tests.launching.made_reports import record
from tests.programs import until

SECRET = bytes(range(32))
KEYS = AttemptKeys(SECRET, "12345_0")
HOST = "127.0.0.1"


class Head:
    """The head's side: its board and gate; and agents of other nodes."""

    def __init__(self, nodes: int = 3) -> None:
        self.said: list[str] = []
        self.message_log = MessageLog(nodes)
        self.head_port = HeadPort(self.message_log, KEYS)
        self.port = self.head_port.open(HOST, 0)
        self._links: list[Link] = []

    def agent(self, node: int, lost_s: float = 300, port: int | None = None) -> Link:
        line = PeerConnection(HOST, port or self.port, node, KEYS, self.said.append)
        line.open(300)
        self._links.append(link := Link(line, lost_s))
        return link

    def dial(self) -> socket.socket:
        """A stranger's connection."""
        return socket.create_connection((HOST, self.port), timeout=300)

    def reports(self) -> list[Report]:
        """Those that came since the last call."""
        return [said.report for _, said in self.message_log.said() if said.report is not None]

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.head_port.close()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """Leaving may take its time: what is tested is what is waited for."""
    monkeypatch.setattr(message_log, "_LINGER_S", 200.0)
    monkeypatch.setattr(link_module, "_CLOSE_S", 60.0)
    with contextlib.closing(Head()) as made:
        yield made


def talks(head: Head, link: Link, node: int = 1) -> None:
    """Reports pass one way and orders the other."""
    told = record(3, 'what\'s "that"\n{}', time_ns=12, rank=5)
    report = Report(0, node, f"node{node}", "failed", told, 7)
    link.tell(report=report)
    assert until(head.reports) == [report]
    head.message_log.order(Order(do="run", launch=7, nodes=(0, 1)))
    assert link.next_order() == Order(do="run", launch=7, nodes=(0, 1))


def test_what_an_agent_says_last_is_heard_and_the_head_stays_until_all_have_left(
    head: Head,
) -> None:
    one, other = head.agent(1), head.agent(2)
    one.start()
    other.start()
    report = Report(0, 1, "node1", "done")
    one.tell(report=report)
    one.close()
    assert head.reports() == [report]
    staying = threading.Thread(target=head.message_log.linger, args=(2,), daemon=True)
    staying.start()
    staying.join(timeout=0.5)
    assert staying.is_alive()
    other.close()
    staying.join(timeout=150)
    assert not staying.is_alive()


# ---- Networks that break


class Cable:
    """A way to the head that can be cut; both sides notice nothing by themselves."""

    def __init__(self, port: int) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port = int(self._server.getsockname()[1])
        self._target, self._pairs, self.cut = port, [], False  # type: ignore[var-annotated]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                near, _ = self._server.accept()
                far = socket.create_connection((HOST, self._target))
                self._pairs.append((near, far))
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.cut:
                    sink.sendall(data)

    def reset(self) -> None:
        """Break all connections."""
        for pair in self._pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


class Tap(Cable):
    """Whoever has it hears both sides, and what one of them does not hear."""

    def __init__(self, port: int) -> None:
        self.up, self.down = [], []  # type: ignore[var-annotated]
        self.twice, self.false_head = threading.Event(), threading.Event()
        super().__init__(port)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            to_head = sink.getpeername()[1] == self._target
            if self.false_head.is_set():
                self._pretend(sink)
                return
            while data := source.recv(1 << 16):
                (self.up if to_head else self.down).append(data)
                if self.cut:
                    continue
                sink.sendall(data)
                if to_head and self.twice.is_set():
                    self.twice.clear()
                    sink.sendall(data)

    def _pretend(self, sink: socket.socket) -> None:
        """To the agent: the head, by its own words of before."""
        if sink.getpeername()[1] != self._target:
            sink.sendall(b"".join(self.down))


def test_hiccups_lose_nothing_and_repeat_nothing(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 0.5)
    cable = Cable(head.port)
    link = head.agent(1, port=cable.port)
    link.start()
    said: list[Report] = []
    for number in range(6):
        if number % 2:
            cable.reset()
        else:
            cable.cut = True
        report = Report(number, 1, "node1", "done")
        link.tell(report=report)
        head.message_log.order(Order(do="run", launch=number))
        time.sleep(0.2)
        cable.cut = False
        assert link.next_order().launch == number
        assert until(lambda report=report: said.extend(head.reports()) or report in said)
    assert [report.launch for report in said] == list(range(6))
    assert link.superseded is None


def test_a_head_that_is_silent_is_lost_and_one_that_is_late_is_not(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 0.5)
    cable = Cable(head.port)
    link = head.agent(1, port=cable.port)
    link.start()
    cable.cut = True
    time.sleep(0.7)
    cable.cut = False
    talks(head, link)
    link.lost_s = 0.5
    cable.cut = True
    with pytest.raises(HeadLostError, match="does not answer any more, for"):
        link.next_order()
    cable.cut = False


# ---- Strangers


def hostile_bodies() -> list[bytes]:
    """What an attacker may send: rubbish, and what he would like to be believed."""
    end = HeadAnswer(0, (Order(do="end", status=0),))
    report = Letter(0, (Said(1, Report(0, 1, "node1", "done")),))
    packed = [msgspec.msgpack.encode(one) for one in (end, report)]
    return [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-scan\r\n",
        os.urandom(5000),
        bytes(CLAIM_BYTES),
        b"\xff" * CLAIM_BYTES,
        b'{"do":"end","status":0}\n',
        *packed,
        *(len(body).to_bytes(4, "big") + body + bytes(32) for body in packed),
    ]


@pytest.mark.parametrize("number", range(len(hostile_bodies())))
def test_what_a_stranger_sends_is_not_read(head: Head, number: int) -> None:
    link = head.agent(1)
    link.start()
    with head.dial() as stranger:
        stranger.sendall(hostile_bodies()[number])
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # he is dropped with what he sent unread
            answer = b""
            while more := stranger.recv(1 << 16):
                answer += more
            assert len(answer) == GREETING_BYTES
    assert until(lambda: head.head_port.refused) == 1
    assert head.reports() == []
    talks(head, link)
    assert link.superseded is None


def test_what_a_cut_connection_swallowed_is_believed_of_the_agent_alone_and_once(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds it back, and says it himself meanwhile."""
    monkeypatch.setattr(connection, "_ANSWER_S", 0.5)
    tap = Tap(head.port)
    link = head.agent(1, port=tap.port)
    link.start()
    assert until(lambda: head.message_log.alive()[1])
    tap.cut = True
    heard = len(tap.up)
    report = Report(0, 1, "node1", "failed")
    link.tell(report=report)
    assert until(lambda: len(tap.up) > heard)
    for words in (tap.up, tap.up[heard:], tap.up[::-1]):
        refused = head.head_port.refused
        with head.dial() as stranger, contextlib.suppress(OSError):
            stranger.sendall(b"".join(words))
            stranger.shutdown(socket.SHUT_WR)
            assert until(lambda refused=refused: head.head_port.refused > refused)
    assert head.reports() == []
    tap.cut = False
    assert until(head.reports) == [report]
    talks(head, link)


def test_forged_claims_in_the_moment_of_a_reconnection_are_worth_nothing(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever has another attempt's secret, or this one's and not its name; for the very node
    that has just lost its connection."""
    monkeypatch.setattr(connection, "_ANSWER_S", 0.5)
    cable, over = Cable(head.port), threading.Event()
    link = head.agent(1, port=cable.port)
    link.start()
    letter = msgspec.msgpack.encode(Letter(0, (Said(1, Report(9, 1, "node1", "done")),), True))
    granted: list[bytes] = []
    forgers = (AttemptKeys(os.urandom(32), "12345_0"), AttemptKeys(SECRET, "12345_1"))

    def forge(keys: AttemptKeys) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), head.dial() as forger:
                greeting = forger.recv(GREETING_BYTES, socket.MSG_WAITALL)
                claim, _ = wire.claimed(keys, wire.AGENTS, 1, greeting)
                forger.sendall(claim + SignedFrames(b"", b"").seal(letter))
                granted.append(forger.recv(1))

    threads = [threading.Thread(target=forge, args=(keys,), daemon=True) for keys in forgers]
    for thread in threads:
        thread.start()
    said: list[Report] = []
    for number in range(6):
        before = head.head_port.refused
        cable.reset()
        assert until(lambda before=before: head.head_port.refused > before + 1)
        link.tell(report=Report(number, 1, "node1", "failed"))
        head.message_log.order(Order(do="run", launch=number))
        assert link.next_order().launch == number
        assert until(lambda n=number: said.extend(head.reports()) or len(said) > n)
    over.set()
    for thread in threads:
        thread.join()
    assert not any(granted)
    assert [(report.launch, report.outcome) for report in said] == [(n, "failed") for n in range(6)]
    assert link.superseded is None


def test_an_agent_speaks_for_its_own_node_alone(head: Head) -> None:
    link = head.agent(2)
    link.start()
    link.tell(report=Report(0, 1, "node1", "done"))
    talks(head, link, node=2)


def test_idle_and_slow_strangers_by_the_thousand_take_nothing_from_the_agents(head: Head) -> None:
    link = head.agent(1)
    link.start()
    with contextlib.ExitStack() as strangers:
        for number in range(600):
            stranger = strangers.enter_context(head.dial())
            if number % 3:
                stranger.sendall(bytes(number % CLAIM_BYTES))
        talks(head, link)
        late = head.agent(2)
        late.start()
        assert until(lambda: head.message_log.alive()[2])
    assert len(head.head_port._strangers) <= head_port._STRANGERS


# ---- Addresses


def test_the_port_is_open_at_the_jobs_own_address_only(head: Head) -> None:
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", head.port), timeout=300)
