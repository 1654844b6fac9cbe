"""On two ranks: a small convolutional network with BatchNorm, under DDP and sharded.

Found, per case: each rank's losses, and the largest difference of a weight
and of a buffer from DDP's. Each rank sees other images, so running statistics differ by rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.sharding import shard

STEPS = 4
CASES: dict[str, dict[str, Any]] = {
    "fsdp2 full_shard": {},
    "fsdp2 full_shard from meta": {"from_meta": True},
    "fsdp2 full_shard checkpointed": {"activation_checkpointing": "full"},
    "fsdp2 full_shard checkpointed selectively": {"activation_checkpointing": "selective"},
    "fsdp2 wrapped by size": {"wrap": "size", "wrap_parameters": 500},
    "fsdp2 no_shard": {"strategy": "no_shard"},
    "fsdp1 full_shard": {"engine": "fsdp1"},
    "fsdp1 full_shard from meta": {"engine": "fsdp1", "from_meta": True},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
}


class ConvBlock(nn.Module):
    """Convolution, batch normalisation, ReLU; the size halves."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBlock(3, 8)
        self.body = nn.Sequential(ConvBlock(8, 16), ConvBlock(16, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.stem(images)).mean((2, 3)))


def fill(name: str, tensor: Tensor, generator: Generator) -> None:
    """Weights and buffers alike: BatchNorm starts as the identity."""
    if name.endswith(("norm.weight", "running_var")):
        tensor.fill_(1)
    elif name.endswith(("running_mean", "num_batches_tracked", "bias")):
        tensor.zero_()
    else:
        tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)


def with_values() -> ConvNet:
    model = ConvNet()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            fill(name, tensor, Generator().manual_seed(len(name)))
    return model


def train(model: nn.Module, ranks: Ranks) -> tuple[list[float], dict[str, Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        generator = Generator().manual_seed(10 * step + ranks.rank)
        images = torch.randn(6, 3, 16, 16, generator=generator) + ranks.rank
        labels = torch.randint(0, 5, (6,), generator=generator)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, {name: buffer.clone() for name, buffer in model.named_buffers()}


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.barrier()
    return {k: v for k, v in state.items() if k.endswith(("weight", "bias"))}


def sharded(ranks: Ranks, from_meta: bool = False, **sharding: Any) -> nn.Module:
    if from_meta:
        with torch.device("meta"):
            model: nn.Module = ConvNet()
    else:
        model = with_values()
    return shard(
        model, ShardingSettings(**sharding), PrecisionSettings(), ranks,
        blocks=() if sharding.get("wrap") == "size" else [ConvBlock],
        fill=fill_like_values if from_meta else None,
    )  # fmt: skip


def fill_like_values(name: str, tensor: Tensor, _: Generator) -> None:
    fill(name, tensor, Generator().manual_seed(len(name)))


def main(ranks: Ranks, folder: Path) -> dict:
    ddp = DistributedDataParallel(with_values(), broadcast_buffers=False)
    ddp_losses, ddp_buffers = train(ddp, ranks)
    ddp_weights = whole_weights(ddp)
    found: dict[str, Any] = {"cases": {}}
    for name, case in CASES.items():
        model = sharded(ranks, **case)
        losses, buffers = train(model, ranks)
        weights = whole_weights(model)
        plain = {plain_of(k): v for k, v in buffers.items()}
        mine = {
            "losses": max(abs(a - b) for a, b in zip(losses, ddp_losses, strict=True)),
            "weights": max(
                [float((weights[k] - ddp_weights[k]).abs().max()) for k in weights], default=0.0
            ),
            "buffers": max(
                float((plain[k.removeprefix("module.")] - v).abs().max())
                for k, v in ddp_buffers.items()
            ),
            "shapes": all(
                plain[k.removeprefix("module.")].shape == v.shape for k, v in ddp_buffers.items()
            ),
        }
        found["cases"][name] = gathered(mine, ranks)
    means = gathered(ddp_buffers["module.stem.norm.running_mean"].tolist(), ranks)
    found["ranks differ by"] = max(abs(a - b) for a, b in zip(*means, strict=True))
    return found


def plain_of(name: str) -> str:
    for wrapper in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def gathered(value: Any, ranks: Ranks) -> list[Any]:
    values: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(values, value)
    return values
