"""Whether nodes reach each other's ports: real sockets on loopback addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import psutil
import pytest

from fsdpkit.errors import NodeError
from fsdpkit.launching.connection import PeerConnection
from fsdpkit.launching.reach import CHOSEN, RENDEZVOUS, Door, Interfaces, Reached, Ways, try_doors
from fsdpkit.runs.failures import PORTS_BLOCKED
from fsdpkit.staging.wire import AttemptKeys

HEAD = Interfaces("lo", "lo", "127.0.0.1")
PEER = Interfaces("lo", "lo", "127.0.0.2")


@pytest.fixture
def ways() -> Iterator[Ways]:
    ways = Ways(HEAD)
    yield ways
    ways.close()


def test_open_doors_are_reached(ways: Ways) -> None:
    assert [door.way for door in ways.doors] == [CHOSEN, RENDEZVOUS]
    assert try_doors(ways.doors, PEER).failed == {}


def test_what_cannot_be_reached_is_told_with_the_reason(ways: Ways) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        shut = Door(CHOSEN, *closed.getsockname())
        tried = try_doors((shut, ways.doors[1]), PEER)
    assert list(tried.failed) == [CHOSEN]
    assert "refused" in tried.failed[CHOSEN].lower()


def test_a_silent_port_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdpkit.launching.reach._CONNECT_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),
    ):
        tried = try_doors((Door(RENDEZVOUS, *full.getsockname()),), PEER)
    assert RENDEZVOUS in tried.failed


def test_the_first_way_that_leads_from_all_nodes_is_taken(ways: Ways) -> None:
    fine, half, none = (
        Reached("ib0"),
        Reached("ib0", {CHOSEN: "x"}),
        Reached("lo", dict.fromkeys((CHOSEN, RENDEZVOUS), "x")),
    )
    assert not ways.way("node1", {"node2": fine}).words
    found = ways.way("node1", {"node2": fine, "node3": half})
    assert (found.rendezvous, found.blocked) == (True, False)
    assert "node3" in found.words
    found = ways.way("node1", {"node2": fine, "node3": none})
    assert (found.rendezvous, found.blocked) == (False, True)
    assert str(ways.doors[1].port) in found.words


def test_only_what_the_script_chose_is_tried() -> None:
    assert Interfaces.of({"GLOO_SOCKET_IFNAME": "ib0"}, "10.0.0.1") is None
    chosen = {"GLOO_SOCKET_IFNAME": "ib0", "FSDPKIT_RDZV_INTERFACE": "eth0"}
    found = Interfaces.of(chosen, "10.0.0.1")
    assert found is not None
    assert found.variables()["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert Ways(None).doors == ()


def test_an_interface_that_is_not_there_opens_no_door() -> None:
    assert "none0" not in psutil.net_if_addrs()
    assert Ways(Interfaces("none0", "lo", "127.0.0.1")).doors == ()


def test_an_agent_gives_up_where_the_heads_is_known_to_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_LOOK_S", "_TELL_S", "_LEAVE_S", "_AGAIN_S"):
        monkeypatch.setattr(f"fsdpkit.launching.connection.{name}", 0.01)
    told: list[str] = []
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        port = refusing.getsockname()[1]
        line = PeerConnection("127.0.0.1", port, 1, AttemptKeys(bytes(32), "1_0"), told.append)
        with pytest.raises(NodeError) as blocked:
            line.open(60, lambda: True, told.append)
        with pytest.raises(NodeError) as absent:
            line.open(0.1, lambda: False, told.append)
    assert len(told) == 1
    assert str(port) in told[0]
    assert (blocked.value.cause, absent.value.cause) == (PORTS_BLOCKED, "head-address")
