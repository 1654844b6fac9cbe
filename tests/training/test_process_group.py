"""Joining and leaving: what the launcher's cases A27 and A51 promise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launch import EXAMPLE, RANKS, environment, run_ranks


@pytest.mark.torch
def test_a27_ten_runs_of_four_ranks_leave_together_with_status_0(tmp_path):
    for repetition in range(10):
        done = run_ranks(4, RANKS / "teardown.py", str(tmp_path / f"mark-{repetition}"))
        assert done.returncode == 0, f"run {repetition}: {done.stdout[-3000:]}"


@pytest.mark.torch
def test_a51_slurm_variables_do_not_make_a_rank():
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "fsdp_t5.py")],
        env=environment(**slurm), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "RANK" in done.stderr
    assert "torchrun --standalone --nproc-per-node 2" in done.stderr


@pytest.mark.torch
def test_a_rank_does_not_end_while_gloo_holds_a_message(tmp_path):
    done = run_ranks(2, RANKS / "late_release.py", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:]
