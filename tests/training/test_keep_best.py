"""A run's best checkpoint: saved when it is measured, kept, found again after a resume."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from fsdpkit.config.training import CheckpointSettings, load_settings, problems
from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoints import checkpoints_in, step_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.best_checkpoint import BestSoFar
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.progress import Progress

pytestmark = pytest.mark.usefixtures("process_group")
ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
KEEP = CheckpointSettings(keep_last=1, keep_best="eval_loss", background=False)


def checkpointer(folder: Path, settings: CheckpointSettings = KEEP) -> Checkpointer:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Checkpointer(TaskPaths(folder), ALONE, model, optimizer, settings)


def steps_in(folder: Path) -> list[int | None]:
    return [step_of(path) for path in checkpoints_in(TaskPaths(folder).checkpoints)]


@pytest.mark.torch
def test_numbers_of_the_same_step_are_noted_together_and_what_is_none_is_not():
    best = BestSoFar(KEEP)
    best.measured(3, {"step": 3, "loss": 2, "lr": math.inf, "slowest": "n1"})
    best.measured(3, {"eval_loss": 1.5})
    assert best.measured_at(3) == {"loss": 2.0, "eval_loss": 1.5}
    assert best.measured_at(2) == {}
    best.measured(4, {"loss": 1.0})
    assert best.measured_at(4) == {"loss": 1.0}


@pytest.mark.torch
def test_an_evaluation_that_is_the_best_so_far_asks_for_a_save_and_is_kept(tmp_path):
    saves = checkpointer(tmp_path)
    assert saves.resume() is None
    asked = []
    for step, loss in enumerate([9.0, 3.0, 5.0, math.nan, 3.0, 7.0], 1):
        assert not saves.best_due(step)
        saves.measured(step, {"eval_loss": loss})
        asked.append(saves.best_due(step))
        saves.save(Progress(step=step))
    assert asked == [True, True, False, False, False, False]
    saves.close()
    assert steps_in(tmp_path) == [2, 6]
    best, why = saves.best()
    assert (best.name, why) == ("step-2", "eval_loss 3")

    again = checkpointer(tmp_path)
    assert again.resume().step == 6
    again.measured(7, {"eval_loss": 4.0})
    assert not again.best_due(7), "worse than what an earlier process kept"
    again.measured(7, {"eval_loss": 2.0})
    assert again.best_due(7)
    again.save(Progress(step=7))
    again.close()
    assert steps_in(tmp_path) == [7]


@pytest.mark.torch
def test_a_best_one_that_could_not_be_written_is_not_the_best(tmp_path, monkeypatch):
    saves = checkpointer(tmp_path)
    saves.measured(1, {"eval_loss": 5.0})
    saves.save(Progress(step=1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("fsdpkit.training.checkpoint.publish", full)
        saves.measured(2, {"eval_loss": 1.0})
        with pytest.raises(StorageError, match="No space left"):
            saves.save(Progress(step=2))
    saves.measured(3, {"eval_loss": 4.0})
    assert saves.best_due(3)
    saves.close()


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["checkpoint.keep_best=eval_loss"], "set training.evaluation.every_steps"),
        (
            ["checkpoint.keep_best=eval_loss", "evaluation.every_steps=5", "data.held_out=0"],
            "training.data.held_out above 0",
        ),
        (["checkpoint.keep_best=eval_los", "evaluation.every_steps=5"], "mean 'eval_loss'"),
        (
            ["checkpoint.keep_best=loss", "checkpoint.every_steps=8", "metrics.every_steps=5"],
            r"every_steps \(8\) to a multiple of training.metrics.every_steps \(5\)",
        ),
        (["checkpoint.keep_best=loss", "checkpoint.every_steps=0"], "a multiple"),
    ],
)
def test_keep_best_without_anything_that_measures_it_is_refused(sets, expected):
    found = problems(load_settings({}, sets), 8, 4)
    assert any(re.search(expected, each) for each in found), found
