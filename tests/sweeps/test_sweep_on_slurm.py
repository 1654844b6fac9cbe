"""Sweeps on a real Slurm: one array a rung, the next behind it, and whatever befalls a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.sweeps.advancing import advance, decide
from fsdpkit.sweeps.record import SweepPaths, decisions, load, write_decision
from fsdpkit.sweeps.results import results
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import ACCOUNT, USERS_LANE, Person, until
from tests.slurm_cluster import SlurmCluster
from tests.sweeps.trials import write_sweep

pytestmark = pytest.mark.slurm

ONE = ("--nodes", "1", "--gpus", "1", *ACCOUNT, "--set", "template=bare")


@pytest.fixture
def home(on_slurm: SlurmCluster, isolated_user: Path, tmp_path: Path) -> Path:
    """Where sweeps are started; their trials need no agents."""
    write_bare_template(isolated_user / "centre")
    return tmp_path


def wait_for_all(cluster: SlurmCluster) -> None:
    """Until the queue is empty, and with it every rung that would follow."""
    until(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), "the end of all jobs")


def status(fsdpkit: Fsdpkit, name: str = "s") -> dict[str, Any]:
    return answer_of(fsdpkit("sweep", "status", name, "--json"))


def steps_done(run: Run, trial: int) -> int:
    return (run.paths.task(trial).dir / "steps").read_text().count("done")


def test_32_trials_are_halved_to_the_best_without_anybody_waiting(
    home: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    # Binary fractions: of two that are as far from the best, neither is nearer by rounding.
    fates = {10: "silent", 11: "diverge", 12: "requeue", 13: "cancel", 19: "fail"}
    file = write_sweep(
        home,
        fates={k / 64: fate for k, fate in fates.items()},
        sampler="grid",
        limit=8,
        parameters={"args": {"x": [k / 64 for k in range(32)]}},
        halving={"rungs": 3, "factor": 3, "resource": "args.steps", "most": 9},
    )
    told = answer_of(fsdpkit("sweep", str(file), *ONE, "--json"))
    assert told["trials"] == [*range(32)]
    wait_for_all(on_slurm)

    paths = SweepPaths(Path(told["dir"]))
    run = Run.open(told["run"], runs=home / "runs")
    first, second = decisions(paths, load(paths), 0)
    # The best is trial 16; of two that are as far from it the lower number goes on.
    assert first.survivors == [16, 15, 17, 14, 18, 12, 20, 21, 22, 9]
    assert second.survivors == [16, 15, 17]
    lost = {one.trial: one.lost for one in first.judged if one.value is None}
    assert sorted(lost) == [10, 11, 13, 19]
    assert "exit" in lost[19]
    assert lost[10] == "it logged no eval_loss"
    assert lost[11] == "the last eval_loss was not finite"
    assert "CANCELLED" in lost[13]
    # Each went on from what it had: nobody did a step twice, and nobody one too many.
    assert [steps_done(run, trial) for trial in (16, 12, 31)] == [9, 3, 1]
    assert [job.array for job in run.record.jobs] == [
        [*range(32)],
        sorted(first.survivors),
        sorted(second.survivors),
    ]
    assert "--array=0-31%8\n" in (run.dir / f"job.{run.record.jobs[0].job_id}.sbatch").read_text()
    # Who comes again finds it decided, and submits nothing.
    assert [step.what for step in advance(paths)] == ["done"]
    assert len(Run.open(run.dir).record.jobs) == 3

    shown = status(fsdpkit)
    assert shown["best"] == 16
    states = {one["trial"]: one["state"] for one in shown["trials"]}
    assert (states[16], states[31], states[19], states[13]) == (
        "COMPLETED",
        "DROPPED",
        "FAILED",
        "CANCELLED",
    )
    best = answer_of(fsdpkit("sweep", "best", "s", "--json"))
    assert best["trial"]["settings"] == {"args.x": 0.25}
    alone = fsdpkit(*best["command"][1:], "--dry-run")
    assert "FSDPKIT_PROGRAM" not in alone.stdout  # the trial's template is that of the sweep
    assert "--x=0.25" in alone.stdout


def test_a_decision_that_was_cut_short_is_carried_out_and_not_made_anew(
    home: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    """The small job dies between writing down who goes on and submitting them."""
    file = write_sweep(
        home,
        sampler="grid",
        parameters={"args": {"x": [0.0, 0.125, 0.25, 0.5]}},
        halving={"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4},
    )
    partition = ["scontrol", "update", "PartitionName=main"]
    on_slurm.run([*partition, "State=DOWN"], check=True)
    try:
        told = answer_of(fsdpkit("sweep", str(file), *ONE, "--json"))
        paths = SweepPaths(Path(told["dir"]))
        (small,) = load(paths).batches[0].next_jobs.values()
        on_slurm.run(["scancel", small])
    finally:
        on_slurm.run([*partition, "State=UP"], check=True)
    wait_for_all(on_slurm)
    record = load(paths)
    decision = decide(record, 0, 1, results(paths, record), jobs_before=1)
    assert decision.survivors == [2, 1]
    # Were it made anew, a number that came late would change it.
    write_decision(paths, 0, decision)
    run = Run.open(told["run"], runs=home / "runs")
    with open(run.paths.task(0).metrics, "a") as metrics:
        metrics.write('{"time_s": 1.0, "step": 2, "eval_loss": -1.0}\n')
    (step,) = advance(paths)
    assert (step.what, step.trials) == ("submitted", (2, 1))
    wait_for_all(on_slurm)
    assert steps_done(run, 2) == 4
    assert [s.what for s in advance(paths)] == ["done"]


def test_cancelling_a_sweep_ends_what_would_go_on_with_it(
    home: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    file = write_sweep(
        home,
        sampler="grid",
        limit=1,
        parameters={"args": {"x": [0.0, 0.125, 0.25, 0.5]}},
        halving={"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4},
    )
    (home / "train.py").write_text("import time\ntime.sleep(600)\n")
    told = answer_of(fsdpkit("sweep", str(file), *ONE, "--json"))
    until(lambda: "RUNNING" in {t["state"] for t in status(fsdpkit)["trials"]}, "a start")
    ended = answer_of(fsdpkit("sweep", "cancel", "s", "--json"))
    assert ended["runs"] == [told["run"]]
    wait_for_all(on_slurm)
    assert {t["state"] for t in status(fsdpkit)["trials"]} == {"CANCELLED"}
    paths = SweepPaths(Path(told["dir"]))
    # By hand, too, there is nobody left to go on.
    assert [(s.what, s.trials) for s in advance(paths)] == [("done", ())]
    none = fsdpkit("sweep", "best", "s", status=66)
    assert "no trial of s" in none.stderr
    assert "eval_loss" in none.stderr


def test_a_sweep_whose_array_was_cancelled_in_the_middle_says_so_and_goes_on_when_resumed(
    home: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    """By `scancel`, so that nothing of ours knew of it: one trial is done, one trains, two wait."""
    file = write_sweep(
        home,
        fates={0.125: "hold"},
        sampler="tpe",
        trials=4,
        limit=1,
        parameters={"args": {"x": [0.5, 0.125, 0.375, 0.0]}},
    )
    text = file.read_text().replace('"tpe"', '"grid"').replace("trials = 4\n", "")
    file.write_text(text)
    told = answer_of(fsdpkit("sweep", str(file), *ONE, "--json"))
    run = Run.open(told["run"], runs=home / "runs")
    until(lambda: (run.paths.task(1).dir / "saved").exists(), "the second trial's checkpoint")
    on_slurm.run(["scancel", told["job_id"]])
    wait_for_all(on_slurm)

    shown = status(fsdpkit)
    assert [t["state"] for t in shown["trials"]] == ["COMPLETED", *["CANCELLED"] * 3]
    assert ["CANCELLED" in t["problem"] for t in shown["trials"]] == [False, True, True, True]
    assert [t["step"] for t in shown["trials"]] == [4, 2, None, None]
    # The one that was cancelled has the better number by now, and not the training behind it.
    assert shown["trials"][1]["value"] is not None
    assert shown["best"] == 0
    assert answer_of(fsdpkit("sweep", "best", "s", "--json"))["trial"]["trial"] == 0
    again = fsdpkit("sweep", "extend", "s", "--trials", "1")
    assert (again.returncode, "a grid is whole" in again.stderr) == (2, True)
    nobody = answer_of(fsdpkit("sweep", "cancel", "s", "--json"))
    assert nobody["runs"] == []

    fsdpkit("resume", run.id, status=0)
    wait_for_all(on_slurm)
    shown = status(fsdpkit)
    assert [t["state"] for t in shown["trials"]] == ["COMPLETED"] * 4
    assert shown["best"] == 1
    # Who was done is not trained again, and who was half done is not begun anew.
    assert [steps_done(run, trial) for trial in range(4)] == [4, 4, 4, 4]
    assert Run.open(run.dir).record.jobs[-1].array == [1, 2, 3]


def test_trials_that_are_added_are_chosen_by_what_came_out_so_far(
    home: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    file = write_sweep(
        home, sampler="tpe", trials=12, seed=3, parameters={"args": {"x": {"uniform": [0.0, 1.0]}}}
    )
    answer_of(fsdpkit("sweep", str(file), *ONE, "--json"))
    wait_for_all(on_slurm)
    second = fsdpkit("sweep", str(file), *ONE)
    assert (second.returncode, "there is a sweep s in" in second.stderr) == (2, True)
    # From anywhere: its paths are those of where it was started.
    (home / "elsewhere").mkdir()
    words = ("sweep", "extend", str(home / "runs/sweeps/s"), "--trials", "12", "--json")
    told = answer_of(fsdpkit(*words, cwd=home / "elsewhere"))
    assert told["trials"] == [*range(12, 24)]
    wait_for_all(on_slurm)
    shown = status(fsdpkit)
    assert [one["state"] for one in shown["trials"]] == ["COMPLETED"] * 24
    distance = [abs(one["settings"]["args.x"] - 0.25) for one in shown["trials"]]
    # Chance would leave both halves as far from the best.
    assert sum(distance[12:]) < 0.6 * sum(distance[:12])
    assert Run.open(told["run"], runs=home / "runs").record.array == [*range(12, 24)]


REAL = """
import argparse, fsdpkit
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--steps", type=int)
told = parser.parse_args()
saved = fsdpkit.task_dir() / "saved"
step = int(saved.read_text()) if saved.exists() else 0
while step < told.steps:
    step += 1
    fsdpkit.log(step, eval_loss=told.x + 1 / step, planned_steps=told.steps)
    saved.write_text(str(step))
"""


@pytest.mark.torch
def test_the_trials_of_a_real_launch_log_go_on_and_are_told_apart(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    """Agents, torchrun and fsdpkit.log, where the others leave them out for the sake of time."""
    file = write_sweep(
        tmp_path,
        sampler="grid",
        parameters={"args": {"x": [0.5, 0.25]}},
        halving={"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4},
    )
    (tmp_path / "train.py").write_text(REAL)
    words = ("--nodes", "1", "--gpus", "1", *ACCOUNT, *COLD)
    told = answer_of(fsdpkit("sweep", str(file), *words, "--json"))
    wait_for_all(on_slurm)
    shown = status(fsdpkit)
    assert [(t["state"], t["rung"], t["step"], t["value"]) for t in shown["trials"]] == [
        ("DROPPED", 0, 2, 1.0),
        ("COMPLETED", 1, 4, 0.5),
    ]
    run = Run.open(told["run"], runs=tmp_path / "runs")
    assert run.paths.task(1).attempts() == [0, 1]


def test_on_the_local_cluster_a_person_takes_the_place_of_the_small_job(
    isolated_user: Path, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    write_bare_template(isolated_user / "config")
    file = write_sweep(
        tmp_path,
        sampler="grid",
        parameters={"args": {"x": [0.5, 0.25]}},
        halving={"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4},
    )
    words = ("--cluster", "local", "--nodes", "1", "--gpus", "1", "--set", "template=bare")
    told = answer_of(fsdpkit("sweep", str(file), *words, "--json"))
    run = Run.open(told["run"], runs=tmp_path / "runs")
    run.wait(poll_s=0.1)
    advised = "a rung is over; who goes on: fsdpkit sweep advance s\n"
    assert advised in fsdpkit("sweep", "status", "s").stdout
    advanced = answer_of(fsdpkit("sweep", "advance", "s", "--json"))
    assert [(b["what"], b["trials"]) for b in advanced["batches"]] == [("submitted", [1])]
    Run.open(run.dir).wait(poll_s=0.1)
    assert advised not in fsdpkit("sweep", "status", "s").stdout
    assert steps_done(run, 1) == 4
    assert answer_of(fsdpkit("sweep", "best", "s", "--json"))["trial"]["trial"] == 1


@USERS_LANE
def test_another_user_can_neither_read_nor_disturb_a_sweep(alex: Person, sam: Person) -> None:
    write_bare_template(alex.home / "centre")
    file = write_sweep(
        alex.home,
        sampler="grid",
        parameters={"args": {"x": [0.5, 0.25]}},
        halving={"rungs": 2, "factor": 2, "resource": "args.steps", "most": 4},
    )
    told = answer_of(alex.fsdpkit("sweep", str(file), *ONE, "--json"))
    directory = Path(told["dir"])
    for words in (
        ("status",),
        ("best",),
        ("cancel",),
        ("advance",),
        ("report", "-o", "-"),
        ("extend", "--trials", "2"),
    ):
        done = sam.fsdpkit("sweep", words[0], str(directory), *words[1:])
        assert done.returncode != 0, words
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stdout == ""
    until(lambda: not alex.cluster.run(["squeue", "-h"]).stdout.strip(), "the end")
    shown = answer_of(alex.fsdpkit("sweep", "status", "s", "--json"))
    assert [(one["state"], one["rung"]) for one in shown["trials"]] == [
        ("DROPPED", 0),
        ("COMPLETED", 1),
    ]
    for path in directory.rglob("*"):
        found = path.lstat()
        assert found.st_uid == directory.stat().st_uid == 61001, path
        assert not found.st_mode & 0o077 or path.suffix == ".log", path
    assert directory.stat().st_mode & 0o777 == directory.parent.stat().st_mode & 0o777 == 0o700
