"""What the overhead benchmark says of its samples, with known answers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.fault_parts.jobs import Started, kill_rank, launcher_process, rank_process
from benchmarks.fault_parts.requeued import Requeued
from benchmarks.overhead import (
    PARTS,
    WAYS,
    Again,
    Interval,
    as_result,
    first_step_again,
    interval,
    memory_figures,
    restart_figures,
    seconds_a_step,
    steps_figure,
    table_of_restarts,
    told_about_steps,
    with_earlier_parts,
)
from benchmarks.report import table
from fsdpkit.runs.layout import TaskPaths


def logged(*steps: tuple[int, float]) -> list[dict]:
    return [{"step": step, "time_s": time_s, "step_time_s": 1.0} for step, time_s in steps]


def restarts(**seconds: float) -> dict:
    return {name: [{"first_step_s": s, "repeated": 2}] * 3 for name, s in seconds.items()}


def test_a_step_takes_the_wall_time_between_the_first_and_the_last_logged_one() -> None:
    assert seconds_a_step(logged((5, 100.0), (10, 103.0), (65, 130.0))) == 0.5


def test_the_interval_is_students_over_the_logarithms_of_pairs() -> None:
    found = interval([1.02, 1.00, 1.01])
    logs = [math.log(x) for x in (1.02, 1.00, 1.01)]
    middle = sum(logs) / 3
    half = 4.30 * math.sqrt(sum((x - middle) ** 2 for x in logs) / 2 / 3)
    assert math.log(found.middle) == pytest.approx(middle)
    assert math.log(found.high / found.middle) == pytest.approx(half)
    assert math.log(found.middle / found.low) == pytest.approx(half)


def test_which_side_of_a_pair_was_slow_does_not_move_the_middle() -> None:
    assert interval([2.0, 0.5]).middle == pytest.approx(1)


def test_pairs_that_agree_leave_no_doubt() -> None:
    assert interval([1.03] * 4) == Interval(*[pytest.approx(1.03)] * 3)


def test_more_pairs_than_quantiles_are_not_taken_for_surer_than_they_are() -> None:
    wide, narrow = interval([1.0, 1.1] * 8), interval([1.0, 1.1] * 30)
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.parametrize(("middle", "met"), [(1.009, True), (1.011, False)])
def test_one_percent_is_allowed(middle: float, met: bool) -> None:
    figure = steps_figure([1.0], [1.0], Interval(middle, 0.99, 1.03))
    assert (figure.value, figure.met) == (middle, met)


def test_the_note_has_the_interval_and_what_the_launchers_use() -> None:
    samples = {
        "ours": [{"launcher_cpu": 0.012}] * 4,
        "theirs": [{"launcher_cpu": 0.004}] * 4,
    }
    said = told_about_steps(Interval(1.004, 0.998, 1.0101), samples)
    assert "4 pairs" in said
    assert "by +0.40 %, with 95 % confidence by -0.20 to +1.01 %" in said
    assert "1.2 % of one core, torchrun's 0.4 %" in said


def test_training_goes_on_where_the_count_of_steps_falls_back() -> None:
    lines = logged((10, 1.0), (11, 2.0), (12, 3.0), (11, 9.0), (12, 10.0))
    assert first_step_again(lines, killed_s=3.5) == Again(9.0, repeated=2)


def test_a_step_that_was_under_way_is_not_the_first_after_the_restart() -> None:
    assert first_step_again(logged((11, 2.0), (12, 3.0), (13, 3.6)), killed_s=3.5) is None
    lines = logged((11, 2.0), (12, 3.0), (13, 3.6), (11, 9.0))
    assert first_step_again(lines, killed_s=3.5) == Again(9.0, repeated=3)


def test_a_restart_before_the_kill_is_not_its_doing() -> None:
    assert first_step_again(logged((12, 1.0), (11, 2.0), (12, 3.0)), killed_s=3.5) is None


def test_nothing_is_said_before_training_goes_on() -> None:
    assert first_step_again([], killed_s=3.5) is None


def test_restarts_are_compared_with_both_others() -> None:
    samples = restarts(fsdpkit=2.0, torchrun=5.0, submitit=16.0)
    against_torchrun, against_submitit = restart_figures(samples)
    assert against_torchrun.value == pytest.approx(0.4)
    assert against_submitit.value == 0.125
    assert [figure.met for figure in (against_torchrun, against_submitit)] == [True, True]
    slow = restart_figures(restarts(fsdpkit=9.0, torchrun=7.0, submitit=8.0))
    assert [figure.met for figure in slow] == [False, False]


def test_of_a_node_full_of_ranks_one_process_may_import_torch() -> None:
    forked, anew = [{"pss_mib": 1400.0, "imports": 1}], [{"pss_mib": 2800.0, "imports": 9}]
    memory, imports = memory_figures({"on": forked, "off": anew})
    assert (memory.value, memory.met, imports.met) == (0.5, True, True)
    shown = table({"figures": [vars(imports)], "measured": {"date": "2026-11-22", "cpus": 2}})
    assert "| 1 processes | 9 processes |" in shown
    memory, imports = memory_figures({"on": anew, "off": forked})
    assert (memory.met, imports.met) == (False, False)


def test_every_way_has_a_row_with_its_extremes() -> None:
    samples = restarts(fsdpkit=8.0, torchrun=7.0, submitit=16.0)
    samples["fsdpkit"] = [{"first_step_s": s, "repeated": 2} for s in (8.0, 7.5, 9.0)]
    rows = table_of_restarts(samples).splitlines()[2:]
    assert len(rows) == len(WAYS)
    assert rows[0] == "| fsdpkit, restarted in the job | 8.00 s | 7.50 s | 9.00 s | 2 |"


def part(name: str, value: float) -> dict:
    figure = steps_figure([value], [1.0], Interval(value, value, value))
    return {"figures": [{**vars(figure), "name": name}], "notes": [f"note of {name}"]}


def test_a_part_that_was_not_measured_keeps_its_rows(tmp_path: Path) -> None:
    about = {"date": "2026-01-02", "cpus": 2, "python": "3.11.7"}
    path = tmp_path / "overhead.json"
    new = {"measured": about, "parts": {"restart": part("restart", 2.0)}}
    assert with_earlier_parts(new, path) == new
    first = {"measured": about, "parts": {name: part(name, 1.0) for name in PARTS}}
    path.write_text(json.dumps(as_result(first)))
    result = as_result(with_earlier_parts(new, path))
    assert [row["name"] for row in result["figures"]] == ["steps", "memory", "restart"]
    assert [row["value"] for row in result["figures"]] == [1.0, 1.0, 2.0]
    assert result["notes"] == ["note of steps", "note of memory", "note of restart"]
    assert "| 2.00 × | ≤ 1.01 × | **missed** |" in table(result)


def test_only_lines_of_steps_are_steps(tmp_path: Path) -> None:
    lines = [*logged((1, 1.0)), {"step": 1, "eval_loss": 3.0}, {"step": 1, "checkpoint_bytes": 9}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert Started("1", TaskPaths(tmp_path)).steps() == logged((1, 1.0))


def test_a_rank_is_found_by_its_trainings_directory_and_killed(tmp_path: Path) -> None:
    def sleeper(directory: Path, rank: int) -> subprocess.Popen[bytes]:
        told = {"FSDPKIT_TASK_DIR": str(directory), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        argv = [sys.executable, "-c", "import time; time.sleep(600)"]
        return subprocess.Popen(argv, env={**os.environ, **told})

    here, other = tmp_path / "here", tmp_path / "other"
    processes = [sleeper(here, 0), sleeper(here, 1), sleeper(other, 1)]
    try:
        task = TaskPaths(here)
        while rank_process(task, 1) is None or rank_process(task, 0) is None:
            time.sleep(0.01)
        launcher = launcher_process(task)
        assert launcher is not None
        assert launcher.pid == os.getpid()
        kill_rank(task, 1)
        assert processes[1].wait(timeout=60) == -9
        assert processes[0].poll() is None
        assert processes[2].poll() is None
        with pytest.raises(RuntimeError, match="no process of rank 1"):
            kill_rank(task, 1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_submitit_gets_its_warning_when_torchrun_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, what: sent.append((pid, what)))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Requeued(("true",))() == 0
    assert sent == []
    failing = Requeued(("false",))
    assert failing() == 1
    assert [pid for pid, _ in sent] == [os.getpid()]
    again = failing.checkpoint()
    assert again.function == failing
