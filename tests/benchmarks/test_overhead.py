"""What the overhead benchmark says of its samples, with known answers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.fault_parts.jobs import kill_rank, launcher_process, rank_process
from benchmarks.overhead import (
    Again,
    Interval,
    first_step_again,
    interval,
    memory_figures,
    seconds_a_step,
    steps_figure,
)
from benchmarks.report import table
from fsdpkit.runs.layout import TaskPaths


def logged(*steps: tuple[int, float]) -> list[dict]:
    return [{"step": step, "time_s": time_s, "step_time_s": 1.0} for step, time_s in steps]


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


@pytest.mark.parametrize(("middle", "met"), [(1.009, True), (1.011, False)])
def test_one_percent_is_allowed(middle: float, met: bool) -> None:
    figure = steps_figure([1.0], [1.0], Interval(middle, 0.99, 1.03))
    assert (figure.value, figure.met) == (middle, met)


def test_training_goes_on_where_the_count_of_steps_falls_back() -> None:
    lines = logged((10, 1.0), (11, 2.0), (12, 3.0), (11, 9.0), (12, 10.0))
    assert first_step_again(lines, killed_s=3.5) == Again(9.0, repeated=2)


def test_of_a_node_full_of_ranks_one_process_may_import_torch() -> None:
    forked, anew = [{"pss_mib": 1400.0, "imports": 1}], [{"pss_mib": 2800.0, "imports": 9}]
    memory, imports = memory_figures({"on": forked, "off": anew})
    assert (memory.value, memory.met, imports.met) == (0.5, True, True)
    shown = table({"figures": [vars(imports)], "measured": {"date": "2026-11-22", "cpus": 2}})
    assert "| 1 processes | 9 processes |" in shown
    memory, imports = memory_figures({"on": anew, "off": forked})
    assert (memory.met, imports.met) == (False, False)


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
