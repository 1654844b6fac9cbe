"""On two ranks: mixed precision, float16's scale, dropout under recomputation.

Found: what each setting made of the same small T5 as in equality.py.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from equality import SMALL, Batch, Collectives, local, loss_sum, message_of, samples
from model import T5, Block, RMSNorm, T5Config, init_parameter
from torch import nn

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import clip_gradients, gradient_sync, loss_scaler
from fsdpkit.training.sharding import shard

NORMS = ("*layer_norm",)


def sharded_t5(
    ranks: Ranks, precision: PrecisionSettings, dropout: float = 0.0, **sharding: Any
) -> nn.Module:
    config = T5Config(**{**SMALL, "dropout_rate": dropout})
    with torch.device("meta"):
        model: nn.Module = T5(config)
    return shard(
        model, ShardingSettings(**sharding), precision, ranks,
        blocks=[Block], fill=functools.partial(init_parameter, config), seed=7,
    )  # fmt: skip


def batch_of(ranks: Ranks, step: int = 0) -> Batch:
    return Batch(samples(step)[ranks.rank :: ranks.world_size])


def trained(ranks: Ranks, model: nn.Module, steps: int = 2) -> tuple[list[float], list[float]]:
    """Losses on this rank and global gradient norms."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    for step in range(steps):
        torch.manual_seed(10 * step + ranks.rank)  # dropout
        loss = loss_sum(model, batch_of(ranks, step)) / 100
        loss.backward()
        norms.append(float(clip_gradients(model, 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms


class Dtypes:
    """Types that flow through one kind of module during forward."""

    def __init__(self, model: nn.Module, kind: type[nn.Module]) -> None:
        self.seen: set[tuple[str, str, str]] = set()
        for module in model.modules():
            if isinstance(module, kind):
                inner = module.forward
                module.forward = functools.partial(self.forward, module, inner)

    def forward(self, module: nn.Module, inner: Any, x: torch.Tensor) -> torch.Tensor:
        result = inner(x)
        self.seen.add(tuple(str(t.dtype)[6:] for t in (x, module.weight, result)))
        return result


def half_precision(ranks: Ranks, **sharding: Any) -> dict:
    """bfloat16 with the norms kept in float32."""
    precision = PrecisionSettings(param="bfloat16", keep_float32=NORMS)
    model = sharded_t5(ranks, precision, **sharding)
    norms, linears = Dtypes(model, RMSNorm), Dtypes(model, nn.Linear)
    losses, gradient_norms = trained(ranks, model)
    return {
        "losses": losses,
        "norms": gradient_norms,
        "in a norm": sorted(norms.seen),
        "in a linear": sorted(linears.seen),
        "shards": sorted({str(local(p).dtype)[6:] for p in model.parameters()}),
    }


class ReducedTypes(Collectives):
    """The types in which gradients cross ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "reduce_scatter" in str(function):
            flat = torch.utils._pytree.tree_leaves(args)
            self.types |= {str(t.dtype)[6:] for t in flat if isinstance(t, torch.Tensor)}
        return super().__torch_dispatch__(function, types, args, kwargs)


def output_and_reduce(ranks: Ranks, engine: str) -> dict:
    found = {}
    for param, reduce in itertools.product(("bfloat16", "float32"), ("float32", "bfloat16")):
        precision = PrecisionSettings(param=param, reduce=reduce, output="float32")
        model = sharded_t5(ranks, precision, engine=engine)
        batch = batch_of(ranks)
        scores = model(batch.source, batch.source_mask, batch.labels)
        with ReducedTypes() as reduced:
            scores.sum().backward()
        found[f"{param} {reduce}"] = {
            "output": str(scores.dtype)[6:],
            "reduced": sorted(reduced.types),
        }
    return found


def overflow(ranks: Ranks, rule: str, **sharding: Any) -> dict:
    """One element of one rank's share of the gradient overflows, in the second of three steps."""
    precision = PrecisionSettings(param="float16", loss_scale=1024.0)
    model = sharded_t5(ranks, precision, **sharding)
    optimizer = {
        "fused": functools.partial(torch.optim.AdamW, fused=True),
        "foreach": functools.partial(torch.optim.AdamW, foreach=True),
        "sgd": torch.optim.SGD,
    }[rule](model.parameters(), lr=1e-2)
    scaler = loss_scaler(precision, model, ranks)
    scales, changed, norms = [], [], []
    for step in range(3):
        before = [local(p).detach().clone() for p in model.parameters()]
        with gradient_sync(model, True):
            scaler.scale(loss_sum(model, batch_of(ranks, step)) / 100).backward()
        if step == 1 and ranks.rank == 1:
            gradient = next(p.grad for p in model.parameters() if local(p).numel())
            local(gradient).flatten()[0] = torch.inf
        scaler.unscale_(optimizer)
        norms.append(float(clip_gradients(model, 1.0)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        changed.append(
            any(
                not torch.equal(a, local(b))
                for a, b in zip(before, model.parameters(), strict=True)
            )
        )
    finite = all(bool(local(p).isfinite().all()) for p in model.parameters())
    return everywhere(
        {"scales": scales, "changed": changed, "finite": finite, "first norm": norms[0]}, ranks
    )


def everywhere(value: Any, ranks: Ranks) -> Any:
    """What every rank found."""
    values: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(values, value)
    return values


def buffers(ranks: Ranks) -> str:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = self.shift.dtype
            return self.linear(x + self.shift)

    torch.manual_seed(0)
    model = Shifted()
    precision = PrecisionSettings(param="bfloat16", buffer="bfloat16")
    shard(model, ShardingSettings(engine="fsdp1"), precision, ranks, blocks=[nn.Linear])(
        torch.ones(2, 4)
    )
    return str(model.seen)[6:]


def main(ranks: Ranks, folder: Path) -> dict:
    exact = PrecisionSettings()
    full, some = ({"activation_checkpointing": mode} for mode in ("full", "selective"))
    fsdp1 = {"engine": "fsdp1"}
    return {
        "float32": trained(ranks, sharded_t5(ranks, exact)),
        "bfloat16": trained(ranks, sharded_t5(ranks, PrecisionSettings(param="bfloat16"))),
        "kept": {
            "fsdp2": half_precision(ranks),
            "fsdp2 full": half_precision(ranks, **full),
            "fsdp2 selective": half_precision(ranks, **some),
            "fsdp2 prefetch": half_precision(ranks, prefetch=2),
            "fsdp2 two blocks": half_precision(ranks, blocks_per_unit=2, **full),
            "fsdp2 offload": half_precision(ranks, activation_checkpointing="offload"),
            "fsdp1 offload": half_precision(ranks, **fsdp1, activation_checkpointing="offload"),
            "fsdp1": half_precision(ranks, **fsdp1),
            "fsdp1 full": half_precision(ranks, **fsdp1, **full),
        },
        "fsdp1 selective": message_of(lambda: half_precision(ranks, **fsdp1, **some), ConfigError),
        "dropout": {
            f"{engine} {mode}": trained(
                ranks,
                sharded_t5(ranks, exact, dropout=0.3, engine=engine, activation_checkpointing=mode),
            )
            for engine in ("fsdp2", "fsdp1")
            for mode in ("none", "full", "selective", "offload")
        },
        "output and reduce": {e: output_and_reduce(ranks, e) for e in ("fsdp2", "fsdp1")},
        "overflow": {
            "fsdp2 full_shard fused": overflow(ranks, "fused"),
            "fsdp2 full_shard foreach": overflow(ranks, "foreach"),
            "fsdp2 no_shard sgd": overflow(ranks, "sgd", strategy="no_shard"),
            "fsdp1 full_shard fused": overflow(ranks, "fused", **fsdp1),
            "fsdp1 full_shard sgd": overflow(ranks, "sgd", **fsdp1),
        },
        "buffer": buffers(ranks),
    }
