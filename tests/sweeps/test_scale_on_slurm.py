"""A scaling study on a real Slurm."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.conftest import answer_of
from tests.programs import Fsdpkit
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import ACCOUNT
from tests.slurm_cluster import SlurmCluster
from tests.sweeps.test_sweep_on_slurm import wait_for_all

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


BARE = ("--gpus", "1", *ACCOUNT, "--set", "template=bare")


def test_all_sizes_are_measured_and_written_for_a_proposal(
    script: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    words = ("scale", str(script), *BARE, "--name", "mine", "--nodes")
    started = answer_of(fsdpkit(*words, "1,3", "--json"))
    assert [*started["runs"]] == ["weak 1", "weak 3"]
    added = answer_of(fsdpkit(*words, "2", "--json"))
    assert [*added["runs"]] == ["weak 2"]
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
    again = fsdpkit(*words, "2", status=2)
    assert "study mine has 2 nodes" in again.stderr
