"""Nodes hand blocks on to one another, whatever happens to some of them. Each is a process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from fsdpkit.staging import peers, wire
from fsdpkit.staging.hub import Hub
from fsdpkit.staging.manifest import BLOCK, StageError
from fsdpkit.staging.peers import BlockServer, Growing, HubLink, fetch
from fsdpkit.staging.port import Line
from fsdpkit.staging.wire import AttemptKeys
from tests.programs import until
from tests.staging.wire_node import AT, Memory

ROOT = Path(__file__).parents[2]
SECRET = os.urandom(32)
KEYS = AttemptKeys(SECRET, "job")
BLOCKS = 12
NODES = 10


class Job:
    """The first node, here, and others that are started. Nobody is node NODES - 1."""

    def __init__(self, at_end: ExitStack) -> None:
        self._at_end = at_end
        self.hub = Hub(KEYS, NODES, "", 0)
        self.hub_port = self.hub.open()
        at_end.callback(self.hub.close)
        self.hub.offer([b"list", b""])
        self.memory = Memory()
        self.growing = Growing(self.memory)
        self.server = BlockServer(KEYS, 0, [self.growing].__getitem__)
        at_end.callback(self.server.close)
        self.link = self.linked(0, self.server.open(""))
        self.nodes: list[subprocess.Popen[str]] = []
        self.silent_s = 300.0

    def linked(self, node: int, port: int) -> HubLink:
        link = HubLink(KEYS, node, f"node-{node}", ("127.0.0.1", self.hub_port))
        self._at_end.callback(link.close)
        assert link.hello(port) == [b"list", b""]
        return link

    def start(self, *fault: str) -> subprocess.Popen[str]:
        """One more node; it has its place in the tree."""
        program = [sys.executable, "-I", "-S", str(ROOT / "tests/staging/wire_node.py"), str(ROOT)]
        number = len(self.nodes) + 1
        words = [SECRET.hex(), str(number), str(self.hub_port), str(BLOCKS), str(self.silent_s)]
        node = subprocess.Popen([*program, *words, *fault], stdin=PIPE, stdout=PIPE, text=True)
        self._at_end.enter_context(node)
        self._at_end.callback(node.kill)
        assert node.stdout is not None
        assert node.stdout.readline().startswith("('127.0.0.1', ")
        self.nodes.append(node)
        return node

    def read(self, first: int = 0, end: int = BLOCKS) -> None:
        """The first node gets blocks from the shared file system."""
        for index in range(first, end):
            size = BLOCK if index == AT else 1000 + index
            data = bytes([index + 1]) * size if index % 4 else b""  # nothing but zeros
            self.growing.write(index, data, hashlib.sha256(data).digest())

    def content(self, node: subprocess.Popen[str]) -> str:
        assert node.stdout is not None
        return node.stdout.readline().strip()

    def given(self, node: subprocess.Popen[str]) -> int:
        """How many blocks it has sent to others; it ends."""
        return int(node.communicate()[0])


@pytest.fixture
def job() -> Iterator[Job]:
    with ExitStack() as at_end:
        yield Job(at_end)


def test_every_node_gets_each_block_once_and_gives_it_to_two_others_at_most(job: Job) -> None:
    nodes = [job.start() for _ in range(7)]
    job.read()
    assert {job.content(node) for node in nodes} == {job.memory.content()}
    late = job.start()
    assert job.content(late) == job.memory.content()
    told = job.hub.progress()
    assert [told[n][:2] for n in range(1, 9)] == [(BLOCKS, "ready")] * 8
    assert (told[8].name, told[8].here, NODES - 1 in told) == ("node-8", True, False)
    given = [job.memory.reads, *(job.given(node) for node in [*nodes, late])]
    assert given == [BLOCKS * children for children in (2, 2, 2, 2, 0, 0, 0, 0, 0)]


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "lies"])
def test_a_node_whose_parent_fails_goes_on_with_another(job: Job, fault: str) -> None:
    job.silent_s = 4.0
    bad, *_ = [job.start(fault), job.start(), job.start()]
    job.read(end=AT)
    while job.hub.progress()[3].bytes < AT:  # through the one that is about to fail
        time.sleep(0.01)
    job.read(first=AT, end=AT + 1)
    if fault != "lies":
        os.waitid(os.P_PID, bad.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    job.read(first=AT + 1)
    assert {job.content(node) for node in job.nodes[1:]} == {job.memory.content()}


def test_nodes_finish_without_the_hub_if_their_parents_have_everything(job: Job) -> None:
    nodes = [job.start() for _ in range(4)]
    job.read(end=AT)
    job.hub.close()
    job.read(first=AT)
    assert {job.content(node) for node in nodes} == {job.memory.content()}


@pytest.mark.parametrize("fault", ["closed", "lies", "confuses blocks"])
def test_a_node_that_nobody_serves_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(peers, "_LOST_S", 0.5)
    link = job.linked(5, port=1)
    job.memory.fault = fault
    job.read()
    if fault == "closed":
        job.server.close()
    if fault == "confuses blocks":
        header = wire.header
        monkeypatch.setattr(wire, "header", lambda index, *rest: header(index + 1, *rest))
    with pytest.raises(StageError, match="no other node") as caught:
        fetch(link, KEYS, 0, Growing(Memory()), BLOCKS - 1)
    assert caught.value.cause == "connection-reset"


def test_a_node_that_only_waits_says_that_the_hub_is_gone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_LOST_S", 0.5)
    monkeypatch.setattr(peers, "_NEWS_S", 0.2)
    link = job.linked(5, port=1)
    threading.Timer(0.2, job.hub.close).start()
    with pytest.raises(StageError, match="first node") as caught:
        fetch(link, KEYS, 0, Growing(Memory()), BLOCKS - 1)
    assert caught.value.cause == "connection-reset"


def test_nodes_hear_why_nothing_is_copied(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_NEWS_S", 0.2)
    monkeypatch.setattr(Line, "silent_s", 300.0)  # it does not have to ask
    link, other = job.linked(5, port=1), job.linked(6, port=1)
    threading.Timer(0.2, job.hub.fail, [StageError("data-missing", "a file has changed")]).start()
    threading.Timer(0.4, link.tell, [0, "copying"]).start()
    with pytest.raises(StageError, match="has changed") as caught:
        fetch(link, KEYS, 0, Growing(Memory()), BLOCKS - 1)
    assert caught.value.cause == "connection-reset"  # the cause itself is the first node's
    other.tell(0, "copying")
    assert other.failure is not None
    threading.Thread(target=job.hub.close, daemon=True).start()
    for late in (other.parent, lambda: job.linked(7, port=1)):
        with pytest.raises(StageError, match="has changed"):
            late()


def test_the_root_is_node_0_where_others_reach_the_hub(job: Job) -> None:
    """By its own hub it is reached by an address that may be no other node's way to it."""
    hub = Hub(KEYS, 3, "", 0)
    job.hub_port = hub.open()
    hub.offer([b"list", b""])
    nodes = [HubLink(KEYS, n, "", ("localhost", job.hub_port)) for n in range(1, 4)]
    for node in nodes[:2]:
        node.hello(port=1)
        assert node.parent() is None, "node 0 has not come"
    job.linked(0, port=1000)
    assert [node.parent() for node in nodes[:2]] == [("localhost", 1000)] * 2
    with pytest.raises(StageError):
        nodes[2].hello(port=1, within_s=0.0)
    assert sorted(hub.progress()) == [0, 1, 2], "the job has no node 3"
    for each in (*nodes, hub):
        each.close()


def test_who_waits_for_a_block_has_it_when_it_comes(job: Job) -> None:
    threading.Timer(0.1, job.read).start()
    assert job.growing.wait(0, seconds=120.0), "and not when the time is over"


def test_those_whose_parent_failed_find_places_all_over_the_tree(job: Job) -> None:
    """Node n is at port n here; first the tree is 0: 1 2, 1: 3 4, 2: 5 6."""
    links = [job.linked(node, port=node) for node in range(1, 7)]
    root = links[0].parent()
    at = [("127.0.0.1", node) for node in range(7)]
    assert [link.parent() for link in links] == [root, root, at[1], at[1], at[2], at[2]]
    assert links[0].parent(failed=root) == root, "another one would make a circle"
    assert links[2].parent(failed=at[1]) == root, "nobody else has a place left"
    assert links[3].parent(failed=at[1]) == at[3]
    assert links[4].parent(failed=at[2]) == at[3], "1 has places, but has failed for two"
    assert links[5].parent(failed=at[2]) == at[4]
    assert links[1].parent(failed=root) == at[1]
    assert links[1].parent(failed=at[1]) == root, "once more, when all have failed"
    assert links[1].parent(failed=root) == at[1]
    links[3].close()
    while job.hub.progress()[4].here:
        time.sleep(0.01)
    assert links[5].parent() == at[3], "4 is gone"
    job.hub.close()
    assert links[5].parent(failed=at[3]) == at[4], "one that this node knows"


def test_a_node_behind_a_parent_that_gets_nothing_moves_to_one_that_does(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent answers, though: only its own disk hangs, for one."""
    monkeypatch.setattr(peers, "_NEWS_S", 0.1)
    monkeypatch.setattr(Line, "silent_s", 3.0)
    job.read()
    stuck = BlockServer(KEYS, 1, [Growing(Memory())].__getitem__)
    working = BlockServer(KEYS, 2, [job.growing].__getitem__)
    ports = [server.open("") for server in (stuck, working)]
    links = [job.linked(node, port) for node, port in enumerate([*ports, 1], 1)]
    for link, done in zip(links, [0, BLOCKS, 0], strict=True):
        link.tell(done, "copying")
    assert links[2].parent() == ("127.0.0.1", ports[0])
    memory = Memory()
    fetch(links[2], KEYS, 0, Growing(memory), BLOCKS - 1)
    assert memory.content() == job.memory.content()
    assert links[1].parent(waits=True) == links[0].parent(), "nobody before it is ahead of it"
    for server in (stuck, working):
        server.close()


def test_256_nodes_that_come_at_once_make_a_tree(job: Job) -> None:
    hub = Hub(KEYS, 257, "127.0.0.1", 0)
    job.hub_port = hub.open()
    with ExitStack() as at_end:
        at_end.callback(hub.close)
        threading.Timer(0.5, hub.offer, [[b"list", b""]]).start()
        job.linked(0, port=1000)
        parents: dict[int, tuple[str, int] | None] = {}

        def come(node: int) -> None:
            parents[1000 + node] = job.linked(node, port=1000 + node).parent()

        nodes = [threading.Thread(target=come, args=[node]) for node in range(1, 257)]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join()
    ports = {port: parent[1] for port, parent in parents.items() if parent}
    assert len(ports) == 256
    assert sorted(Counter(ports.values()).values()) == [2] * 128
    assert max(_depth(port, ports) for port in ports) == 8


def _depth(port: int, parents: dict[int, int]) -> int:
    return 1 + _depth(parents[port], parents) if port in parents else 0


def test_a_node_at_rest_does_nothing(job: Job) -> None:
    node, _ = job.start(), job.start()
    job.read()
    assert job.content(node) == job.memory.content()
    until(lambda: _switches(node.pid) == (time.sleep(2) or _switches(node.pid)), "a rest")


def _switches(process: int) -> dict[str, str]:
    """How often each of its threads has woken and gone to sleep again."""
    found = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has just ended
            found[thread.name] = (thread / "status").read_text().partition("\nvoluntary_ctxt_")[2]
    return found
