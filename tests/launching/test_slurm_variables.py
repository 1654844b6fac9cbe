"""Ranks see Slurm's variables as under srun with one task for each."""

from __future__ import annotations

import os

import pytest

from fsdpkit.launching.fork_safety import of_ranks, of_ranks_among, reads_of_variables
from fsdpkit.launching.slurm_variables import NAMES, of_rank

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
RANK |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}


def test_rank_size_and_share_of_the_node_are_those_of_the_rank() -> None:
    found = of_rank(RANK, AGENT, ["n1", "n2"])
    assert (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NODEID"]) == ("6", "2", "1")
    assert found["SLURM_NTASKS"] == found["SLURM_NPROCS"] == "8"
    assert (found["SLURM_NTASKS_PER_NODE"], found["SLURM_TASKS_PER_NODE"]) == ("4", "4(x2)")
    assert (found["SLURM_CPUS_PER_TASK"], found["SLURM_GTIDS"]) == ("4", "4,5,6,7")
    assert "SLURM_JOB_NODELIST" not in found


def test_the_address_that_scripts_take_for_rank_0_s_is_its() -> None:
    """srun's is the node it ran on, which may be a spare one by now."""
    agent = {**AGENT, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"}
    assert of_rank(RANK, agent, ["n1", "n2"])["SLURM_LAUNCH_NODE_IPADDR"] == "10.0.0.1"


def test_standby_nodes_are_not_in_the_rank_s_world() -> None:
    found = of_rank(RANK, {**AGENT, "SLURM_NNODES": "3"}, ["n1", "n3"])
    assert (found["SLURM_NNODES"], found["SLURM_JOB_NODELIST"]) == ("2", "n1,n3")


def test_other_launchers_variables_are_corrected_only_where_they_are_set() -> None:
    assert "PMI_RANK" not in of_rank(RANK, AGENT, ["n1", "n2"])
    found = of_rank(RANK, {**AGENT, "PMI_RANK": "1", "PMI_SIZE": "2"}, ["n1", "n2"])
    assert (found["PMI_RANK"], found["PMI_SIZE"]) == ("6", "8")


def test_outside_of_a_job_nothing_is_set() -> None:
    assert of_rank(RANK, {}, ["n1"]) == {}


def test_they_are_no_reason_to_start_a_rank_anew() -> None:
    assert all(of_ranks(name) for name in NAMES)


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
