"""Ranks see Slurm's variables as under srun with one task for each."""

from __future__ import annotations

import os

import pytest

from fsdpkit.launching.fork_safety import of_ranks_among, reads_of_variables
from fsdpkit.launching.slurm_variables import of_rank

AGENT = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "16",
    "SLURM_JOB_NODELIST": "n[1-2]",
}
RANK = {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
RANK |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}


def test_rank_size_and_share_of_the_node_are_those_of_the_rank() -> None:
    found = of_rank(RANK, AGENT, ["n1", "n2"])
    assert (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NODEID"]) == ("6", "2", "1")
    assert found["SLURM_NTASKS"] == found["SLURM_NPROCS"] == "8"
    assert (found["SLURM_NTASKS_PER_NODE"], found["SLURM_TASKS_PER_NODE"]) == ("4", "4(x2)")
    assert (found["SLURM_CPUS_PER_TASK"], found["SLURM_GTIDS"]) == ("4", "4,5,6,7")
    assert "SLURM_JOB_NODELIST" not in found


def test_a_copy_of_the_agent_s_environment_reads_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tqdm, which torch imports, looks through the whole environment."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    before = dict(os.environ)
    with reads_of_variables() as reads:
        dict(os.environ.items())
    assert (of_ranks_among(reads, before), os.environ["SLURM_PROCID"]) == ([], "1")
    with reads_of_variables() as reads:
        os.environ.get("SLURM_PROCID")
    assert of_ranks_among(reads, before) == ["SLURM_PROCID"]
