"""`fsdpkit logs` of runs on a real Slurm cluster, with ranks that are small scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpkit import Run
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import Finished, everything_said, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

TALKS = """
    import os, pathlib, sys, time

    attempt = pathlib.Path(os.environ["FSDPKIT_ATTEMPT_DIR"]).name
    for number in range(20):
        print(attempt, number, "of", os.environ["RANK"], flush=True)
        time.sleep(0.02)
    if attempt == "attempt-0":
        sys.stdout.write("no end")
        sys.stdout.flush()
        time.sleep(600)
"""


def test_follow_goes_over_a_requeue_prints_each_line_once_and_ends_by_itself(
    submit: Submit, write_script: Write, on_slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = str(write_script("talks.py", TALKS))
    run = Run.open(submit(script, "--nodes", "2", "--gpus", "1")["dir"])
    with open(tmp_path / "followed", "w+", encoding="utf-8") as out:
        words = ["logs", str(run.dir), "--all", "--follow"]
        following = subprocess.Popen(
            [sys.executable, "-m", "fsdpkit", *words], stdout=out, env=os.environ
        )
        try:
            outputs = [run.dir / f"attempt-0/rank-{rank}.out" for rank in (0, 1)]
            until(lambda: all(path.exists() and b"no end" in path.read_bytes() for path in outputs))
            on_slurm.run(["scontrol", "requeue", str(run.job_id)], check=True)
            assert following.wait(timeout=600) == 0, everything_said(run.dir)
        finally:
            following.kill()
            following.wait()
        out.seek(0)
        lines = out.read().splitlines()
    state = run.state()
    assert state is not None
    assert state.succeeded, everything_said(run.dir)
    for rank in (0, 1):
        both = [f"attempt-{n} {number} of {rank}" for n in (0, 1) for number in range(20)]
        both.insert(20, "no end")
        mine = [line.removeprefix(f"rank {rank} │ ") for line in lines]
        assert [line for line in mine if not line.startswith("rank ")] == both
    assert len(lines) == 82


def test_errors_name_the_rank_that_failed_first(
    failed_run: Finished, on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    """A25, without an error file."""
    told = fsdpkit("logs", str(failed_run.dir), "--errors").stdout.splitlines()
    assert told[:4] == [
        "attempt 0, launch 0",
        "  rank 3 on node2: exit status 3",
        "      the walrus is on fire",
        "      (attempt-0/rank-3.err)",
    ]
