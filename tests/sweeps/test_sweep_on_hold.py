"""A sweep's trials on a hold of the local cluster: side by side, interrupted, gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fsdpkit
from fsdpkit import Run
from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.sweeps.on_hold import left
from fsdpkit.sweeps.record import SweepPaths, decisions, load
from fsdpkit.sweeps.results import Result, results
from tests.programs import Fsdpkit, until
from tests.sweeps.trials import write_sweep

pytestmark = pytest.mark.local

HALVED = {"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4}


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    run = fsdpkit.submit("hold", nodes=2, gpus=1, cluster="local", time="20")
    until(lambda: all(run.paths.busy(node).exists() for node in range(2)))
    yield run
    run.cancel(save=True)
    run.wait(poll_s=0.2)


def trials_of(name: str) -> dict[int, Result]:
    paths = sweep(name)
    return {one.trial: one for one in results(paths, load(paths))}


def sweep(name: str) -> SweepPaths:
    return SweepPaths(Path("runs/sweeps").absolute() / name)


def steps_done(one: Result) -> int:
    return Path("runs", one.run, "steps").read_text().count("done")


def test_trials_on_a_hold(hold: Run, tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    # Each on one of its nodes; then the best half goes on from what it has.
    values = {"args": {"x": [0.0, 0.125, 0.25, 0.5]}}
    fates = {0.0: "pair", 0.125: "pair", 0.5: "fail"}
    write_sweep(tmp_path, fates=fates, sampler="grid", parameters=values, halving=HALVED)
    on_it = ("--cluster", "local", "--on", hold.id)
    fsdpkit("sweep", "s.toml", "--nodes", "1", *on_it, status=0)
    (decision,) = decisions(sweep("s"), load(sweep("s")), 0)
    assert decision.survivors == [2, 1]
    found = trials_of("s")
    states = ["DROPPED", "COMPLETED", "COMPLETED", "FAILED"]
    assert [one.state for one in found.values()] == states
    assert [steps_done(one) for one in found.values()] == [2, 4, 4, 2]
    runs = [Run.open(Path("runs") / one.run) for one in found.values()]
    assert {run.record.on for run in runs} == {hold.id}

    # One at a time, as the file says. Ctrl-C ends the one that runs.
    write_sweep(tmp_path, "i", fates={0.125: "hold"}, sampler="grid", limit=1, parameters=values)
    argv = [sys.executable, "-m", "fsdpkit", "sweep", "i.toml", "--nodes", "1", *on_it]
    going = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    until(sweep("i").record.exists)
    until(lambda: [one.step for one in trials_of("i").values()][1:2] == [2])
    going.send_signal(signal.SIGINT)
    going.wait()
    found = trials_of("i")
    assert [one.state for one in found.values()] == ["COMPLETED", "CANCELLED", "PENDING", "PENDING"]
    assert left(sweep("i")) == [1, 2, 3]
    state = hold.state()
    assert state is not None
    assert state.phase == "running"
    # What the hold gives no more, the queue does; what is done is not done again.
    assert fsdpkit("sweep", "cancel", "i").returncode == 0
    assert left(sweep("i")) == []
    fsdpkit("release", hold.id)
    gone = fsdpkit("sweep", "advance", "i", "--on", hold.id, status=STOPPED_EARLY)
    assert "trials that are left: 1-3" in gone.stderr
    assert fsdpkit("sweep", "advance", "i").returncode == 0
    until(lambda: all(one.over for one in trials_of("i").values()))
    found = trials_of("i")
    assert {one.state for one in found.values()} == {"COMPLETED"}
    assert [steps_done(one) for one in found.values()] == [4, 4, 4, 4]
