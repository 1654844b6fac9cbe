"""What a watcher of a run sees: what is new on disk, and what the scheduler says of it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fsdpkit.reporting.status import looking
from fsdpkit.reporting.status.frame import summary
from fsdpkit.reporting.status.looking import Watcher
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.watching import (
    Curves,
    RunEvent,
    View,
    changes,
    events_of,
    progress_line,
    view_of,
)
from fsdpkit.reporting.timeline import TimelineSpan
from fsdpkit.reporting.words import second
from fsdpkit.runs.history import History
from fsdpkit.runs.record import JobRecord, save
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.programs import until
from tests.reporting.watched_run import RECORD, WatchedRun

Watch = Callable[..., Watcher]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedRun:
    made = WatchedRun(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


@pytest.fixture
def watch(run: WatchedRun) -> Iterator[Watch]:
    watchers: list[Watcher] = []

    def start(array_task: int | None = None, ask_s: float = 0.05) -> Watcher:
        watchers.append(Watcher(Run.open(run.paths.dir), array_task, ask_s=ask_s))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.close()
    (run.bin / "stalled").unlink(missing_ok=True)
    # One that still asks would ask the commands of the next test.
    for thread in threading.enumerate():
        if thread.name == "fsdpkit-states":
            thread.join(timeout=300)


def seen(watcher: Watcher, condition: Callable[[View], object]) -> View:
    """The first look of which that is true."""

    def look() -> View | None:
        view = watcher.look()
        return view if condition(view) else None

    return until(look, "what is looked for")


# ---- Looking


def test_a_run_is_seen_from_the_queue_to_its_end(run: WatchedRun, watch: Watch) -> None:
    run.slurm_says("PENDING", "Priority", nodes="")
    watcher = watch()
    view = seen(watcher, lambda v: v.why)
    assert (view.state, view.job_id, view.attempt) == ("PENDING", "7", None)
    assert "higher priority" in str(view.why)

    run.slurm_says("RUNNING")
    run.begins()
    run.trains(1, 2, memory_bytes=3e9)
    run.samples(1, cpu_percent=40.0, memory_used_bytes=2e9)
    run.says("step 1", "\x1b[2Jstep \x1b[32m2\x1b[0m")
    view = seen(watcher, lambda v: v.state == "RUNNING" and v.used)
    assert (view.nodes, view.attempt, view.progress.step, view.progress.steps) == (
        "node[1-2]",
        0,
        2,
        100,
    )
    assert view.curves == {"loss": (10.0, 5.0), "tokens_per_s": (1001.0, 1002.0)}
    assert view.memory_bytes == 3e9
    (load,) = view.used
    assert (load.name, load.cpu_percent, load.memory_bytes) == ("node2", 40.0, 2e9)
    assert view.lines[0] == "step 1"
    assert "\x1b[2J" not in view.lines[1]
    assert [one.words for one in view.events] == ["attempt 0 began"]

    run.ends()
    run.slurm_remembers("COMPLETED")
    view = seen(watcher, lambda v: v.over)
    assert view.state == "COMPLETED"
    assert "all ranks are done" in view.events[-1].words


def test_of_an_array_one_task_is_watched(run: WatchedRun, watch: Watch) -> None:
    save(run.paths, msgspec.structs.replace(RECORD, array=[2, 3]))
    known = f"2|3|4|0|2|/x|fsdpkit:{RECORD.id}\n"
    queue = f"7_2|PENDING|Priority||{known}7_3|RUNNING|None|node1|{known}"
    (run.bin / "squeue.txt").write_text(queue)
    view = seen(watch(array_task=3), lambda v: v.state == "RUNNING")
    assert (view.job_id, view.nodes) == ("7_3", "node1")


def test_only_what_is_new_is_read(
    run: WatchedRun, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.slurm_says("RUNNING")
    run.begins()
    run.trains(*range(1, 500))
    run.says(*(f"line {n}" for n in range(500)))
    watcher = watch(ask_s=1000)
    seen(watcher, lambda v: v.state == "RUNNING")
    watcher.look()

    def again(*_: object) -> None:
        raise AssertionError("small files are read again")

    monkeypatch.setattr(looking, "history_of", again)
    read: list[int] = []
    monkeypatch.setattr(looking, "progress_of", lambda *_: read.append(1) or TrainingProgress())
    view = watcher.look()
    assert read == []
    assert len(view.curves["loss"]) == 499
    assert view.lines[-1] == "line 499"
    run.trains(500)
    assert len(watcher.look().curves["loss"]) == 500
    assert read == [1]


def test_the_scheduler_is_not_asked_at_every_look(run: WatchedRun, watch: Watch) -> None:
    run.slurm_says("RUNNING")
    watcher = watch(ask_s=1000)
    seen(watcher, lambda v: v.state == "RUNNING")
    for _ in range(20):
        watcher.look()
    assert run.times_asked() == 1


def test_a_scheduler_that_stalls_holds_up_no_look(run: WatchedRun, watch: Watch) -> None:
    stalled = run.bin / "stalled"
    stalled.touch()
    (run.bin / "squeue").write_text(f"#!/bin/bash\nwhile [[ -e {stalled} ]]; do sleep 0.1; done\n")
    run.begins()
    run.trains(1)
    view = watch().look()
    assert (view.state, view.progress.step, view.over) == ("asking the scheduler", 1, False)


def test_a_job_that_the_scheduler_has_forgotten_is_over_only_if_its_files_say_so(
    run: WatchedRun, watch: Watch
) -> None:
    run.begins()
    watcher = watch()
    view = seen(watcher, lambda v: v.state != "asking the scheduler")
    assert (view.state, view.over) == ("unknown to the scheduler", False)
    run.ends("requeue", 75, "the time is over")
    time.sleep(0.1)
    assert not watcher.look().over
    run.ends()
    assert seen(watcher, lambda v: v.over).state == "ended, forgotten by the scheduler"


def test_no_end_is_told_before_anybody_knows_of_one(run: WatchedRun, watch: Watch) -> None:
    """Before the scheduler's first word, while it stalls, and when it has forgotten the job."""
    run.begins()
    run.trains(1, 2)
    watcher = watch()
    assert not [one for one in watcher.look().events if one.words.startswith("over")]
    view = seen(watcher, lambda v: v.state == "unknown to the scheduler")
    assert not [one for one in view.events if one.words.startswith("over")]
    run.slurm_remembers("TIMEOUT")
    view = seen(watcher, lambda v: v.over)
    assert [one.words for one in view.events if one.words.startswith("over")] == [
        "over: attempt 0 (job 7)"
    ]


def test_the_scheduler_is_asked_at_once_when_an_attempt_begins_or_ends(
    run: WatchedRun, watch: Watch
) -> None:
    run.slurm_says("PENDING", "Priority", "")
    watcher = watch(ask_s=1000.0)
    seen(watcher, lambda v: v.state == "PENDING")
    run.slurm_says("RUNNING")
    run.begins()
    seen(watcher, lambda v: v.state == "RUNNING")
    run.slurm_remembers("COMPLETED")
    run.ends()
    view = seen(watcher, lambda v: v.over)
    assert (view.state, view.exit_status, run.times_asked()) == ("COMPLETED", 0, 3)


@pytest.mark.parametrize(
    ("remembered", "verdict", "told", "status"),
    [
        (("FAILED", "3:0"), {"trouble": None}, "FAILED, exit status 3", 3),
        (
            ("FAILED", "75:0"),
            {"trouble": {"cause": "stopped", "status": 75, "message": "rank 0: stopped"}},
            "STOPPED: asked to stop",
            75,
        ),
        (("COMPLETED", "0:0"), None, "UNKNOWN: it is COMPLETED, but no agent left", 70),
    ],
)
def test_a_watch_ends_as_the_run_did(
    run: WatchedRun,
    watch: Watch,
    remembered: Any,
    verdict: Any,
    told: str,
    status: int,
) -> None:
    run.begins()
    run.ends("end", status, "asked to stop")
    path = run.paths.task().attempt(0).verdict
    path.unlink() if verdict is None else path.write_text(json.dumps(verdict))
    run.slurm_remembers(*remembered)
    view = seen(watch(), lambda v: v.over)
    assert view.state.startswith(told)
    assert view.exit_status == status


def test_the_log_before_ranks_write_is_the_newest_job_s(run: WatchedRun, watch: Watch) -> None:
    """Job 10 came after job 9, whatever the alphabet says."""
    jobs = [JobRecord(job_id="9", nodes=2, ranks_per_node=2)]
    save(run.paths, msgspec.structs.replace(RECORD, job_id="10", earlier=jobs))
    for number in (9, 10):
        (run.paths.dir / f"slurm-{number}.log").write_text(f"of job {number}\n")
    assert watch().look().lines == ("of job 10",)


def test_an_end_that_may_be_none_is_waited_out(run: WatchedRun, watch: Watch) -> None:
    run.begins()
    run.slurm_remembers("PREEMPTED")
    watcher = watch()
    assert not seen(watcher, lambda v: v.state.startswith("PREEMPTED")).over


def test_the_log_is_that_of_the_newest_start(run: WatchedRun, watch: Watch) -> None:
    run.slurm_says("RUNNING")
    (run.paths.dir / "slurm-7.log").write_text("fsdpkit: 2 nodes\n")
    watcher = watch()
    assert watcher.look().lines == ("fsdpkit: 2 nodes",)
    run.begins()
    run.says("first")
    assert watcher.look().lines == ("first",)
    run.begins(1)
    run.says("second")
    assert watcher.look().lines == ("second",)


# ---- Pure parts


def test_steps_that_are_done_again_count_once() -> None:
    curves = Curves()
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (2, 2.5), (3, 1.5)):
        curves.add(f'{{"step": {step}, "loss": {loss}, "step_time_s": 1, "tokens_per_s": null}}')
    curves.add('{"step": 3, "eval_loss": 1.2}')
    curves.add('{"step": 4, "loss"')
    assert curves.curves() == {
        "loss": (3.0, 2.5, 1.5),
        "tokens_per_s": (None,) * 3,
        "eval_loss": (1.2,),
    }


@given(st.text())
def test_no_line_of_metrics_is_an_error(text: str) -> None:
    Curves().add(text)


def test_a_slow_rank_is_named_until_the_ranks_are_compared_again() -> None:
    curves = Curves()
    compared = '"slowest_rank": 5, "slowest_host": "node2"'
    curves.add(f'{{"step": 1, "step_time_s": 1, {compared}, "slowest_ratio": 1.5}}')
    curves.add('{"step": 2, "step_time_s": 1}')
    assert curves.straggler == "rank 5 on node2 computes 1.50 times as long as the median rank"
    curves.add(f'{{"step": 3, "step_time_s": 1, {compared}, "slowest_ratio": 1.1}}')
    assert curves.straggler is None


def test_a_long_run_keeps_a_bounded_number_of_points() -> None:
    curves = Curves()
    for step in range(60_000):
        curves.add(f'{{"step": {step}, "loss": 1, "step_time_s": 1}}')
    assert 10_000 < len(curves.curves()["loss"]) <= 40_000


def test_a_timeline_is_told_in_words_in_order_with_the_newest_checkpoint_alone() -> None:
    spans = [
        TimelineSpan("queue", 0, 10, "in the queue"),
        TimelineSpan("attempt", 10, 50, "attempt 0 (job 7): a node was lost", 0),
        TimelineSpan("launch", 12, 30, "launch 0 on 2 nodes", 0),
        TimelineSpan("checkpoint", 20, 20, "checkpoint of step 5"),
        TimelineSpan("fault", 30, 30, "rank 1 on node2: gone", 0),
        TimelineSpan("launch", 35, None, "launch 1 on 2 nodes", 0),
        TimelineSpan("checkpoint", 40, 40, "checkpoint of step 9"),
    ]
    assert [(one.time_s, one.words) for one in events_of(spans)] == [
        (10, "attempt 0 began"),
        (30, "rank 1 on node2: gone"),
        (35, "ranks started again, launch 1 on 2 nodes"),
        (40, "checkpoint of step 9"),
        (50, "over: attempt 0 (job 7): a node was lost"),
    ]


def test_a_pending_job_comes_with_the_reason_and_the_remedy() -> None:
    history = History(run=Path("r"), array_task=None, dir=Path("r"), attempts=(), checkpoints=())
    view = view_of("r", JobState("PENDING", "squeue", reason="JobHeldUser"), history, job_id="7")
    assert view.state == "PENDING"
    assert view.action == "Release it: fsdpkit resume r"


def test_the_end_is_told_with_its_own_time() -> None:
    over = View(run="r", state="COMPLETED", since_s=20.0, over=True)
    ended = RunEvent(time_s=19.0, words="over: attempt 0")
    assert [one.time_s for one in changes(None, replace(over, events=(ended,)), 9e9)] == [19, 20]
    assert summary(replace(over, task="task 1 of 3"), "done")[0].startswith("r, task 1 of 3: COMP")
    assert second(20.0) in summary(over, "done")[0]


def test_each_change_is_told_once() -> None:
    step = TrainingProgress(step=1, updated_s=1.0)
    first = View(run="r", state="RUNNING", since_s=0.5, job_id="7", progress=step)
    told = changes(None, first, 5.0)
    assert [(one.time_s, one.words) for one in told] == [(0.5, "RUNNING, job 7"), (1.0, "step 1")]
    assert changes(first, first, 6.0) == []
    fault = RunEvent(time_s=3.0, words="rank 1: gone")
    second = View(
        run="r",
        state="RUNNING",
        job_id="7",
        since_s=0.5,
        progress=TrainingProgress(step=2, steps=10, loss=1.5, eta_s=80.0, updated_s=4.0),
        events=(fault,),
        unread=("squeue has not answered",),
    )
    told = changes(first, second, 7.0)
    assert told[0] == fault
    assert [one.words for one in told[1:]] == [
        "step 2 of 10, loss 1.500, 1 min 20 s to go",
        "squeue has not answered",
    ]
    assert changes(second, second, 8.0) == []
    assert progress_line(TrainingProgress()) == "no step yet"


# ---- A script that logs nothing, or under names of its own


def test_numbers_of_any_name_are_seen_and_steps_done_again_count_once(
    run: WatchedRun, watch: Watch
) -> None:
    run.slurm_says("RUNNING")
    run.begins()
    run.trains(1, 2, 3, accuracy=0.5, lr=0.1)
    run.trains(2, accuracy=0.25, flag=True, words="no")
    run.trains(2, loss=None, eval_loss=4.0, step_time_s=None)
    view = seen(watch(), lambda v: v.state == "RUNNING")
    assert [*view.curves] == ["loss", "tokens_per_s", "eval_loss", "accuracy"]
    assert [*view.curves.values()][2:] == [(4.0,), (0.5, 0.25)]


def test_what_is_printed_is_told_once(run: WatchedRun, watch: Watch) -> None:
    run.slurm_says("RUNNING")
    run.begins()
    watcher = watch(ask_s=1000)
    run.says("ready")
    first = seen(watcher, lambda v: v.state == "RUNNING")
    assert "rank 0 prints: ready" in [one.words for one in changes(None, first, 0.0)]
    run.says("step 1 loss 3", "step 2 loss 2.5")
    second = watcher.look()
    said = [one.words for one in changes(first, second, 0.0)]
    assert said == ["step 2, loss 2.500 (read from its output)"]
    assert changes(second, watcher.look(), 0.0) == []
    run.says("step 3 loss 2")
    assert watcher.look().curves == {"loss": (3.0, 2.5, 2.0)}
    run.trains(1)
    assert len(watcher.look().curves["loss"]) == 1, "what was logged takes precedence"
