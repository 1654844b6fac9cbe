"""On two ranks: some parameters are frozen by their group, under every engine and in one process.

Found, per case: gradient norms, how far each parameter moved, which were
still so after a checkpoint was loaded by another engine. Nobody calls set_learning_rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from fsdpkit.config.training import (
    CheckpointSettings,
    OptimizerSettings,
    ParameterGroup,
    PrecisionSettings,
    ShardingSettings,
)
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import clip_gradients
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.progress import Progress
from fsdpkit.training.sharding import shard

CASES: dict[str, dict[str, Any]] = {
    "fsdp2": {},
    "fsdp1": {"engine": "fsdp1"},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
}
SETTINGS = OptimizerSettings(
    lr=0.01,
    weight_decay=0.1,
    groups=(
        ParameterGroup(match="0.*", lr_scale=0),  # a whole unit
        ParameterGroup(match="2.linear.bias", lr_scale=0),  # a part of one
        ParameterGroup(match="1.*", lr_scale=0.5),
    ),
)
STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4)))


def whole(model: nn.Module) -> dict[str, Tensor]:
    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=False)
    )
    told: list[Any] = [{name: value.tolist() for name, value in state.items()}]
    dist.broadcast_object_list(told)  # FSDP1 gives the first rank alone
    return {name: torch.tensor(value) for name, value in told[0].items()}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, parts: list[int]
) -> list[float]:
    """Steps on the images of the ranks `parts`; the norms before clipping."""
    norms = []
    for step in steps:
        images = torch.cat(
            [torch.randn(8, 6, generator=torch.Generator().manual_seed(step * 7 + part)) * 9
             for part in parts]
        )  # fmt: skip
        (model(images) - 3).square().mean().backward()
        norm = (
            clip_gradients(model, 0.5)
            if dist.is_initialized()
            else nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        )
        optimizer.step()
        optimizer.zero_grad()
        norms.append(float(norm))
    return norms


def in_one_process() -> dict[str, Any]:
    """What the others must equal: no engine, all images at once."""
    model = plain()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, SETTINGS)
    norms = train(model, optimizer, range(STEPS), [0, 1])
    moved = {n: float((p - before[n]).detach().norm()) for n, p in model.named_parameters()}
    return {"norms": norms, "moved": moved}


def sharded(ranks: Ranks, sharding: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = shard(plain(), ShardingSettings(**sharding), PrecisionSettings(), ranks, blocks=[Block])
    return model, make_optimizer(model, SETTINGS)


def in_ranks(ranks: Ranks, folder: Path, sharding: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = sharded(ranks, sharding)
    before = whole(model)
    norms = train(model, optimizer, range(STEPS), [ranks.rank])
    after = whole(model)
    saves = Checkpointer(TaskPaths(folder), ranks, model, optimizer, CheckpointSettings())
    saves.save(Progress(step=STEPS))
    saves.close()
    norms_after = train(model, optimizer, range(STEPS, 2 * STEPS), [ranks.rank])
    resumed = {}
    for name in ("fsdp2", "fsdp1"):
        again, fresh = sharded(ranks, CASES[name])
        reading = Checkpointer(TaskPaths(folder), ranks, again, fresh, CheckpointSettings())
        try:
            reading.resume()
            resumed[name] = train(again, fresh, range(STEPS, 2 * STEPS), [ranks.rank])
        except FsdpkitError as error:
            resumed[name] = str(error)
    return {
        "norms": norms,
        "moved": {name: float((after[name] - before[name]).norm()) for name in after},
        "next norms": norms_after,
        "resumed": resumed,
    }


ALONE = in_one_process()
"""Before there is a process group."""


def main(ranks: Ranks, folder: Path) -> dict:
    found: dict[str, Any] = {"one process": ALONE}
    for name, sharding in CASES.items():
        found[name] = in_ranks(ranks, folder / name.replace(" ", "-"), sharding)
    try:
        frozen = OptimizerSettings(groups=(ParameterGroup(match="*.bias", lr_scale=0),))
        make_optimizer(DistributedDataParallel(plain()), frozen)
    except FsdpkitError as error:
        found["ddp"] = str(error)
    return found
