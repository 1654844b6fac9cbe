"""`fsdpkit check` on a real Slurm cluster: what is right, what is wrong, which node is slow."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs.avoided_nodes import avoided
from tests.conftest import Completed
from tests.json_answers import checked
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import WHO, everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

ACCOUNT = ("--account", "pas1234")


def outcomes(done: Completed) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in checked(done.stdout)["checks"]}


def test_a_login_node_in_order_passes_every_check(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    done = fsdpkit("check", *ACCOUNT, "--json")
    found = outcomes(done)
    assert done.returncode == 0, [f for f in found.values() if f["outcome"] != "ok"]
    # The test's directory lies on a local disk, and the check says so; a busy one is slow, too.
    about_the_disk = ("file system", "disk speed")
    assert {name: f["outcome"] for name, f in found.items() if name not in about_the_disk} == {
        **dict.fromkeys(("site and job", "slurm", "account", "partition", "script"), "ok"),
        **dict.fromkeys(("environment", "disk space", "clock"), "ok"),
    }
    assert found["disk speed"]["outcome"] in ("ok", "warning")
    assert "pas1234" in found["account"]["told"]
    assert "3 IDLE" in found["partition"]["told"]
    assert "torch 2." in found["environment"]["told"]
    assert list(tmp_path.iterdir()) == []
    assert on_slurm.run(["squeue", "-h"], check=True).stdout == ""


def test_what_is_wrong_is_told_with_its_remedy_and_the_other_checks_still_run(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    on_slurm.run(["scontrol", "update", "PartitionName=short", "State=DOWN"], check=True)
    try:
        words = ("--account", "pas9999", "--partition", "short")
        venv = ("--set", "environment.venv=/nowhere")
        done = fsdpkit("check", *words, *venv, "--json")
    finally:
        on_slurm.run(["scontrol", "update", "PartitionName=short", "State=UP"], check=True)
    found = outcomes(done)
    assert done.returncode == 78
    assert {name for name, f in found.items() if f["outcome"] == "failed"} == {
        *("account", "partition", "script", "environment"),
    }
    assert "pas9999" in found["account"]["told"]
    assert "--account pas1234" in found["account"]["told"]
    assert "short is DOWN" in found["partition"]["told"]
    assert "no Python in /nowhere" in found["environment"]["told"]
    assert found["disk speed"]["outcome"] in ("ok", "warning")


@contextlib.contextmanager
def slow_network(cluster: SlurmCluster, node: str) -> Iterator[None]:
    """What leaves the node passes a bucket of 50 MB/s."""
    tbf = ["tbf", "rate", "400mbit", "burst", "64kb", "latency", "100ms"]
    made = cluster.node_exec(node, ["tc", "qdisc", "add", "dev", "eth0", "root", *tbf])
    assert made.returncode == 0, made.stderr
    try:
        yield
    finally:
        cluster.node_exec(node, ["tc", "qdisc", "del", "dev", "eth0", "root"])


def test_a_node_with_a_slow_network_is_named_and_avoided(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    with slow_network(on_slurm, "node2"):
        done = fsdpkit("check", "--nodes", "3", "--gpus", "2", *ACCOUNT, "--avoid", timeout_s=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "node2 is slow" in done.stdout
    for good in ("node1", "node3"):  # they may compute slowly, on a machine that does other things
        assert f"{good} is slow: all-reduces with its best" not in done.stdout
    assert "--set resources.exclude=" in done.stdout
    assert "node2" in {each.node for each in avoided(tmp_path / "runs", 0.0)}
    rows = [line for line in done.stdout.splitlines() if line.startswith("node") and "of" in line]
    assert len(rows) == 3, done.stdout
    (measured,) = tmp_path.glob("runs/check-*/attempt-0/check.json")
    nodes = json.loads(measured.read_text())["nodes"]
    assert [node["name"] for node in nodes] == ["node1", "node2", "node3"]
    assert [len(node["ranks"]) for node in nodes] == [2, 2, 2]
    assert all(abs(node["clock_offset_s"]) <= node["clock_error_s"] + 0.01 for node in nodes)
    assert all(node["unresolved"] == [] for node in nodes)


@contextlib.contextmanager
def without_torch(cluster: SlurmCluster, node: str) -> Iterator[None]:
    """On that node alone, an empty directory stands where torch is."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (torch,) = spec.submodule_search_locations
    made = cluster.node_exec(node, ["mount", "-t", "tmpfs", "tmpfs", torch])
    assert made.returncode == 0, made.stderr
    try:
        yield
    finally:
        cluster.node_exec(node, ["umount", torch])


def test_a_node_that_fails_its_preflight_is_named_as_broken(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit
) -> None:
    with without_torch(on_slurm, "node2"):
        done = fsdpkit("check", "--nodes", "2", "--gpus", "1", *ACCOUNT, timeout_s=300)
    assert done.returncode == 78, done.stderr + done.stdout
    assert re.search("node2 is broken.*torch", done.stdout)
    assert "--set resources.exclude=node2" in done.stdout
    assert "node1 is" not in done.stdout


def test_a_training_leaves_such_a_node_out_and_goes_on(
    on_slurm: SlurmCluster, submit: Submit, write_script: Write
) -> None:
    script = str(write_script("who.py", WHO))
    with without_torch(on_slurm, "node2"):
        answer = submit(script, "--nodes", "2", "--gpus", "1", warm=True)
        job = on_slurm.wait_job(answer["job_id"], 400, ["COMPLETED", "FAILED"])
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), everything_said(answer["dir"])
    assert job["NodeList"] == "node[1,3]"
    ending = json.loads((Path(answer["dir"]) / "attempt-0" / "ending.json").read_text())
    assert (ending["action"], ending["avoid"]) == ("requeue", ["node2"])
