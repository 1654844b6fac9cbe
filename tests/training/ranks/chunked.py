"""On two ranks: the same training with the whole and with the chunked loss, under both engines.

Found, per engine and case: losses of this rank, gradient norms and whether
there was an update in each step, and the largest difference of any weight between the two.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from equality import FAMILY, SMALL, Batch, local, message_of, samples
from model import T5, Block, T5Config, init_parameter, last_of
from torch import nn

from fsdpkit.config.training import OptimizerSettings, PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks, sum_over_ranks
from fsdpkit.training.gradients import clip_gradients, gradient_sync, loss_scaler, update
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.sharding import shard

STEPS = 2
CASES: dict[str, dict] = {
    "untied": {},
    "tied, in two parts": {"family": "tied", "parts": 2},
    "checkpointed, in four parts": {"activation_checkpointing": "full", "parts": 4},
    "bfloat16": {"param": "bfloat16"},
    "float16": {"param": "float16"},
}


def trained(
    ranks: Ranks, loss: str, *, family: str = "untied", parts: int = 1,
    param: str = "float32", **sharding: Any,
) -> tuple[dict, nn.Module]:  # fmt: skip
    """Two steps on unequal target lengths, weighed and scaled as the trainer does."""
    config = T5Config(**SMALL, **FAMILY[family])
    precision = PrecisionSettings(param=param, loss_scale=4096.0)
    with torch.device("meta"):
        model: nn.Module = T5(config)
    model = shard(
        model, ShardingSettings(**sharding), precision, ranks,
        blocks=[Block], fill=functools.partial(init_parameter, config), seed=7,
        last=last_of(config),
    )  # fmt: skip
    optimizer = make_optimizer(model, OptimizerSettings(name="sgd", lr=0.1))
    scaler = loss_scaler(precision, model, ranks)
    found: dict[str, list] = {"losses": [], "norms": [], "updates": []}
    for step in range(STEPS):
        mine = samples(step)[ranks.rank :: ranks.world_size]
        tokens = sum_over_ranks(Batch(mine).tokens, device=ranks.device)
        weight = (ranks.world_size / tokens).float().squeeze()
        total = 0.0
        for part in range(parts):
            batch = Batch(mine[part::parts])
            with gradient_sync(model, part == parts - 1):
                loss_sum = model(batch.source, batch.source_mask, batch.labels, loss=loss)
                scaler.scale(loss_sum * weight).backward()
            total += float(loss_sum.detach())
        scaler.unscale_(optimizer)
        norm = clip_gradients(model, 1.0)
        found["updates"].append(update(optimizer, scaler, norm, "stop", ranks, step))
        optimizer.zero_grad()
        found["losses"].append(total)
        found["norms"].append(float(norm))
    return found, model


def compared(ranks: Ranks, case: dict) -> dict:
    whole, one = trained(ranks, "whole", **case)
    chunked, other = trained(ranks, "chunked", **case)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    differences = [(local(a) - local(b)).detach().abs() for a, b in pairs]
    farthest = max(float(d.max()) for d in differences if d.numel())
    return {"whole": whole, "chunked": chunked, "farthest weight": farthest}


def main(ranks: Ranks, folder: Path) -> dict:
    found: dict = {}
    for engine in ("fsdp2", "fsdp1"):
        found[engine] = {
            name: compared(ranks, {"engine": engine, **case}) for name, case in CASES.items()
        }
        named = {"engine": engine, "wrap": "names"}
        alone = compared(ranks, {**named, "wrap_names": ("lm_head", "*.block.*")})
        found[engine]["head by name"] = alone
        tied = {**named, "family": "tied", "wrap_names": ("shared", "*.block.*")}
        found[engine]["tied, in a unit"] = message_of(
            functools.partial(trained, ranks, "chunked", **tied), ConfigError
        )
    return found
