"""Scaling studies on a real Slurm: what decides about the next size is a job, too."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit import Run
from fsdpkit.sweeps.scaling_record import StudyPaths
from fsdpkit.sweeps.scaling_study import advance
from tests.conftest import Completed, answer_of
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import ACCOUNT, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

TRAIN = """
import json, os, time
nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
rate = {1: 1000.0, 2: 1900.0, 3: 2000.0}[nodes]
with open(os.environ["FSDPKIT_TASK_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 11):
        # The first steps are slow: they compile.
        slow = 10 if step < 5 else 1
        line = {"time_s": time.time(), "step": step, "loss": 1.0, "step_time_s": 0.1 * slow,
                "tokens_per_s": rate / slow}
        file.write(json.dumps(line) + chr(10))
"""
"""A job whose speed is known: two nodes are worth 1.9, three hardly more."""


@pytest.fixture
def script(on_slurm: SlurmCluster, isolated_user: Path, tmp_path: Path) -> Path:
    write_bare_template(isolated_user / "centre")
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def wait_for_all(cluster: SlurmCluster) -> None:
    until(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), "the end of all jobs")


BARE = ("--gpus", "1", *ACCOUNT, "--set", "template=bare")


def test_all_sizes_are_measured_and_written_for_a_proposal(
    script: Path, on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    words = ("scale", str(script), "--nodes", "1,3,2", "--name", "mine", *BARE)
    started = answer_of(fsdpkit(*words, "--json"))
    assert [*started["runs"]] == ["weak 1", "weak 2", "weak 3"]
    wait_for_all(on_slurm)
    told = answer_of(fsdpkit("scale", "status", "mine", "--json"))
    assert [one["efficiency"] for one in told["sizes"]] == pytest.approx([1, 0.95, 2 / 3])
    assert [one["predicted_tokens_per_s"] for one in told["sizes"]] == [None] * 3
    assert told["knee"] == {"weak": 2}
    written = answer_of(fsdpkit("scale", "write", "mine", "-o", "proposal", "--json"))
    assert [Path(file).name for file in written["files"]] == [
        "scaling.csv",
        "scaling.tex",
        "scaling.svg",
        "scaling.png",
    ]
    rows = [*csv.DictReader((tmp_path / "proposal" / "scaling.csv").open())]
    assert [float(row["tokens_per_s"]) for row in rows] == [1000, 1900, 2000]
    again = fsdpkit(*words)
    assert again.returncode == 2
    assert "there is a study mine" in again.stderr


def test_a_size_is_submitted_only_if_the_one_before_was_efficient(
    script: Path, on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    words = ("scale", str(script), "--nodes", "1,2,3", *BARE, "--json")
    strict = answer_of(fsdpkit(*words, "--name", "strict", "--bound", "0.96"))
    lax = answer_of(fsdpkit(*words, "--name", "lax", "--bound", "0.9"))
    assert [*strict["runs"]] == [*lax["runs"]] == ["weak 1"]
    wait_for_all(on_slurm)
    told = answer_of(fsdpkit("scale", "status", "strict", "--json"))
    assert [one["run"] is None for one in told["sizes"]] == [False, False, True]
    assert told["stopped"] == {
        "weak": "at 2 nodes the efficiency is 95%, under 96%: larger sizes are not tried"
    }
    told = answer_of(fsdpkit("scale", "status", "lax", "--json"))
    assert [one["state"] for one in told["sizes"]] == ["COMPLETED"] * 3
    # Who comes again submits nothing.
    for study in (strict, lax):
        runs = len([*(tmp_path / "runs").glob("train-*")])
        advance(StudyPaths(Path(study["dir"])))
        assert len([*(tmp_path / "runs").glob("train-*")]) == runs == 5


def test_a_size_that_fails_ends_the_study_and_is_named(
    script: Path, on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed]
) -> None:
    script.write_text(TRAIN.replace("rate =", "assert nodes < 2\nrate ="))
    words = ("scale", str(script), "--nodes", "1,2,3", *BARE, "--bound", "0.5", "--json")
    started = answer_of(fsdpkit(*words))
    wait_for_all(on_slurm)
    told = answer_of(fsdpkit("scale", "status", started["name"], "--json"))
    assert told["stopped"] == {
        "weak": "2 nodes were not measured (FAILED): larger sizes are not tried"
    }
    assert Run.open(told["sizes"][0]["run"], runs=Path(started["dir"]).parents[1]).record.nodes == 1
