"""Accounts kept by hand: every second of a grant counted once, under the right name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.runs.account import Account, SeenJobs
from fsdpkit.runs.accounting import accounts_of, keep, read_or_make
from fsdpkit.runs.history import history_of
from fsdpkit.scheduling.run import Run
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


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_run(tmp_path / "made-20260101-000000-0000")


def accounts(run: Run, running: bool = False, now_s: float = T0) -> list[Account]:
    jobs = (JOB,) if running else ()
    return accounts_of(history_of(run.paths, run.record), run.record, SeenJobs(jobs), now_s)


def seconds(found: list[Account], nodes: int = 2) -> dict[str, float]:
    """By use, of the whole allocation."""
    used: dict[str, float] = {"granted": sum(one.granted_s for one in found)}
    for one in found:
        for use, node_s in one.used_s.items():
            used[use] = used.get(use, 0.0) + node_s
    return {use: round(node_s / nodes, 6) for use, node_s in used.items()}


def test_a_run_without_trouble(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    at_s = saves(task, 5, trains(task, 1, 5, T0 + 40), 3)
    at_s = trains(task, 6, 10, at_s + 2)  # two seconds of evaluation
    ends(task, 0, at_s + 7)
    assert seconds(accounts(run)) == {
        "granted": 62,
        "training": 10,
        "startup": 40,
        "checkpoints": 3,
        "pauses": 9,
    }
    (found,) = accounts(run)
    assert found.gpu_hours == pytest.approx(62 * 4 / 3600)
    assert found.hours("training") == pytest.approx(10 * 4 / 3600)
    assert (found.nodes, found.gpus, found.queued_s) == (2, 2, 0)


def test_what_ranks_waited_for_in_steps_that_count_is_told_from_computing(run: Run) -> None:
    """Ten steps of a second; of five rank 0 waited 0.2 s for data. The ranks were compared in steps
    5 and 10, for the five steps before each: the slower one took 0.5 s and 0.1 s longer."""
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = T0 + 10
    for step in range(1, 11):
        compared = {5: [1.0, 1.5], 10: [1.0, 1.1]}.get(step)
        own: dict[str, Any] = {"rank_compute_s": compared} if compared else {}
        at_s = trains(task, step, step, at_s, loading_s=0.2 if step > 5 else 0.0, **own)
    trains(task, 11, 11, at_s, loading_s=99.0, tflops_per_device=5.0, mfu=1e300)
    ends(task, 0, at_s + 1)
    (found,) = accounts(run)
    assert found.used_s["loading"] / 2 == pytest.approx(5 * 0.2 + 1)
    assert found.used_s["waiting"] / 2 == pytest.approx(5 * 0.25 + 5 * 0.05)
    assert found.used_s["training"] / 2 == pytest.approx(11 - 2 - 1.5)
    assert (found.tflops_per_gpu, found.mfu) == (5.0, None)


@pytest.mark.parametrize("number", ["-1e9", "1e999", "NaN", '"x"', "-0.5", "1e300", "null"])
def test_numbers_that_no_step_has_change_no_other_part(run: Run, number: str) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 1, 5, T0 + 10)
    names = ("step_time_s", "loading_s", "tflops_per_device", "checkpoint_blocked_s")
    for name in names:
        write_lines(task.metrics, f'{{"time_s": {at_s}, "step": 5, "{name}": {number}}}\n')
    compared = f'"rank_compute_s": [1, {number}], "time_s": {at_s}'
    write_lines(task.metrics, f'{{{compared}, "step": 5}}\n')
    ends(task, 0, at_s)
    (found,) = accounts(run)
    assert sum(found.used_s.values()) == pytest.approx(found.granted_s)
    assert found.used_s["startup"] == 20
    assert all(0 < node_s <= 10 for use, node_s in found.used_s.items() if use != "startup")


def test_what_a_crash_costs(run: Run) -> None:
    """Steps 6 and 7 were lost and done again; the pause before the restart is the crash's."""
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    at_s = trains(task, 6, 7, saves(task, 5, trains(task, 1, 5, T0 + 20), 1))
    breaks(task, 0, at_s + 4, 7)
    launches(task, 0, at_s + 9, 1)
    at_s = trains(task, 6, 10, at_s + 29)
    ends(task, 0, at_s)
    assert seconds(accounts(run)) == {
        "granted": 62,
        "training": 10,
        "startup": 40,
        "repeated": 2,
        "checkpoints": 1,
        "lost": 9,
    }


@pytest.mark.parametrize(("on_disk", "lost"), [(True, 2 + 3), (False, 2 + 3)])
def test_steps_that_no_checkpoint_holds_are_lost_when_the_run_stands_still(
    run: Run, on_disk: bool, lost: int
) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 6, 7, saves(task, 5, trains(task, 1, 5, T0 + 10), 0, on_disk=on_disk))
    breaks(task, 0, at_s + 3, 7)
    ends(task, 0, at_s + 3, "crash")
    assert seconds(accounts(run))["lost"] == lost
    assert seconds(accounts(run))["training"] == 5


def test_without_any_checkpoint_all_steps_of_a_failed_run_are_lost(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    trains(task, 1, 7, T0 + 10)
    ends(task, 0, T0 + 20, "crash")
    assert "training" not in seconds(accounts(run))


def test_nodes_that_wait_are_idle(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0, nodes=("node1", "node2", "node3"))
    launches(task, 0, T0 + 10, nodes=("node1", "node2"))
    ends(task, 0, trains(task, 1, 10, T0 + 10))
    found = seconds(accounts(run), nodes=3)
    assert found["granted"] == 20
    assert found["training"] == pytest.approx(10 * 2 / 3)
    assert found["idle"] == pytest.approx(10 / 3)


def test_what_runs_is_counted_up_to_now_and_its_last_seconds_are_open(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    trains(task, 1, 10, T0 + 10)
    found = seconds(accounts(run, True, T0 + 26))
    assert found == {"granted": 26, "training": 10, "open": 6, "startup": 10}


def test_an_attempt_that_never_trained_is_lost_and_one_that_is_about_to_is_starting(
    run: Run,
) -> None:
    starts(run.paths.task(), 0, T0)
    assert seconds(accounts(run, True, T0 + 20)) == {"granted": 20, "startup": 20}
    ends(run.paths.task(), 0, T0 + 30, "preflight")
    assert seconds(accounts(run)) == {"granted": 30, "lost": 30}


def stages(run: Run, number: int, began_s: float, ended_s: float | None) -> None:
    told = {"schema": "fsdpkit.stage/1", "began_s": began_s, "ended_s": ended_s, "bytes": 9}
    path = run.paths.task().attempt(number).stage
    node = {"state": "copying", "seconds": 12.0}
    path.write_text(json.dumps({**told, "files": 1, "nodes": {"node1": node}}))


def test_copying_to_the_nodes_disks_is_a_use_of_its_own(run: Run) -> None:
    starts(run.paths.task(), 0, T0, ready_s=50)
    stages(run, 0, T0 + 5, None)
    found = seconds(accounts(run, True, T0 + 20))
    assert found == {"granted": 20, "startup": 5, "staging": 15}
    stages(run, 0, T0 + 5, T0 + 35)
    launches(run.paths.task(), 0, T0 + 60)
    trains(run.paths.task(), 1, 10, T0 + 60)
    ends(run.paths.task(), 0, T0 + 70)
    found = seconds(accounts(run))
    assert found == {"granted": 70, "training": 10, "startup": 30, "staging": 30}
    stages(run, 0, T0 + 5, T0 + 65)  # by another clock: the ranks had started by then
    assert seconds(accounts(run))["staging"] == 55


def test_a_copy_that_came_to_no_launch_is_lost_as_far_as_it_is_on_record(run: Run) -> None:
    run.paths.task().attempt(0).failures.mkdir(parents=True)
    os.utime(run.paths.task().attempt(0).failures, (T0, T0))
    stages(run, 0, T0 + 5, None)
    assert seconds(accounts(run)) == {"granted": 17, "lost": 17}


def test_a_program_that_logs_no_steps_is_not_said_to_have_lost_them(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    ends(task, 0, T0 + 100)
    assert seconds(accounts(run)) == {"granted": 100, "startup": 10, "unknown": 90}


def test_the_local_cluster_grants_nodes(tmp_path: Path) -> None:
    run = made_run(tmp_path / "l", kind="local")
    starts(run.paths.task(), 0, T0)
    ends(run.paths.task(), 0, T0 + 1800)
    (found,) = accounts(run)
    assert (found.gpus, found.gpu_hours) == (0, 1.0)


def test_an_account_is_kept_with_what_only_a_later_attempt_shows_of_the_earlier(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 6, 7, saves(task, 5, trains(task, 1, 5, T0 + 10), 0))
    ends(task, 0, at_s, "crash")
    keep(history_of(run.paths, run.record), run.record)
    (first,) = read_or_make(run.paths, run.record)
    assert first.used_s["lost"] == 4
    starts(task, 1, at_s)
    launches(task, 1, at_s + 10)
    ends(task, 1, trains(task, 6, 8, at_s + 10))
    again, _ = made = read_or_make(run.paths, run.record)  # the second has none of its own
    assert (again.used_s["repeated"], again.used_s.get("lost")) == (4, None)
    assert [one.queued_s for one in made] == [0, 0]
    keep(history_of(run.paths, run.record), run.record)
    task.metrics.unlink()
    assert read_or_make(run.paths, run.record) == made
    told = json.loads(task.attempt(1).account.read_text())
    for hostile in ({"used_s": {"training": 1e9}}, {"used_s": {"training": -1}}, {"nodes": 0}):
        task.attempt(1).account.write_text(json.dumps(told | hostile))
        assert read_or_make(run.paths, run.record) == accounts(run)


def test_the_steps_of_an_earlier_run_are_no_training_of_this_one(run: Run) -> None:
    """It began from another run's step 5,000: the first line stands for five steps, not 5,005."""
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    for step in (5005, 5010, 5015):
        at_s = T0 + 100 + 5 * (step - 5005) / 5
        write_lines(task.metrics, {"time_s": at_s, "step": step, "step_time_s": 1.0})
    ends(task, 0, T0 + 110)
    assert seconds(accounts(run)) == {"granted": 110, "training": 15, "startup": 95}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, float]]:
    """What happens one after the other, and how many seconds later."""
    kinds = ["start", "launch", "line", "line", "again", "save", "break", "end", "far", "back"]
    events = draw(
        st.lists(st.tuples(st.sampled_from([*kinds, "stage"]), st.floats(0, 50)), max_size=25)
    )
    return [("start", 0.0), *events]


@settings(max_examples=80)
@given(histories(), st.booleans())
def test_the_parts_add_up_to_what_was_granted_whatever_happened(
    events: list[tuple[str, float]], running: bool
) -> None:
    with TemporaryDirectory() as work:
        run = made_run(Path(work) / "made-20260101-000000-0000")
        task, at_s, step, number, launch = run.paths.task(), T0, 0, -1, 0
        for kind, later_s in events:
            at_s += later_s
            if kind == "start":
                number, launch = number + 1, 0
                starts(task, number, at_s, nodes=("node1", "node2", "node3"))
            elif kind == "stage":
                stages(run, number, at_s, None if running else at_s + later_s)
            elif kind == "launch":
                launches(task, number, at_s, launch)
                launch += 1
            elif kind == "line":
                step += 1
                trains(task, step, step, at_s, step_s=3.0)
            elif kind == "again":
                step = max(0, step - 3)
            elif kind == "save":
                saves(task, step, at_s, 2.0, on_disk=False)
            elif kind == "break":
                breaks(task, number, at_s, step)
            elif kind == "back":  # a clock that was set
                at_s -= 2 * later_s
            elif kind == "far":
                trains(task, step + 1, step + 1, at_s + 1e5)
            else:
                ends(task, number, at_s)
        found = accounts(run, running, at_s + 5)
        assert len(found) == number + 1
        for one in found:
            assert sum(one.used_s.values()) == pytest.approx(one.granted_s, abs=1e-6)
            assert all(0 < node_s < float("inf") for node_s in one.used_s.values())


def stops(run: Run, number: int, at_s: float, step: int) -> None:
    """As a script of another make does that was asked to, having saved that step by itself."""
    breaks(run.paths.task(), number, at_s, step, "rank 0: stopped early as asked", "stopped")
    ends(run.paths.task(), number, at_s, "cancelled")
    path = run.paths.task().attempt(number).ending
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": step}))
    os.utime(path, (at_s, at_s))


def test_what_a_script_saved_by_itself_before_it_stopped_has_trained(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    stops(run, 0, trains(task, 1, 7, T0 + 10), 7)
    assert seconds(accounts(run)) == {"granted": 17, "training": 7, "startup": 10}


def test_steps_from_which_a_later_launch_went_on_are_not_lost(run: Run) -> None:
    """The second attempt saves nothing that is known of, and crashes."""
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 1, 7, T0 + 10)
    breaks(task, 0, at_s, 7)
    ends(task, 0, at_s, "crash")
    starts(task, 1, at_s)
    launches(task, 1, at_s + 10)
    at_s = trains(task, 6, 9, at_s + 10)  # it saved step 5
    breaks(task, 1, at_s, 9)
    ends(task, 1, at_s, "crash")
    found = seconds(accounts(run))
    assert (found["training"], found["repeated"], found["lost"]) == (5, 2, 4)


def test_a_stop_of_earlier_does_not_save_what_began_anew(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 1, 9, T0 + 10)
    stops(run, 0, at_s, 9)
    starts(task, 1, at_s)
    launches(task, 1, at_s + 10)
    trains(task, 1, 3, at_s + 10)
    ends(task, 1, at_s + 13, "crash")
    assert "training" not in seconds(accounts(run))


def test_a_hold_has_nothing_but_idle_nodes_for_its_runs_have_accounts_of_their_own(
    tmp_path: Path,
) -> None:
    job = {"name": "made", "resources": {"gpus": 8, "time": "2:00:00", "nodes": 2}}
    run = made_run(tmp_path / "h", holds=True, ranks_per_node=1, job=job)
    starts(run.paths.task(), 0, T0 + 60)
    ends(run.paths.task(), 0, T0 + 60 + 3600)
    (found,) = accounts(run)
    assert found.used_s == {"idle": 7200}
    assert (found.gpu_hours, found.asked_s, found.queued_s) == (16, 7200, 60)


def test_a_task_of_an_array_has_accounts_of_its_own(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", array=[0, 3], here=True)
    for number, steps in ((0, 5), (3, 9)):
        task = run.paths.task(number)
        starts(task, 0, T0 + 60)
        launches(task, 0, T0 + 70)
        ends(task, 0, trains(task, 1, steps, T0 + 70))
        keep(history_of(run.paths, run.record, number), run.record)
    (found,) = read_or_make(run.paths, run.record, 3)
    assert found.used_s == {"training": 18, "startup": 20}
    assert found.queued_s is None  # an allocation that was there before
    assert run.paths.task(0).attempt(0).account.exists()
