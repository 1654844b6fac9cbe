"""When things happened: from what agents, trainer and batch shell wrote, on the head's clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpkit.reporting.series import read_metrics
from fsdpkit.reporting.timeline import TimelineSpan, bounds_of, timeline_of
from fsdpkit.runs.bounds import Bounds
from fsdpkit.runs.history import history_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_run import (
    JOB,
    T0,
    breaks,
    ends,
    launches,
    made_run,
    saves,
    starts,
    trains,
    write_lines,
)

RUNNING = {JOB: JobState("RUNNING", "squeue")}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_run(tmp_path / "made-20260101-000000-0000")


def spans(run: Run, states: dict[str, JobState | None] | None = None) -> list[TimelineSpan]:
    history = history_of(run.paths, run.record)
    metrics = read_metrics(history.paths.metrics)
    return timeline_of(run.record, history, states or {}, metrics)


def bounds(run: Run, states: dict[str, JobState | None] | None = None) -> list[Bounds]:
    history = history_of(run.paths, run.record)
    return bounds_of(history, states or {}, read_metrics(history.paths.metrics))


def test_a_run_is_told_from_the_queue_to_its_end(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0 + 60)
    launches(task, 0, T0 + 75)
    saves(task, 5, trains(task, 1, 5, T0 + 80), 2)
    breaks(task, 0, T0 + 95, 7, "rank 1 on node1: RuntimeError: no")
    launches(task, 0, T0 + 100, 1)
    trains(task, 6, 20, T0 + 110)
    write_lines(
        task.attempt(0).dir / "orders.jsonl", {"time_s": T0 + 130, "event": "stop-requested"}
    )
    ends(task, 0, T0 + 140, "time-limit")
    starts(task, 1, T0 + 200)
    ends(task, 1, T0 + 300)
    found = [(s.kind, s.begin_s - T0, s.end_s and s.end_s - T0) for s in spans(run)]
    assert found == [
        ("queue", 0, 60),
        ("attempt", 60, 140),
        ("launch", 75, 95),
        ("checkpoint", 87, 87),
        ("fault", 95, 95),
        ("launch", 100, 140),
        ("stop", 130, 130),
        ("queue", 140, 200),
        ("attempt", 200, 300),
    ]
    labels = {s.kind: s.label for s in spans(run)}
    assert labels["fault"] == "rank 1 on node1: RuntimeError: no, after step 7"
    assert labels["queue"] == "in the queue again"
    assert labels["checkpoint"] == "checkpoint of step 5"


def test_being_asked_to_stop_is_no_fault(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0 + 1)
    launches(task, 0, T0 + 20)
    breaks(task, 0, T0 + 50, 9, "rank 0: stopped early as asked", cause="stopped")
    assert not [s for s in spans(run) if s.kind == "fault"]


def test_what_runs_has_no_end_and_what_waits_says_for_what(run: Run) -> None:
    starts(run.paths.task(), 0, T0 + 60)
    assert bounds(run, RUNNING) == [(T0 + 60, None)]
    pending = {JOB: JobState("PENDING", "squeue", reason="Priority")}
    waiting = [s for s in spans(made_run(run.dir / "other"), pending) if s.kind == "queue"]
    assert [(s.begin_s, s.end_s, s.label) for s in waiting] == [(T0, None, "PENDING (Priority)")]


def test_an_attempt_that_was_killed_ends_with_its_last_sign_of_life(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    trains(task, 1, 5, T0 + 20)
    assert bounds(run) == [(T0, T0 + 25)], "the newest metrics"
    samples = task.attempt(0).node_samples(1)
    write_lines(samples, {"time_s": T0 + 20}, {"time_s": T0 + 40}, '{"time_s": 99')
    assert bounds(run) == [(T0, T0 + 40)], "the newest whole sample"


def test_clocks_that_are_apart_are_put_on_the_heads(run: Run) -> None:
    """node1's clock is 100 s ahead of the file server's, node2's an hour behind."""
    task = run.paths.task()
    starts(task, 0, T0, offsets_s=(100.0, -3600.0))
    launches(task, 0, T0 + 100 + 15)
    late = {"time_s": T0 - 3600 + 80, "event": "node-ended", "node": "node2"}
    write_lines(task.attempt(0).node_events(1), late)
    ends(task, 0, T0 + 90)  # by the file server's clock
    assert bounds(run) == [(T0 + 100, T0 + 190)]
    task.attempt(0).ending.unlink()
    assert bounds(run) == [(T0 + 100, T0 + 180)]


def test_torn_files_are_no_error(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    for name in ("orders.jsonl", "node-1.events.jsonl", "node-0.samples.jsonl", "verdict.json"):
        (task.attempt(0).dir / name).write_text('{"time_s": 12, "ev')
    task.attempt(0).ending.write_text("{")
    (task.attempt(0).failures / "x").write_text("?")
    assert bounds(run)[0][0] is not None
    assert spans(run)


def test_a_job_that_resumed_the_run_waited_by_itself(tmp_path: Path) -> None:
    earlier = {"job_id": "5", "nodes": 1, "ranks_per_node": 2, "submitted_s": T0 - 500}
    run = made_run(tmp_path / "r", first_attempt=1, earlier=[earlier])
    record = json.loads(run.paths.record.read_text())
    assert record["earlier"]
    run = Run.open(run.dir)
    starts(run.paths.task(), 0, T0 - 400)
    ends(run.paths.task(), 0, T0 - 300)
    starts(run.paths.task(), 1, T0 + 30)
    ends(run.paths.task(), 1, T0 + 40)
    queued = [(s.begin_s - T0, s.end_s and s.end_s - T0) for s in spans(run) if s.kind == "queue"]
    assert queued == [(-500, -400), (0, 30)]
