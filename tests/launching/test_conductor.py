"""The head node's agent: which orders follow from which signs of life and reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.retry import Retry
from fsdpkit.launching.conductor import Conductor, warn
from fsdpkit.launching.link import pace_s
from fsdpkit.launching.message_log import Meeting, Order, Said
from fsdpkit.launching.reach import CHOSEN, RENDEZVOUS, WAIT_S, Interfaces, Reached, Ways
from fsdpkit.runs.failures import PORTS_BLOCKED, FailureRecord, in_a_line
from fsdpkit.runs.layout import AttemptPaths, TaskPaths
from tests.launching.made_reports import report


class Table:
    """In the place of the board: what nodes said, and the orders that were given."""

    def __init__(self, nodes: int) -> None:
        self.counts = [0] * nodes
        self.new: list[tuple[int, Said]] = []
        self.orders: list[Order] = []

    def alive(self) -> list[int]:
        return list(self.counts)

    def said(self) -> list[tuple[int, Said]]:
        said, self.new = self.new, []
        return said

    def add(self, node: int, **what: Any) -> None:
        self.new.append((node, Said(1, **what)))

    def order(self, order: Order) -> None:
        self.orders.append(order)


class Scene:
    """A conductor whose clock the test moves."""

    def __init__(self, path: Path, nodes: int = 2, spares: int = 0, **retry: Any) -> None:
        self.now = 1000.0
        self.connected = True
        self.names = [f"node{n + 1}" for n in range(nodes + spares)]
        self.table = Table(nodes + spares)
        self.task = TaskPaths(path)
        self.attempt = AttemptPaths(path / "attempt-0")
        self.attempt.dir.mkdir()
        self.events: list[dict[str, Any]] = []
        self.conductor = Conductor(
            self.table,  # type: ignore[arg-type]
            self.names,
            nodes,
            Retry(**{"backoff_s": 4.0, "lost_s": 30, **retry}),
            most_restarts=3,
            attempt=self.attempt,
            task=self.task,
            record=lambda **fields: self.events.append(fields),
            start_s=600.0,
            clock=lambda: self.now,
            connected=lambda: self.connected,
        )

    def live(self, seconds: float, *silent: int) -> None:
        """Time passes; all nodes but the silent ones give signs of life."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for node in range(len(self.names)):
                self.table.counts[node] += node not in silent
            self.conductor.tick()

    def says(self, node: int, outcome: Any = "done", **fields: Any) -> None:
        launch = len([o for o in self.table.orders if o.do == "run"]) - 1
        values = {"time_ns": int(self.now * 1e9), **fields}
        name = self.names[node]
        told = report(node, outcome, launch=launch, name=name, **values)
        self.table.add(node, report=told)

    @property
    def last(self) -> Order:
        return self.table.orders[-1]

    @property
    def verdict(self) -> dict[str, Any]:
        return dict(json.loads(self.attempt.verdict.read_text()))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    found = Scene(tmp_path)
    found.live(1)
    return found


def test_ranks_start_when_all_agents_are_there(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.live(100, 1)
    assert scene.table.orders == []
    scene.live(1)
    assert scene.last == Order(do="run", launch=0, nodes=(0, 1))


def test_ranks_whose_gpus_do_nothing_are_ended_with_what_the_watch_says(scene: Scene) -> None:
    scene.conductor.idle = lambda: "no GPU has computed for 25 min"
    scene.live(1)
    assert (scene.last.do, scene.last.status) == ("end", 143)
    assert scene.verdict["trouble"]["cause"] == "idle"
    assert "25 min" in scene.verdict["trouble"]["message"]


def test_agents_that_never_come_end_the_attempt_by_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.live(610, 1)
    assert scene.last.do == "end"
    assert "node2: no agent" in scene.last.message
    assert scene.verdict["trouble"]["lost"] == ["node2"]


def test_with_a_spare_nobody_waits_long_for_the_last_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=2, spares=1)
    scene.live(29, 1)
    assert scene.table.orders == []
    scene.live(3, 1)
    assert scene.last.nodes == (0, 2)


def test_all_done_ends_with_0_and_a_verdict(scene: Scene) -> None:
    scene.says(0)
    scene.live(1)
    assert scene.last.do == "run"
    scene.says(1)
    scene.live(1)
    assert (scene.last.do, scene.last.status) == ("end", 0)
    assert scene.verdict["trouble"] is None


def test_ranks_that_were_interrupted_are_not_done(scene: Scene) -> None:
    scene.says(0, "interrupted")
    scene.says(1)
    scene.live(1)
    assert scene.last.do == "run"


def test_after_a_crash_everybody_starts_again_once_the_others_have_told_theirs(
    scene: Scene,
) -> None:
    scene.says(0, "failed", status=1, message="Connection reset by peer", step=5)
    scene.live(1)
    assert scene.last.launch == 0
    scene.says(1, "failed", status=137, message="ended by signal 9", rank=1, step=5)
    scene.live(1)
    last = scene.last
    assert (last.do, last.launch, last.nodes, last.delay_s) == ("run", 1, (0, 1), 4.0)
    assert (last.because, last.status) == ("crash", 137), "what the others are ended for"
    assert "rank 1" in last.message
    (told,) = [e for e in scene.events if e["event"] == "trouble"]
    assert told["message"] == "rank 1 on node2: ended by signal 9"


def test_a_node_whose_ranks_hang_on_is_not_waited_for(scene: Scene) -> None:
    scene.says(1, "failed", status=1, message="x", rank=1, step=5)
    scene.live(5)
    assert scene.last.launch == 1


def test_ranks_that_stopped_as_asked_are_given_time_to_follow(scene: Scene) -> None:
    warn(scene.task)
    scene.live(1)
    assert scene.last.do == "stop"
    scene.says(0, "failed", status=75, message="stopped early", step=5)
    scene.live(60)
    assert scene.last.do == "stop"
    scene.says(1, "failed", status=75, message="stopped early", step=5)
    scene.live(1)
    assert (scene.last.do, scene.last.status) == ("end", 75)
    assert scene.verdict["warned"] is True


def test_a_file_server_that_cannot_say_whether_to_stop_ends_nothing(scene: Scene) -> None:
    """As NFS while its server fails over; here the kernel refuses the name."""
    scene.conductor.task = TaskPaths(scene.task.dir / ("x" * 300))
    scene.live(5)
    assert scene.last.do == "run"


def test_a_request_to_stop_is_passed_on_once(scene: Scene) -> None:
    scene.task.stop_requested.touch()
    scene.live(5)
    assert [order.do for order in scene.table.orders] == ["run", "stop"]


def test_a_crash_after_a_warning_is_not_worth_a_restart(scene: Scene) -> None:
    warn(scene.task)
    scene.live(1)
    scene.says(0, "failed", status=1, message="x", rank=0, step=5)
    scene.says(1, "failed", status=1, message="y", rank=1, step=5)
    scene.live(1)
    assert scene.last.do == "end"
    assert "asked to stop" in scene.verdict["why"]


def test_a_silent_node_ends_the_attempt_by_name_in_bounded_time(scene: Scene) -> None:
    scene.live(31, 1)
    assert scene.last.do == "run"
    scene.live(5, 1)
    assert scene.last.do == "end"
    assert scene.verdict["trouble"]["lost"] == ["node2"]
    assert "resource" in scene.verdict["why"]


def test_a_head_node_without_a_carrier_says_so_though_it_has_one_again(scene: Scene) -> None:
    scene.connected = False
    scene.live(20, 1)
    scene.connected = True
    scene.live(16, 1)
    assert scene.verdict["cut_off"] is True


def test_a_carrier_that_was_missing_before_others_fell_silent_says_nothing(scene: Scene) -> None:
    scene.connected = False
    scene.live(20)
    scene.connected = True
    scene.live(36, 1)
    assert scene.verdict["cut_off"] is False


def test_the_crash_of_those_who_lost_a_node_waits_until_that_is_known(scene: Scene) -> None:
    scene.live(2, 1)
    scene.says(0, "failed", status=1, message="Connection reset by peer", rank=0, step=5)
    scene.live(20, 1)
    assert scene.last.launch == 0
    scene.live(15, 1)
    assert scene.verdict["trouble"]["cause"] == "node-failure"


def test_nobody_is_lost_while_the_head_itself_was_suspended(scene: Scene) -> None:
    scene.now += 5000
    scene.conductor.tick()
    scene.live(5)
    assert [order.do for order in scene.table.orders] == ["run"]


def test_a_spare_takes_the_place_of_a_lost_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=2, spares=1)
    scene.live(1)
    assert scene.last.nodes == (0, 1)
    scene.live(36, 1)
    last = scene.last
    assert (last.do, last.launch, last.nodes, last.delay_s) == ("run", 1, (0, 2), 4.0)
    assert last.because == "node-failure"
    scene.says(0)
    scene.says(2)
    scene.live(1, 1)
    assert scene.last.do == "end"


def test_no_more_spares_join_than_nodes_were_lost(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=2, spares=2)
    scene.live(1)
    scene.live(36, 1)
    assert scene.last.nodes == (0, 2)


def test_the_pause_before_a_launch_is_not_counted_to_it(scene: Scene) -> None:
    for _ in range(2):
        scene.live(10)
        scene.says(0, "failed", status=1, message="x", rank=0, step=5)
        scene.says(1, "failed", status=1, message="Connection reset by peer", rank=1, step=5)
        scene.live(1)
    first, second = scene.verdict["earlier"]
    assert (first["lasted_s"], second["lasted_s"]) == (11.0, 7.0)


def test_a_spare_that_falls_silent_disturbs_nobody(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=2, spares=1)
    scene.live(1)
    scene.live(100, 2)
    assert len(scene.table.orders) == 1


def test_a_broken_gpu_costs_its_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=2, spares=1)
    scene.live(1)
    scene.says(1, "failed", status=1, message="CUDA error: uncorrectable ECC error", rank=1)
    scene.live(5)
    assert scene.last.nodes == (0, 2)


def test_what_an_earlier_launch_says_late_is_not_heard(scene: Scene) -> None:
    scene.says(1, "failed", status=1, message="x", rank=1, step=5)
    scene.live(5)
    scene.table.add(0, report=report(0, status=9))
    scene.live(5)
    assert [order.launch for order in scene.table.orders] == [0, 1]


def test_nothing_is_ordered_after_the_end(scene: Scene) -> None:
    scene.says(0)
    scene.says(1)
    scene.live(200)
    assert [order.do for order in scene.table.orders] == ["run", "end"]


def test_a_warning_does_not_overwrite_a_request_to_cancel(tmp_path: Path) -> None:
    task = TaskPaths(tmp_path)
    task.stop_requested.write_text("cancel\n")
    warn(task)
    assert task.stop_requested.read_text() == "cancel\n"


def test_the_ranks_meet_where_the_first_node_of_this_launch_says(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=3)
    scene.live(2)
    scene.table.add(1, meeting=Meeting(0, "10.0.0.2", 5))  # not the first
    scene.table.add(0, meeting=Meeting(1, "10.0.0.1", 6))  # of another launch
    scene.live(1)
    assert scene.last.do == "run"
    scene.table.add(0, meeting=Meeting(0, "10.0.0.1", 7))
    scene.live(1)
    assert scene.last == Order(do="meet", launch=0, host="10.0.0.1", port=7)


@pytest.fixture
def trying(tmp_path: Path) -> Iterator[Scene]:
    """Three nodes, of which the head has a faster interface than that of its address."""
    scene = Scene(tmp_path, nodes=3)
    scene.conductor.ways = Ways(Interfaces("lo", "eth0", "127.0.0.1"))
    scene.live(1)
    yield scene
    scene.conductor.ways.close()


def hears(scene: Scene, node: int, *failed: str) -> None:
    scene.table.add(node, tried=Reached("ib0", dict.fromkeys(failed, "no answer")))


def test_ranks_start_once_every_node_has_reached_the_head(trying: Scene) -> None:
    assert [order.do for order in trying.table.orders] == ["try"]
    assert {door.way for door in trying.last.doors} == {CHOSEN, RENDEZVOUS}
    hears(trying, 1)
    trying.live(1)
    assert trying.last.do == "try"
    hears(trying, 2)
    trying.live(1)
    assert (trying.last.do, trying.last.rendezvous) == ("run", False)


def test_ranks_take_the_way_that_leads_from_all_nodes(trying: Scene) -> None:
    hears(trying, 1)
    hears(trying, 2, CHOSEN)
    trying.live(1)
    assert (trying.last.do, trying.last.rendezvous) == ("run", True)
    assert any("node3" in str(event.get("message")) for event in trying.events)
    trying.says(0, "failed", status=1)
    trying.live(9)
    assert (trying.last.launch, trying.last.rendezvous) == (1, True)


def test_nodes_that_reach_no_port_of_ranks_end_the_job_and_none_is_lost(trying: Scene) -> None:
    hears(trying, 1)
    hears(trying, 2, CHOSEN, RENDEZVOUS)
    trying.live(1)
    trouble = trying.verdict["trouble"]
    assert (trying.last.do, trouble["cause"], trouble.get("lost", [])) == ("end", "settings", [])
    assert trouble["failure"]["cause"] == PORTS_BLOCKED


def test_who_does_not_say_what_it_reached_is_not_waited_for_long(trying: Scene) -> None:
    hears(trying, 1)
    trying.live(WAIT_S + 1)
    assert trying.last.do == "run"


def test_an_agent_that_reaches_no_port_of_the_head_is_no_lost_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.live(20, 1)
    scene.attempt.failures.mkdir()
    told = FailureRecord(by="agent", name="node2", status=78, cause=PORTS_BLOCKED, words="no way")
    (scene.attempt.failures / "01-node-1").write_text(in_a_line(told))
    scene.live(6, 1)
    trouble = scene.verdict["trouble"]
    assert (trouble["cause"], trouble.get("lost", [])) == ("settings", [])


def live_slowly(scene: Scene, seconds: int, *silent: int) -> None:
    """Each agent says a word every few seconds, as those of thousands of nodes do."""
    every = round(pace_s(len(scene.names)))
    for _ in range(seconds):
        scene.now += 1.0
        for node in range(round(scene.now) % every, len(scene.names), every):
            scene.table.counts[node] += node not in silent
        scene.table.counts[0] += 1
        scene.conductor.tick()


def test_of_thousands_of_nodes_a_crash_is_answered_and_a_silent_one_noticed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nodes=6000)
    live_slowly(scene, 8)
    assert scene.last.do == "run"
    scene.says(7, "failed", status=1)
    live_slowly(scene, 5)
    assert [order.do for order in scene.table.orders] == ["run", "run"]
    live_slowly(scene, 45, 9)
    assert scene.verdict["trouble"]["lost"] == ["node10"]
