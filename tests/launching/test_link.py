"""Agents that talk through a real TCPStore on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fsdpkit.errors import NodeError
from fsdpkit.launching import link as module
from fsdpkit.launching.link import Board, HeadLostError, Link, Order, make_store
from fsdpkit.launching.policy import Report

pytestmark = pytest.mark.torch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.fixture
def stores() -> tuple[Any, Any]:
    """The head's and another agent's."""
    head = make_store("127.0.0.1", 0, is_head=True, timeout_s=60)
    return head, make_store("127.0.0.1", head.port, is_head=False, timeout_s=60)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving may take its time: what is tested is what is waited for."""
    monkeypatch.setattr(module, "_LINGER_S", 200.0)
    monkeypatch.setattr(module, "_CLOSE_S", 60.0)


def test_signs_of_life_reports_and_orders_pass(stores: tuple[Any, Any]) -> None:
    board = Board(stores[0], 2)
    link = Link(stores[1], 1, lost_s=30)
    stopped: list[int] = []
    link.on_stop = lambda: stopped.append(1)
    link.start()
    assert wait_for(lambda: board.alive()[1] > 1)
    assert board.alive()[0] == 0
    report = Report(0, 1, "node2", "failed", 3, 'what\'s "that"\n{}', 12, 5, 7)
    link.report(report)
    assert wait_for(board.reports) == [report]
    assert board.reports() == []
    board.order(Order(do="run", nodes=(0, 1)))
    board.order(Order(do="stop"))
    board.order(Order(do="end", status=3, message="over"))
    assert link.next_order() == Order(do="run", nodes=(0, 1))
    assert link.next_order() == Order(do="end", status=3, message="over")
    assert stopped == [1]
    link.close()


def test_a_store_that_has_gone_is_told_as_the_head_nodes_end(stores: tuple[Any, Any]) -> None:
    class Gone:
        def add(self, *_: object) -> int:
            raise ConnectionResetError("reset by peer")

    link = Link(Gone(), 1, lost_s=30)
    link.start()
    with pytest.raises(HeadLostError, match=r"does not answer any more.*reset by peer"):
        link.next_order()


def test_a_head_node_that_is_silent_is_lost_though_the_call_never_returns() -> None:
    class Stuck:
        def add(self, *_: object) -> None:
            threading.Event().wait()

    link = Link(Stuck(), 1, lost_s=0.5)
    link.start()
    with pytest.raises(HeadLostError, match="does not answer any more"):
        link.next_order()


def test_the_last_order_reaches_an_agent_before_the_head_leaves(
    stores: tuple[Any, Any], patient: None
) -> None:
    board = Board(stores[0], 2)
    head, other = Link(stores[0], 0, lost_s=30), Link(stores[1], 1, lost_s=30)
    head.start()
    other.start()
    board.order(Order(do="end"))
    assert other.next_order().do == "end"
    other.close()
    assert head.linger(others=1)
    head.close()


def test_the_head_stays_until_the_others_have_left(stores: tuple[Any, Any], patient: None) -> None:
    head, other = Link(stores[0], 0, lost_s=30), Link(stores[1], 1, lost_s=30)
    other.start()
    staying = threading.Thread(target=head.linger, args=(1,), daemon=True)
    staying.start()
    time.sleep(0.5)
    assert staying.is_alive()
    other.close()
    staying.join(timeout=150)
    assert not staying.is_alive()


def test_what_an_agent_says_last_is_heard(stores: tuple[Any, Any], patient: None) -> None:
    board, link = Board(stores[0], 2), Link(stores[1], 1, lost_s=30)
    link.start()
    assert wait_for(lambda: board.alive()[1])
    report = Report(0, 1, "node2", "done")
    link.report(report)
    link.close()
    assert board.reports() == [report]


def test_of_two_orders_that_wait_the_newer_supersedes(stores: tuple[Any, Any]) -> None:
    board, link = Board(stores[0], 2), Link(stores[1], 1, lost_s=30)
    board.order(Order(do="run", launch=1))
    board.order(Order(do="end"))
    link.start()
    assert wait_for(lambda: link.orders.qsize() == 2)
    assert link.superseded == Order(do="end")
    link.close()


def test_one_node_needs_no_network() -> None:
    store = make_store(None, 0, is_head=True, timeout_s=10)
    board = Board(store, 1)
    link = Link(store, 0, lost_s=30)
    link.start()
    link.report(Report(0, 0, "node1", "done"))
    assert wait_for(board.reports) == [Report(0, 0, "node1", "done")]
    link.close()


def test_a_port_that_is_taken_and_a_head_that_is_not_there_are_told() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NodeError, match=f"cannot open the head node's port 127.0.0.1:{port}"):
            make_store("127.0.0.1", port, is_head=True, timeout_s=2)
    with pytest.raises(NodeError, match="cannot reach the head node's port"):
        make_store("127.0.0.1", free_port(), is_head=False, timeout_s=1)
