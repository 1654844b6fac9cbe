"""A node's agent around the ranks: the submission's pickle, which it does not open, submitit's
result, and what ranks leave behind."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import psutil

from fsdpkit.runs.layout import SUBMISSION_PICKLE
from tests.conftest import Completed
from tests.programs import ran


class Planted:
    """Makes a directory where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.marker,)


def test_code_that_was_planted_in_it_does_not_run(tmp_path: Path) -> None:
    folder, marker = tmp_path / "submitit", tmp_path / "marker"
    folder.mkdir()
    planted = pickle.dumps(Planted(marker))
    for name in (SUBMISSION_PICKLE, "77_submitted.pkl", "77_0_submitted.pkl"):
        (folder / name).write_bytes(planted)
    done = agent(folder, RUNS)
    assert "the agent is called as" in done.stderr  # it came as far as its own function
    assert not marker.exists()


def test_a_result_that_cannot_be_written_is_no_failure_of_the_training(tmp_path: Path) -> None:
    """The directory is removed, or its disk filled, while the ranks train."""
    folder = tmp_path / "submitit"
    folder.mkdir()
    (folder / SUBMISSION_PICKLE).touch()
    trained = (
        "import shutil; from fsdpkit.launching import task; "
        f"task.LaunchNode.__call__ = lambda self: shutil.rmtree({str(folder)!r}) or {{}}; "
    )
    done = agent(folder, trained + RUNS)
    assert done.returncode == 0, done.stderr
    assert "result cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_training_that_failed_is_the_agent_s_own_status_and_word(tmp_path: Path) -> None:
    folder = tmp_path / "submitit"
    folder.mkdir()
    (folder / SUBMISSION_PICKLE).touch()
    failed = (
        "from fsdpkit.launching import task\n"
        "from fsdpkit.launching.node_failure import TrainingEnded\n"
        "def fails(self): raise TrainingEnded('rank 1: it failed', 7)\n"
        "task.LaunchNode.__call__ = fails\n"
    )
    done = agent(folder, failed + RUNS)
    assert done.returncode == 7
    assert "rank 1: it failed" in done.stderr


def test_it_runs_where_fsdpkit_is_on_the_path_only(tmp_path: Path) -> None:
    """Not installed, so that no package's record names submitit's plugin."""
    folder = tmp_path / "submitit"
    folder.mkdir()
    (folder / SUBMISSION_PICKLE).touch()
    bare = (
        "from importlib import metadata; "
        "metadata.entry_points = lambda **_: metadata.EntryPoints(); "
        "from fsdpkit.launching import task; task.LaunchNode.__call__ = lambda self: {}; "
    )
    done = agent(folder, bare + RUNS)
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("*result*")), "submitit's result is there, too"


def test_what_a_cold_rank_leaves_in_a_session_of_its_own_ends_with_the_agent(
    tmp_path: Path,
) -> None:
    folder, noted = tmp_path / "submitit", tmp_path / "pid"
    folder.mkdir()
    (folder / SUBMISSION_PICKLE).touch()
    leaves = ["setsid", "sh", "-c", f"sleep 300 >/dev/null 2>&1 & echo $! > {noted}"]
    program = (
        "import subprocess; from fsdpkit.launching import task; "
        f"task.LaunchNode.__call__ = lambda self: subprocess.run({leaves!r}) and {{}}; "
    )
    assert agent(folder, program + RUNS).returncode == 0
    assert not psutil.pid_exists(int(noted.read_text()))


RUNS = "import sys; from fsdpkit.launching.agent import run_agent; sys.exit(run_agent())"


def agent(folder: Path, program: str) -> Completed:
    """A node's agent, called with what it does not understand."""
    return ran(
        [sys.executable, "-c", program, "what", "it", "is", "called", "with"],
        env={
            **os.environ,
            "SUBMITIT_EXECUTOR": "fsdpkit",
            "SUBMITIT_FOLDER": str(folder),
            "SLURM_JOB_ID": "77",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_NTASKS": "1",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_JOB_NODELIST": "node1",
        },
        timeout=120,
    )
