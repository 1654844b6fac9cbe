"""A laptop and a Python prompt on a real Slurm cluster: `fsdpkit --host` and `fsdpkit.run`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import fsdpkit
from fsdpkit.runs.store import all_runs
from tests.remote.login_node import login_node, why_not
from tests.slurm.conftest import everything_said, write_profile
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

# Rank 5 is killed in the first launch; the ranks then start again in the same allocation.
TRAIN = """
import os, pathlib, signal, sys
mark = pathlib.Path(os.environ["FSDPKIT_TASK_DIR"]) / "killed"
if os.environ["RANK"] == "5" and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
import module
print(module.WORDS, sys.argv[1:])
"""


def test_a_laptop_s_tree_trains_on_two_nodes_through_a_killed_rank(
    on_slurm: SlurmCluster, tmp_path: Path
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    work = tmp_path / "my work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    (work / "module.py").write_text("WORDS = 'of the laptop'\n")
    kept = {name: value for name, value in on_slurm.env().items() if name.startswith("SLURM")}
    environ = {**kept, **write_profile(tmp_path), "PATH": os.environ["PATH"]}
    with login_node(environ) as node:
        words = ("--nodes", "2", "--gpus", "4", "--account", "pas1234", "--time", "15")
        words += ("--set", "launch.warm=off", "--set", "retry.backoff_s=1", "--follow")
        done = node.fsdpkit(
            "--host", "behind", "submit", "train.py", *words, "--", "it's", cwd=work
        )
        (run_dir,) = all_runs(node.home / "runs")
        assert done.returncode == 0, done.stderr + everything_said(run_dir)
        assert """of the laptop ["it's"]""" in done.stdout
        assert "COMPLETED" in done.stderr
        said = node.fsdpkit("--host", "behind", "status", run_dir.name, "--json").stdout
        assert '"COMPLETED"' in said
        assert node.fsdpkit("--host", "behind", "report", "-o", "it.html").returncode == 0
        assert "rank 5" in (node.laptop / "it.html").read_text()
        assert node.jump.logins() == 1


def test_a_function_returns_from_every_rank_or_the_first_failure_is_raised(
    on_slurm: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def rank(told: str) -> tuple[int, str, str]:
        print(told)
        return int(os.environ["RANK"]), os.environ["SLURMD_NODENAME"], told

    def one_is_killed(which: str) -> None:
        if os.environ["RANK"] == which:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    options: dict[str, Any] = {"account": "pas1234", "time": "15", "nodes": 2, "gpus": 2}
    options["sets"] = ["launch.warm=off"]
    found = fsdpkit.run(rank, "it's", **options)
    assert found == [(n, f"node{1 + n // 2}", "it's") for n in range(4)]
    assert "COMPLETED" in capsys.readouterr().err
    (run_dir,) = all_runs(tmp_path / "runs")
    assert fsdpkit.Run.open(run_dir).returned() == found
    with pytest.raises(fsdpkit.FunctionError) as raised:
        fsdpkit.run(one_is_killed, "3", **options)
    assert raised.value.rank == 3
    assert "SIGKILL" in str(raised.value)
