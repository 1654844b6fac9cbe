"""A checkpoint knows data, seed and batch of its training; what differs is not passed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.errors import ConfigError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer, DataOrder, Progress
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.sampler import GlobalBatches, GlobalOrderSampler, data_order

pytestmark = pytest.mark.torch

ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
TRAINED = DataOrder("crc 1234abcd", samples=1000, seed=42, global_batch=16)
PROGRESS = Progress(step=9, epoch=3, position=144, group=16, tokens=77)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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


def test_the_same_data_seed_and_batch_go_on_in_silence(trained, capsys):
    assert checkpointer(trained, TRAINED).resume() == PROGRESS
    assert "note" not in capsys.readouterr().out


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


def test_the_remedy_names_all_that_differs(trained):
    other = replace(TRAINED, seed=1, samples=9)
    with pytest.raises(ConfigError, match=r'may_differ = \["data", "seed"\]'):
        checkpointer(trained, other).resume()
    with pytest.raises(ConfigError, match=r"training\.seed = 42"):
        checkpointer(trained, other, "data").resume()


def test_another_global_batch_is_said_with_the_setting_that_keeps_it(trained, capsys):
    assert checkpointer(trained, replace(TRAINED, global_batch=8)).resume() == PROGRESS
    said = capsys.readouterr().out
    assert "a step now takes 8 samples, 16 before the checkpoint" in said
    assert "training.batch_size = 16 would keep it" in said


def test_who_tells_nothing_of_the_data_is_asked_nothing(trained, tmp_path):
    assert checkpointer(trained, None).resume() == PROGRESS
    silent = tmp_path / "silent"
    saves = checkpointer(silent, None)
    saves.save(PROGRESS)
    saves.close()
    assert checkpointer(silent, TRAINED).resume() == PROGRESS


def order_of(seed: int = 1, buckets: list[int] | None = None, batch: int = 4) -> DataOrder:
    sampler = GlobalOrderSampler(
        range(20), num_replicas=2, rank=1, seed=seed,
        buckets=None if buckets is None else np.array(buckets, np.uint8),
    )  # fmt: skip
    loader = DataLoader(range(20), batch_sampler=GlobalBatches(sampler, batch))
    return data_order(loader, "text")


def test_the_order_is_read_from_the_loader():
    assert order_of() == DataOrder("text", 20, seed=1, global_batch=8)
    assert (
        order_of(buckets=[0, 1] * 10).fingerprint
        != order_of(buckets=[1, 0] * 10).fingerprint
        != "text"
    )
