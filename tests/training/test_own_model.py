"""The page that people copy: a decoder-only model on `fsdpkit.training`."""

from __future__ import annotations

import re

import pytest
from launch import REPOSITORY, run_ranks

from fsdpkit.runs.checkpoints import checkpoints_in, describe
from fsdpkit.runs.layout import TaskPaths

pytestmark = pytest.mark.torch
SCRIPT = REPOSITORY / "examples" / "own-model" / "train.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskPaths, str]:
    """Twenty steps on two ranks, then on to thirty on one."""
    paths = TaskPaths(tmp_path_factory.mktemp("own"))
    said = ""
    for ranks, steps in ((2, "20"), (1, "30")):
        done = run_ranks(ranks, SCRIPT, steps, FSDPKIT_TASK_DIR=str(paths.dir), status=0)
        said += done.stdout
    return paths, said


def test_it_learns_and_goes_on_at_another_number_of_ranks(trained):
    paths, said = trained
    of_step = {int(s): float(x) for s, x in re.findall(r"step (\d+)  loss ([\d.]+)", said)}
    assert sorted(of_step) == [10, 20, 30]
    assert of_step[30] < of_step[20] < of_step[10] < 5.5
    progress = describe(paths.checkpoints / "step-30").progress
    assert (progress["epoch"], progress["position"]) == (0, 20 * 16 + 10 * 8)


def test_it_saves_when_it_is_asked_to(tmp_path):
    paths = TaskPaths(tmp_path)
    paths.save_requested.touch()
    run_ranks(1, SCRIPT, "3", FSDPKIT_TASK_DIR=str(tmp_path), status=0)
    assert [path.name for path in checkpoints_in(paths.checkpoints)] == ["step-1", "step-3"]
    assert not paths.save_requested.exists()
