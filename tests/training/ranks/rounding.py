"""On four ranks: T5 with bfloat16 weights, under each way of sharding, and with float32 ones.

Found, per case: losses of each step, types and bytes that a rank holds, and
whether all ranks see the same whole weights.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from equality import Batch, local, loss_sum, samples
from precision import NORMS, sharded_t5
from torch import Tensor, nn

from fsdpkit.config.training import OptimizerSettings, PrecisionSettings
from fsdpkit.training.distributed import Ranks, gather, sum_over_ranks
from fsdpkit.training.gradients import clip_gradients
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.whole import whole_weights

STEPS = 6
HYBRID = {"strategy": "hybrid_shard", "shard_size": 2}
CASES: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "hybrid_shard": HYBRID,
    "some ignored": {"ignore": ("lm_head.*",)},
    "fsdp1 full_shard": {"engine": "fsdp1"},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
}


def trained(
    ranks: Ranks,
    precision: PrecisionSettings,
    rounding: Any,
    **sharding: Any,
) -> dict:
    model = sharded_t5(ranks, precision, **sharding)
    settings = OptimizerSettings(lr=1e-2, weight_decay=0.1, rounding=rounding)
    optimizer = make_optimizer(model, settings)
    losses = []
    for step in range(STEPS):
        batch = Batch(samples(step % 2)[ranks.rank :: ranks.world_size])
        (tokens,) = sum_over_ranks(batch.tokens, device=ranks.device)
        loss = loss_sum(model, batch)
        (loss * (ranks.world_size / tokens).float()).backward()
        norm = clip_gradients(model, 1.0)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        held = {"weights": list(model.parameters()), "gradients": gradients}
        optimizer.step()
        held["state"] = [
            v for s in optimizer.state.values() for v in s.values() if v.numel() > 1 or v.ndim
        ]
        sizes = {what: held_bytes(tensors) for what, tensors in held.items()}
        optimizer.zero_grad()
        losses.append(float(sum_over_ranks(loss.detach(), device=ranks.device)[0] / tokens))
    return {
        "losses": losses,
        "bytes": {what: sum(gather(size)) for what, size in sizes.items()},
        "types": sorted({str(local(p).dtype)[6:] for p in model.parameters()}),
        "norm": str(norm.dtype)[6:],
        "alike": seen_alike(model),
    }


def held_bytes(tensors: list[Tensor]) -> int:
    return sum(local(t).numel() * t.element_size() for t in tensors)


def seen_alike(model: nn.Module) -> int | None:
    """A checksum of the whole weights; None when ranks see other ones."""
    mine = 0
    for name, weight in sorted(whole_weights(model)):
        mine = zlib.crc32(name.encode() + weight.float().numpy().tobytes(), mine)
    everyone = set(gather(mine))
    return everyone.pop() if len(everyone) == 1 else None


def main(ranks: Ranks, folder: Path) -> dict:
    lowered = PrecisionSettings(master="bfloat16")
    half = {"param": "bfloat16", "keep_float32": NORMS}
    return {
        "float32": trained(ranks, PrecisionSettings(), None),
        **{
            f"{name} {rounding}": trained(ranks, lowered, rounding, **case)
            for name, case in CASES.items()
            for rounding in ("stochastic", "compensated")
            if rounding == "stochastic" or name == "full_shard"
        },
        "half float32": trained(ranks, PrecisionSettings(**half), None),
        "half": trained(ranks, PrecisionSettings(**half, master="bfloat16"), "stochastic"),
    }
