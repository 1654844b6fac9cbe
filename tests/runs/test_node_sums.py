"""What nodes' samples add up to, for an account kept by hand; and hints that rest on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.reporting.worth import Hint, figures, hints
from fsdpkit.runs.account import Account, Measured, SeenJobs
from fsdpkit.runs.accounting import accounts_of
from fsdpkit.runs.history import history_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.uses import Uses
from fsdpkit.scheduling.run import Run
from tests.reporting.made_run import JOB, T0, ends, launches, made_run, starts, trains, write_lines

GIB = 1 << 30


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_run(tmp_path / "made-20260101-000000-0000")


def sampled(
    task: TaskPaths,
    node: int,
    begin_s: float,
    until_s: float,
    *,
    busy: float = 0.5,
    gpus: int = 2,
    every_s: float = 10.0,
    launch: int = 0,
    loading: float | None = None,
    **sums: Any,
) -> None:
    """A node's lines, of GPUs that are busy for that share of the time; `loading` likewise."""
    passed_s = every_s
    while begin_s + passed_s <= until_s:
        gpu = {"name": "NVIDIA H100", "observed_s": passed_s, "busy_s": busy * passed_s}
        gpu |= {"active_s": busy * passed_s / 2, "energy_j": 100 * passed_s}
        gpu |= {"memory_peak_bytes": 11 * GIB, "memory_total_bytes": 80 * GIB}
        told = {"since_s": begin_s, "observed_s": passed_s, "cpu_s": 2 * passed_s, "cores": 8}
        line: dict[str, Any] = {"time_s": begin_s + passed_s, "launch": launch}
        line["sums"] = {**told, "gpus": [gpu] * gpus, **sums}
        if loading is not None:  # of all launches, as the line of a launch that has ended tells it
            line["sums"]["loading_s"] = loading * passed_s
        write_lines(task.attempt(0).node_samples(node), line)
        passed_s += every_s


def account(run: Run, running: bool = False) -> Account:
    jobs = (JOB,) if running else ()
    history = history_of(run.paths, run.record)
    (found,) = accounts_of(history, run.record, SeenJobs(jobs), T0 + 110)
    assert sum(found.used_s.values()) == pytest.approx(found.granted_s)
    assert all(node_s > 0 for node_s in found.used_s.values())
    return found


def trained(run: Run, **fields: Any) -> TaskPaths:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    ends(task, 0, trains(task, 1, 100, T0 + 10, **fields))
    return task


def test_the_newest_line_of_each_node_is_its_account(run: Run) -> None:
    task = trained(run)
    sampled(task, 0, T0, T0 + 110, memory_peak_bytes=9 * GIB, memory_total_bytes=64 * GIB)
    sampled(task, 1, T0, T0 + 50, busy=0.1)  # it was killed then
    found = account(run)
    assert found.gpu == "NVIDIA H100"
    assert found.measured == Measured(
        gpu_s=2 * (110 + 50),
        busy_s=2 * (55 + 5.0),
        active_s=55 + 5.0,
        energy_j=2 * (11_000 + 5_000),
        gpu_memory_bytes=11 * GIB,
        gpu_memory_total_bytes=80 * GIB,
        memory_bytes=9 * GIB,
        memory_total_bytes=64 * GIB,
        cpu_s=2 * 160,
        core_s=8 * 160,
        nodes=2,
    )
    assert Uses([found]).row.busy_share == pytest.approx(60 * 2 / 320)
    assert Uses([found]).kwh == pytest.approx(32_000 / 3.6e6)
    assert ("GPU memory, at most", "11.0 of 80 GiB") in figures(Uses([found]))


def test_loading_that_a_script_does_not_log_is_the_samples(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    trains(task, 1, 40, T0 + 10)
    launches(task, 0, T0 + 60, 1)
    ends(task, 0, trains(task, 41, 90, T0 + 60))
    sampled(task, 0, T0 + 10, T0 + 110, launch=1, loading=0.3)
    found = account(run)
    assert found.used_s["loading"] == pytest.approx(100 * 0.3, rel=0.05)
    assert found.used_s["training"] == pytest.approx(2 * 90 - 100 * 0.3, rel=0.05)


def test_a_program_without_steps_whose_gpus_do_nothing_does_not_use_them(run: Run) -> None:
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    ends(task, 0, T0 + 110)
    for node in (0, 1):
        sampled(task, node, T0, T0 + 110, busy=0.25, loading=0.1)
    found = account(run)
    assert found.used_s["startup"] == 20
    assert found.used_s["loading"] == pytest.approx(22)
    assert found.used_s["unused"] == pytest.approx(2 * (0.75 * 110 - 10) - 22)
    assert Uses([found]).share("training") is None  # not nothing: it is not known
    task.attempt(0).ending.unlink()
    assert account(run, running=True).used_s == {"startup": 220}


@pytest.mark.parametrize("number", [-1, 1e9, 1e17, "1e999", "x", None, [1], 2**70])
def test_numbers_that_nothing_can_have_used_are_not_believed(run: Run, number: Any) -> None:
    file = trained(run).attempt(0).node_samples(0)
    for name in ("observed_s", "busy_s", "active_s", "energy_j"):
        gpu = {"observed_s": 50.0, "busy_s": 50.0, name: number}
        sums = {"since_s": T0, "observed_s": 50.0, "gpus": [gpu] * 9}
        line = {"time_s": T0 + 50, "loading_s": 9e9, "launch": 0, "sums": sums}
        write_lines(file, json.dumps(line).replace('"1e999"', "1e999"), "\n")
        measured = account(run).measured or Measured()
        assert measured.gpu_s <= 2 * 110
        assert max(measured.busy_s or 0, measured.active_s or 0) <= measured.gpu_s


JOB_FILE = {
    "resources": {"memory": "64G", "cpus_per_gpu": 8},
    "training": {"data": {"workers": 2}},
}


def steady(**changes: Any) -> Account:
    """Two nodes for an hour, of which nothing is odd."""
    measured: dict[str, Any] = {
        "gpu_s": 14400.0,
        "busy_s": 13000.0,
        "nodes": 2,
        "cpu_s": 30e3,
        "core_s": 115e3,
    }
    measured |= {"gpu_memory_bytes": 70 * GIB, "gpu_memory_total_bytes": 80 * GIB}
    measured |= {"memory_bytes": 50 * GIB, "memory_total_bytes": 64 * GIB}
    measured |= {name: changes.pop(name) for name in list(changes) if name in measured}
    told = {"used_s": {"training": 7000.0, "startup": 200.0}, "asked_s": 5000.0, **changes}
    fixed = {"attempt": 0, "began_s": T0, "ended_s": T0 + 3600, "nodes": 2, "gpus": 2}
    return Account(**{**fixed, "measured": Measured(**measured), **told})


ODD: list[tuple[dict[str, Any], str]] = [
    ({"gpu_memory_bytes": 11 * GIB}, "11.0 of 80 GiB"),
    ({"used_s": {"training": 5000.0, "loading": 2000.0, "startup": 200.0}}, "29%"),
    ({"used_s": {"training": 5000.0, "waiting": 2000.0, "startup": 200.0}}, "29%"),
    ({"used_s": {"unused": 6000.0, "unknown": 1200.0}}, "83%"),
    ({"used_s": {"loading": 2400.0, "unknown": 4800.0}}, "33%"),
    ({"memory_bytes": 6 * GIB}, "6.0 of 64 GiB"),
    ({"cpu_s": 10e3}, "9%"),
    ({"asked_s": 86400.0}, "24 h 00 min, took 60 min"),
]


@pytest.mark.parametrize(("changes", "number"), ODD)
def test_a_hint_states_the_numbers_that_it_rests_on(changes: dict[str, Any], number: str) -> None:
    assert hints([steady()], JOB_FILE, done=True) == []
    (found,) = hints([steady(**changes)], JOB_FILE, done=True)
    assert number in found.measured
    assert found.then


@pytest.mark.parametrize("changes", [changes for changes, _ in ODD])
def test_in_doubt_there_is_no_hint(changes: dict[str, Any]) -> None:
    def found(job: dict[str, Any] = JOB_FILE, done: bool = True, **more: Any) -> list[Hint]:
        return hints([steady(**{**changes, **more})], job, done=done)

    assert found(measured=None) == []
    assert found(nodes=1) == []  # samples of the other are missing
    assert found(gpu_s=2000.0) == []  # too few
    assert found(used_s={"startup": 6000.0, "training": 600.0, "lost": 600.0}) == []
    if "asked_s" in changes:
        assert found(done=False) == []
    if "memory_bytes" in changes or "cpu_s" in changes:
        assert found(job={}) == []
