"""The command line pointed at the real cluster, and small training scripts for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Completed, answer_of, require_newest_slurm
from tests.slurm_cluster import SlurmCluster

PROFILE = """
schema = "fsdpkit.site/1"
title = "the test cluster"

[account]
required = true
pattern = 'pas\\d{4}'
find = "sacctmgr -nP show assoc user=$USER format=account,partition"

[node_types.node]
gpus = 4
gpu = "a fake GPU"
cpus = 8

[partitions.main]
node_type = "node"
select = { partition = "main" }
max_nodes = 3
max_time = "1-00:00:00"
preempt = "requeue"

[partitions.high]
node_type = "node"
select = { partition = "high" }
automatic = false

[partitions.short]
node_type = "node"
select = { partition = "short" }
automatic = false

[policy]
requeue = true
"""

# Ranks that only say who they are: launching is what is tested, and torch takes seconds to import.
WHO = """
    import json, os, pathlib
    keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS",
            "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES")
    told = {k: os.environ.get(k) for k in keys}
    told["cpus"] = os.environ.get("SLURM_CPUS_PER_TASK")
    print(json.dumps(told))
"""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("newest_slurm"):
        require_newest_slurm()


@pytest.fixture
def on_slurm(
    slurm_cluster: SlurmCluster, isolated_user: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """This process and all it starts see the real cluster, through a profile of the test's own."""
    profiles = isolated_user / "centre" / "site" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "testbed.toml").write_text(PROFILE)
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(isolated_user / "centre"))
    monkeypatch.setenv("FSDPKIT_CLUSTER", "testbed")
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm_cluster.env()[name])
    yield slurm_cluster
    slurm_cluster.run(["scancel", "--user=root"])
    slurm_cluster.wait_idle()


@pytest.fixture
def submit(
    on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed]
) -> Callable[..., dict[str, Any]]:
    """`fsdpkit submit … --json` with the cluster's account; its answer."""

    def call(*args: str, **kwargs: Any) -> dict[str, Any]:
        words = ["--account", "pas1234", "--time", "15"]
        if "--" in args:
            at = args.index("--")
            args = (*args[:at], *words, "--json", *args[at:])
        else:
            args = (*args, *words, "--json")
        return answer_of(fsdpkit("submit", *args, **kwargs))

    return call


def told_by_ranks(run_dir: str | os.PathLike[str], pattern: str = "attempt-0") -> list[Any]:
    """What the WHO script's ranks printed, in rank order."""
    import json

    files = sorted(
        Path(run_dir).glob(f"{pattern}/rank-*.out"), key=lambda p: int(p.stem.split("-")[1])
    )
    return [json.loads(path.read_text()) for path in files]


def everything_said(run_dir: str | os.PathLike[str]) -> str:
    """All logs of a run, for the message of a failed assertion."""
    top = Path(run_dir)
    logs = [*top.glob("slurm-*.log"), *top.glob("submitit/*log*"), *top.glob("attempt-*/rank-*")]
    return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in logs)
