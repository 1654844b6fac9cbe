"""stage.json, which says how far the copies on the nodes' disks are: who is told of it, and how."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import gather_from
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.staged import stage_progress
from fsdpkit.reporting.status.frame import frame
from fsdpkit.reporting.status.looking import Watcher
from fsdpkit.reporting.status.watching import View, changes
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.staging import read_stage
from fsdpkit.scheduling.run import Run
from tests.conftest import Completed, answer_of
from tests.reporting.made_run import JOB, T0, launches, made_run
from tests.reporting.watched_run import RUN_ID, WatchedRun

GB = 10**9


def node(has_bytes: float, state: str = "copying", **more: Any) -> dict[str, Any]:
    return {"bytes": int(has_bytes), "seconds": 4.0, "state": state, **more}


def stages(task: TaskPaths, *nodes: dict[str, Any], **more: Any) -> None:
    """What stands in the record of attempt 0, of `node1`, `node2` and so on."""
    attempt = task.attempt(0)
    attempt.failures.mkdir(parents=True, exist_ok=True)
    told = {"schema": "fsdpkit.stage/1", "began_s": T0, "ended_s": None, "bytes": 2 * GB}
    told |= {"files": 3214, "what": ["data"]}
    by_name = {f"node{place}": each for place, each in enumerate(nodes, 1)}
    attempt.stage.write_text(json.dumps({**told, "nodes": by_name, **more}))


READY, AGAIN = node(2 * GB, "ready"), node(1 * GB, "ready", reused=True)


def test_progress_is_of_all_nodes_and_the_time_left_of_the_slowest(tmp_path: Path) -> None:
    task = TaskPaths(tmp_path)
    stages(task, AGAIN, READY, node(1 * GB), node(0.5 * GB, reused=True))  # of that so far
    found = stage_progress(read_stage(task.attempt(0)), 4, goes_on=True)
    assert found is not None
    assert (found.nodes, found.ready, found.reused) == (4, 2, 1)
    assert found.share == pytest.approx((2 + 2 + 1 + 0.5) / 8)
    assert found.bytes_per_s == pytest.approx((2 + 1 + 0.5) / 3 / 4 * GB)  # to those that copied
    assert found.left_s == pytest.approx(1.5 / (0.5 / 4))
    late = stage_progress(read_stage(task.attempt(0)), 5, goes_on=True)
    assert late is not None  # of a node that has not come nobody knows its pace
    assert (late.left_s, late.nodes) == (None, 5)


@pytest.mark.parametrize(
    "more",
    [
        *({"bytes": -1}, {"bytes": 1 << 70}, {"bytes": 1.5}, {"began_s": 1e300}, {"files": "x"}),
        *({"nodes": {"a": {"state": "off"}}}, {"nodes": [1]}, {"what": ["\x1b[2J"]}),
        *({"schema": "fsdpkit.stage/9"}, {"ended_s": -1}),
        {"nodes": {"a": {"state": "copying", "seconds": -1}}},
    ],
)
def test_what_is_no_record_is_none(tmp_path: Path, more: dict[str, Any]) -> None:
    task = TaskPaths(tmp_path)
    stages(task, READY)
    assert read_stage(task.attempt(0)) is not None
    stages(task, READY, **more)
    assert read_stage(task.attempt(0)) is None


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedRun:
    made = WatchedRun(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin), prepend=":")
    made.slurm_says("RUNNING")
    return made


def test_a_watch_shows_the_copy_while_it_lasts_and_then_how_long_it_took(
    watched: WatchedRun,
) -> None:
    stages(watched.paths.task(), READY, node(1 * GB))

    def drawn(view: View) -> str:
        return "\n".join(line.plain for line in frame(view, 100, 24, T0))

    watcher = Watcher(Run.open(watched.paths.dir))
    with contextlib.closing(watcher):
        while not (view := watcher.look()).stage or not view.stage.goes_on:
            # The scheduler has not answered yet: it is not over for all that.
            assert not any("disks" in e.words for e in view.events)
        assert "1 of 2 nodes ready, 75 % of 2.0 GB" in drawn(view)
        assert "1 of 2 nodes ready" in "".join(e.words for e in changes(None, view, T0))
        stages(watched.paths.task(), READY, node(1.01 * GB))
        later = watcher.look()
        assert "copying" not in "".join(e.words for e in changes(view, later, T0))  # hardly more
        stages(watched.paths.task(), READY, READY, ended_s=T0 + 41)
        over = watcher.look()
        assert "copying" not in drawn(over)
        assert any("2.0 GB" in e.words and "41 s" in e.words for e in over.events)


def test_status_says_how_far_it_is_and_then_what_it_took(
    fsdpkit: Callable[..., Completed], watched: WatchedRun
) -> None:
    runs = watched.paths.dir.parent
    stages(watched.paths.task(), READY, node(1 * GB))
    text = fsdpkit("status", RUN_ID, "--runs", str(runs)).stdout
    assert "copying    1 of 2 nodes ready, 75 % of 2.0 GB, 375.0 MB/s, 4.0 s left" in text
    assert "copying to nodes: 1 of 2" in fsdpkit("status", "--runs", str(runs)).stdout
    answer = answer_of(fsdpkit("status", RUN_ID, "--runs", str(runs), "--json"))
    assert (answer["stage"]["share"], answer["stage"]["ready"]) == (0.75, 1)
    launches(watched.paths.task(), 0, T0 + 50)
    assert "copying" not in fsdpkit("status", RUN_ID, "--runs", str(runs)).stdout
    stages(watched.paths.task(), READY, AGAIN, ended_s=T0 + 41)
    text = fsdpkit("status", RUN_ID, "--runs", str(runs)).stdout
    assert "in 41 s; 1 of 2 had it already" in text


def test_the_report_says_what_was_copied_and_what_was_there_already(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000")
    stages(run.paths.task(), READY, AGAIN, ended_s=T0 + 41)
    launches(run.paths.task(), 0, T0 + 60)
    text = page(run, now_s=T0 + 100)
    assert "1 of 2 had it already" in text
    assert 'class="swatch use-staging"' in text
    assert "--u-staging" in text


# What a run ended for that was still copying


def diagnosed(
    place: Path, failure: str = "", state: str = "FAILED", earlier: str = ""
) -> Diagnosis:
    """failure: `CAUSE WORDS`, which the script's shell on node2 puts on record; earlier: what that
    on node1 does, a second before."""
    job = {"name": "made", "resources": {"nodes": 2}}
    run = made_run(place / "made-20260101-000000-0000", state=state, exit_code=1, job=job)
    task = run.paths.task()
    stages(task, READY, node(1 * GB, "failed" if failure else "copying"))
    for number, told in enumerate((earlier, failure)):
        cause, _, words = told.partition(" ")
        file = task.attempt(0).failures / f"0{int(T0) + number}000000000-node-{number}"
        if told:
            file.write_text(f"{cause} 78 node{number + 1} {words}\n")
    return diagnose(gather_from(run.dir, {"sacct": f"{JOB}|{state}|78:0|0:0||node[1-2]\n"}))


@pytest.mark.parametrize(
    ("failure", "numbers", "advice"),
    [
        ("disk-full 210.0 GB needed, 96.3 GB free on node2's /tmp/x", "96.3 GB free", "sharded"),
        ("disk-full 9.0 GB needed, 0.1 GB free on node2's /dev/shm", "9.0 GB", "exclude=node2"),
        ("data-missing /data/c.parquet changed while it was copied", "/data/c.p", "not change"),
        ("storage cannot read /data/c.parquet: Input/output error", "/data/c.parquet", "/data/c."),
        ("connection-reset no other node hands on block 17", "block 17", "pass on"),
        ("rendezvous-timeout node2 did not reach 10.0.0.1:29400", "10.0.0.1", "join_timeout_s"),
        ("environment-missing there is no Python 3.9 in /usr/bin", "3.9", "[stage]"),
    ],
)
def test_a_node_that_cannot_copy_is_named_with_its_numbers_and_what_to_do(
    tmp_path: Path, failure: str, numbers: str, advice: str
) -> None:
    found = diagnosed(tmp_path, failure)
    assert (found.cause, found.node) == (failure.partition(" ")[0], "node2")
    assert numbers in found.sentence
    assert "2.0 GB to its nodes" in found.sentence
    assert advice in (found.action or "")


@pytest.mark.parametrize(
    ("state", "cause"),
    [("TIMEOUT", "time-limit"), ("PREEMPTED", "preemption"), ("NODE_FAIL", "node-failure")],
)
def test_a_job_that_slurm_ends_says_that_it_was_still_copying(
    tmp_path: Path, state: str, cause: str
) -> None:
    found = diagnosed(tmp_path, state=state)
    assert found.cause == cause
    assert "2.0 GB to its nodes" in found.sentence
    assert any("75 %" in quote.text for quote in found.evidence)


def test_a_node_without_room_is_named_before_one_that_lost_it(tmp_path: Path) -> None:
    full = "disk-full 9.0 GB needed, 0.1 GB free on node2's /scratch"
    found = diagnosed(tmp_path, full, earlier="connection-reset no other node is there")
    assert (found.cause, found.node) == ("disk-full", "node2")
    assert "exclude=node2" in (found.action or "")


def test_what_was_copied_in_time_has_no_part_in_a_later_end(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state="TIMEOUT", exit_code=1)
    stages(run.paths.task(), READY, READY, ended_s=T0 + 41)
    found = diagnose(gather_from(run.dir, {"sacct": f"{JOB}|TIMEOUT|1:0|0:0||node[1-2]\n"}))
    assert (found.cause, "to its nodes" in found.sentence) == ("time-limit", False)
