"""A job trains and is followed to its end where its own Python has no submitit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.runs.layout import RunPaths
from tests.conftest import COLD, Completed

Command = Callable[..., Completed]


@pytest.mark.torch
@pytest.mark.parametrize(("status", "state"), [(0, "COMPLETED"), (7, "FAILED")])
def test_only_submitit_s_own_results_are_missing(
    fsdpkit: Command, tmp_path: Path, status: int, state: str
) -> None:
    blocked = tmp_path / "blocked" / "submitit" / "__init__.py"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("raise ImportError('not for this Python')\n")
    without = ("--set", f"environment.variables.PYTHONPATH={blocked.parent.parent}")
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys\nprint(os.environ['RANK'])\nsys.exit({status})\n")
    shape = ("--cluster", "local", "--nodes", "2", "--gpus", "1", "--time", "15", "--wait")
    fsdpkit(
        "submit", str(script), *shape, *COLD, *without, "--set", "retry.restarts=0", status=status
    )
    (run,) = (tmp_path / "runs").iterdir()
    told = json.loads(fsdpkit("status", str(run), "--json").stdout)
    assert state in json.dumps(told)
    attempt = RunPaths(run).task().attempt(0)
    assert [attempt.rank_file(r, "out", 0).read_text() for r in (0, 1)] == ["0\n", "1\n"]
    assert not list(RunPaths(run).submitit.glob("*_result.pkl"))
