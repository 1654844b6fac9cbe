"""One rank: nothing to gather, and weights that stay gathered where a GPU has room for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.training import sharding
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import KEEPS_GATHERED, gradient_sync

pytestmark = pytest.mark.usefixtures("process_group")
ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
BLOCKS, VALUES = 3, 3 * 8 * 8
NEEDED = 16 * 4 * VALUES
"""Memory of which the weights, in float32, are the largest part that may stay."""


class Copies(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.copy_.default
        return function(*args, **(kwargs or {}))


def trained(memory_bytes: int, monkeypatch: pytest.MonkeyPatch, **settings: object) -> tuple:
    """(copies of a second step, kept?, its gradients) on a device of this size."""
    monkeypatch.setattr(sharding, "_memory_bytes", lambda device: memory_bytes)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(BLOCKS)))
    model = sharding.shard(
        model, ShardingSettings(**settings), PrecisionSettings(), ALONE, blocks=[nn.Linear]
    )
    inputs = torch.randn(5, 8)
    for _ in range(2):
        with Copies() as copies:
            for last in (False, True):
                with gradient_sync(model, last):
                    model(inputs).square().sum().backward()
        gradients = [p.grad.to_local().clone() for p in model.parameters()]
        model.zero_grad()
    return copies.count, getattr(model, KEEPS_GATHERED), gradients


def test_weights_stay_where_there_is_room_and_nothing_changes_but_the_copies(monkeypatch):
    passes = 2
    freed, kept, gradients = trained(NEEDED - 1, monkeypatch)
    assert not kept
    once, kept, same = trained(NEEDED, monkeypatch)
    assert kept
    assert freed - once == passes * 2 * BLOCKS - BLOCKS
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))


def test_weights_on_the_host_are_freed_all_the_same(monkeypatch):
    assert not trained(NEEDED, monkeypatch, cpu_offload=True)[1]


def test_a_host_has_no_room_to_count_on():
    assert sharding._memory_bytes(torch.device("cpu")) == 0
