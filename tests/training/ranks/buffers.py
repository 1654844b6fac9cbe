"""On three ranks: buffers that differ by rank in a checkpoint, and the first values of buffers.

Found, per case: rank 0's buffers when it saved, those in the checkpoint,
and each rank's after loading it; per engine: what buffers of a model on the meta device become.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn

from fsdpkit.config.training import CheckpointSettings, PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.checkpoint_loading import read_weights, weights_in
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.progress import Progress
from fsdpkit.training.sharding import plain_name, shard

CASES: dict[str, dict[str, Any]] = {
    "fsdp2": {},
    "fsdp2 no_shard": {"strategy": "no_shard"},
    "fsdp1": {"engine": "fsdp1"},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def buffers(model: nn.Module) -> dict[str, list[float] | float]:
    return {plain_name(name): buffer.tolist() for name, buffer in model.named_buffers()}


def made(ranks: Ranks, sharding: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    sharded = shard(model, ShardingSettings(**sharding), PrecisionSettings(), ranks, blocks=[Block])
    return sharded, torch.optim.AdamW(sharded.parameters(), lr=1e-3)


def saved_and_loaded(ranks: Ranks, folder: Path, sharding: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = made(ranks, sharding)
    generator = torch.Generator().manual_seed(ranks.rank)
    for _ in range(2):
        images = torch.randn(8, 6, generator=generator) + 10 * ranks.rank
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    saves = Checkpointer(TaskPaths(folder), ranks, model, optimizer, CheckpointSettings())
    saves.save(Progress(step=2))
    saves.close()
    path = TaskPaths(folder).checkpoints / "step-2"
    names = list(buffers(model))
    stored = {name: value.tolist() for name, value in read_weights(path, names).items()}

    again, fresh = made(ranks, sharding)
    resumed = Checkpointer(TaskPaths(folder), ranks, again, fresh, CheckpointSettings())
    resumed.resume()
    resumed.close()
    own: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(own, [buffers(model), buffers(again)])
    return {
        "saving": [before for before, _ in own],
        "stored": stored,
        "loaded": [after for _, after in own],
        "names": sorted(weights_in(path)),
    }


class Rotary(Block):
    """A block whose buffers say where they are made, but for two."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10.0 ** -torch.arange(3, device="cpu"))
        mask = torch.ones(2, 2, dtype=torch.bool, device="cpu").tril()
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("table", torch.arange(3))
        self.gain = nn.Parameter(torch.ones(2))


def one(name: str, tensor: Tensor, _: Generator) -> None:
    """For parameters alone."""
    assert name.endswith(("weight", "bias", "gain")), name
    tensor.fill_(1.0)


def first_values(ranks: Ranks, engine: str) -> dict[str, Any]:
    def on_meta(**fills: Any) -> nn.Module:
        with torch.device("meta"):
            model = nn.Sequential(Rotary(), Rotary())
        sharding = ShardingSettings(engine=engine)
        return shard(model, sharding, PrecisionSettings(), ranks, blocks=[Rotary], **fills)

    try:
        on_meta(fill=one)
        message = "no error"
    except ConfigError as error:
        message = str(error)
    model = on_meta(fill=one, fill_buffers=lambda name, tensor, _: tensor.fill_(len(name)))
    return {"message": message, "buffers": buffers(model), "saved": sorted(model.state_dict())}


def main(ranks: Ranks, folder: Path) -> dict:
    found: dict[str, Any] = {
        name: saved_and_loaded(ranks, folder / name.replace(" ", "-"), sharding)
        for name, sharding in CASES.items()
    }
    found["first values"] = {name: first_values(ranks, name) for name in ("fsdp2", "fsdp1")}
    return found
