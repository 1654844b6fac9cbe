"""On two ranks: blocks compiled (traced, not made into kernels) under both engines.

Found, per case: losses and norms, parameter names, graphs and breaks.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from conv_net import ConvBlock, ConvNet, fill
from equality import SMALL, Batch, loss_sum, samples
from model import T5, Block, T5Config, init_parameter
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import clip_gradients
from fsdpkit.training.sharding import shard

CASES: dict[str, dict[str, Any]] = {
    "fsdp2 selective": {"activation_checkpointing": "selective"},
    "fsdp1": {"engine": "fsdp1"},
}


def trained(ranks: Ranks, compiled: bool, **sharding: Any) -> dict[str, Any]:
    config = T5Config(**{**SMALL, "num_layers": 1, "num_decoder_layers": 1})
    with torch.device("meta"):
        model: nn.Module = T5(config)
    names = set(model.state_dict())
    model = shard(
        model, ShardingSettings(**sharding), PrecisionSettings(), ranks,
        blocks=[Block], fill=functools.partial(init_parameter, config), seed=7, compile=compiled,
    )  # fmt: skip
    torch._dynamo.reset()
    counters.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = Batch(samples(0)[ranks.rank :: ranks.world_size])
    losses, norms = [], []
    for _ in range(2):
        loss = loss_sum(model, batch) / 100
        loss.backward()
        norms.append(float(clip_gradients(model, 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return {
        "losses": losses,
        "norms": norms,
        "plain names": set(get_model_state_dict(model)) == names,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
    }


def batches_seen_by_norms(ranks: Ranks) -> list[int]:
    """After one step of a compiled, checkpointed network with BatchNorm."""
    with torch.device("meta"):
        model: nn.Module = ConvNet()
    sharding = ShardingSettings(activation_checkpointing="full")
    model = shard(
        model, sharding, PrecisionSettings(), ranks, blocks=[ConvBlock], fill=fill, compile=True
    )
    model(torch.ones(2, 3, 16, 16)).sum().backward()
    return [int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]


def main(ranks: Ranks, folder: Path) -> dict:
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    return {
        "eager": trained(ranks, False),
        "cases": {name: trained(ranks, True, **case) for name, case in CASES.items()},
        "batches seen": batches_seen_by_norms(ranks),
    }
