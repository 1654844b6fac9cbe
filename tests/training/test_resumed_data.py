"""A checkpoint knows data, seed and batch of its training; what differs is not passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.errors import ConfigError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.progress import DataOrder, Progress

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("process_group")]

ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
TRAINED = DataOrder("crc 1234abcd", samples=1000, seed=42, global_batch=16)
PROGRESS = Progress(step=9, epoch=3, position=144, group=16, tokens=77)


def checkpointer(folder: Path, data: DataOrder | None, *may_differ: str) -> Checkpointer:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = CheckpointSettings(background=False, may_differ=may_differ)
    return Checkpointer(TaskPaths(folder), ALONE, model, optimizer, settings, data=data)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    saves = checkpointer(tmp_path, TRAINED)
    saves.save(PROGRESS)
    saves.close()
    return tmp_path


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (
            {"fingerprint": "crc 5"},
            "data",
            r"other data \(1,000 samples, crc 1234abcd there, 1,000",
        ),
        ({"samples": 900}, "data", "900 samples, crc 1234abcd here"),
        ({"seed": 43}, "seed", r"training.seed = 42, which is 43 here"),
    ],
)
def test_other_data_or_another_seed_is_refused_unless_it_is_meant(
    trained, capsys, change, name, said
):
    other = replace(TRAINED, **change)
    remedy = rf'training.checkpoint.may_differ = \["{name}"\]'
    with pytest.raises(ConfigError, match=f"{said}.*{remedy}"):
        checkpointer(trained, other).resume()
    progress = checkpointer(trained, other, name).resume()
    assert progress == replace(PROGRESS, position=0, group=0)
    assert "the epoch begins anew" in capsys.readouterr().out


def test_another_global_batch_is_said_with_the_setting_that_keeps_it(trained, capsys):
    assert checkpointer(trained, replace(TRAINED, global_batch=8)).resume() == PROGRESS
    said = capsys.readouterr().out
    assert "a step now takes 8 samples, 16 before the checkpoint" in said
    assert "training.batch_size = 16 would keep it" in said
