"""On four ranks: train the same small T5 under every setting, and once in plain torch.

Writes to the file in argv[1], per case: losses and gradient norms of each step, and the largest
difference of any weight, after all steps, from the plain run's. The plain run holds the whole batch
in one process and knows nothing of FSDP.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
import tempfile
import zlib
from pathlib import Path

import fsdp_t5
import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Batch, Sample, collate
from model import IGNORE, T5, Block, T5Config, init_parameter
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpkit.config.training import (
    PrecisionSettings,
    ShardingSettings,
    TrainingSettings,
    load_settings,
)
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.distributed import (
    Ranks,
    check_same_everywhere,
    process_group,
    sum_over_ranks,
)
from fsdpkit.training.sharding import clip_gradients, gradient_sync, shard

STEPS, SEED, CLIP = 4, 7, 0.5
FAMILY = {
    "untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "tied": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
}
SMALL = {
    "vocab_size": 64, "d_model": 24, "d_ff": 40, "d_kv": 8, "num_heads": 3,
    "num_layers": 2, "num_decoder_layers": 2, "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip

CASES: dict[str, dict] = {
    "fsdp2 full_shard": {},
    "fsdp2 full_shard tied": {"family": "tied"},
    "fsdp2 full_shard checkpointed": {"activation_checkpointing": "full"},
    "fsdp2 full_shard accumulated": {"accumulate": 2},
    "fsdp2 full_shard offloaded": {"cpu_offload": True},
    "fsdp2 shard_grad_op": {"strategy": "shard_grad_op"},
    "fsdp2 shard_grad_op checkpointed accumulated": {
        "strategy": "shard_grad_op", "activation_checkpointing": "full", "accumulate": 2,
    },
    "fsdp2 hybrid_shard": {"strategy": "hybrid_shard", "shard_size": 2},
    "fsdp2 hybrid_shard accumulated": {
        "strategy": "hybrid_shard", "shard_size": 2, "accumulate": 2,
    },
    "fsdp2 no_shard": {"strategy": "no_shard"},
    "fsdp2 with values": {"built": "with values"},
    "fsdp1 full_shard": {"engine": "fsdp1"},
    "fsdp1 full_shard tied": {"engine": "fsdp1", "family": "tied"},
    "fsdp1 full_shard checkpointed": {"engine": "fsdp1", "activation_checkpointing": "full"},
    "fsdp1 full_shard accumulated": {"engine": "fsdp1", "accumulate": 2},
    "fsdp1 full_shard unlimited gathers": {"engine": "fsdp1", "limit_all_gathers": False},
    "fsdp1 full_shard offloaded": {"engine": "fsdp1", "cpu_offload": True},
    "fsdp1 shard_grad_op": {"engine": "fsdp1", "strategy": "shard_grad_op"},
    "fsdp1 hybrid_shard": {"engine": "fsdp1", "strategy": "hybrid_shard", "shard_size": 2},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
    "fsdp1 with values": {"engine": "fsdp1", "built": "with values"},
}  # fmt: skip


def samples(step: int) -> list[Sample]:
    """Eight samples whose targets differ much in length: ranks get unequal numbers of tokens."""
    generator = torch.Generator().manual_seed(100 + step)
    lengths = [1, 2, 9, 3, 14, 1, 5, 20]

    def ids(n: int) -> list[int]:
        return torch.randint(3, 64, (n,), generator=generator).tolist()

    return [Sample(ids(3 + 2 * i), ids(n)) for i, n in enumerate(lengths)]


def loss_sum(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    scores = model(batch.source, batch.source_mask, batch.labels).float()
    return F.cross_entropy(
        scores.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    # SGD: an update proportional to the gradient. AdamW divides by the gradient's own size, which
    # turns a rounding error on a gradient near zero into a step as large as any.
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def plain(config: T5Config) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    model = T5(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = SEED * 2**32 + zlib.crc32(name.encode())
            init_parameter(config, name, parameter, torch.Generator().manual_seed(seed))
    optimizer = optimizer_of(model)
    losses, norms = [], []
    for step in range(STEPS):
        batch = collate(samples(step))
        loss = loss_sum(model, batch) / (batch.labels != IGNORE).sum()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms, {k: v.detach() for k, v in model.state_dict().items()}


def sharded(case: dict, ranks: Ranks) -> dict:
    case = {"family": "untied", "accumulate": 1, "built": "on meta", **case}
    family, accumulate, built = case.pop("family"), case.pop("accumulate"), case.pop("built")
    config = T5Config(**SMALL, **FAMILY[family])
    if built == "on meta":
        with torch.device("meta"):
            model: torch.nn.Module = T5(config)
        fill = functools.partial(init_parameter, config)
    else:
        model, fill = T5(config), None
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                seed = SEED * 2**32 + zlib.crc32(name.encode())
                init_parameter(config, name, parameter, torch.Generator().manual_seed(seed))
    model = shard(
        model, ShardingSettings(**case), PrecisionSettings(), ranks,
        blocks=[Block], fill=fill, seed=SEED,
    )  # fmt: skip
    optimizer = optimizer_of(model)
    losses, norms = [], []
    for step in range(STEPS):
        mine = samples(step)[ranks.rank :: ranks.world_size]
        per_pass = len(mine) // accumulate
        micro = [collate(mine[i * per_pass :][:per_pass]) for i in range(accumulate)]
        (tokens,) = sum_over_ranks(
            sum((b.labels != IGNORE).sum() for b in micro), device=ranks.device
        )
        total = torch.zeros(())
        for i, batch in enumerate(micro):
            with gradient_sync(model, i == len(micro) - 1):
                loss = loss_sum(model, batch)
                (loss * (ranks.world_size / tokens).float()).backward()
            total += loss.detach()
        norms.append(float(clip_gradients(model, CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sum_over_ranks(total, device=ranks.device)[0] / tokens))
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {
        "losses": losses,
        "norms": norms,
        "weights": weights,
        "family": family,
        "largest_shard": max(p.numel() for p in map(local, model.parameters())),
        "checkpointed": sum(isinstance(m, CheckpointWrapper) for m in model.modules()),
    }


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def message_of(action, kind: type[Exception]) -> str:
    try:
        action()
    except kind as error:
        return str(error)
    return "no error"


def main() -> None:
    with process_group(timeout_s=60) as ranks:
        reference = {name: plain(T5Config(**SMALL, **FAMILY[name])) for name in FAMILY}
        found: dict = {"cases": {}, "plain": {k: v[:2] for k, v in reference.items()}}
        for name, case in CASES.items():
            result = sharded(case, ranks)
            counts: list = [None] * ranks.world_size
            dist.all_gather_object(counts, result["checkpointed"])
            result["checkpointed"] = counts
            weights, plain_weights = result.pop("weights"), reference[result["family"]][2]
            if ranks.is_first:
                result["names_equal"] = set(weights) == set(plain_weights)
                result["weight_difference"] = max(
                    float((weights[k] - plain_weights[k]).abs().max()) for k in plain_weights
                )
            found["cases"][name] = result

        found["differently seeded"] = message_of(lambda: differently_seeded(ranks), FsdpkitError)
        found["indivisible"] = message_of(
            lambda: sharded({"strategy": "hybrid_shard", "shard_size": 3}, ranks), ConfigError
        )
        found["other data"] = message_of(
            lambda: check_same_everywhere("training data", "b" if ranks.rank == 3 else "a"),
            FsdpkitError,
        )
        found["bfloat16"] = in_bfloat16(ranks)
        found["host reads per silent step"] = host_reads(ranks)
        found["not finite"] = not_finite(ranks)
        if ranks.is_first:
            Path(sys.argv[1]).write_text(json.dumps(found))


def differently_seeded(ranks: Ranks) -> None:
    torch.manual_seed(ranks.rank)
    shard(
        T5(T5Config(**SMALL)), ShardingSettings(), PrecisionSettings(), ranks, blocks=[Block]
    )  # fmt: skip


def in_bfloat16(ranks: Ranks) -> dict:
    config = T5Config(**SMALL, **FAMILY["untied"])
    with torch.device("meta"):
        model: torch.nn.Module = T5(config)
    model = shard(
        model, ShardingSettings(), PrecisionSettings(param="bfloat16"), ranks,
        blocks=[Block], fill=functools.partial(init_parameter, config), seed=SEED,
    )  # fmt: skip
    batch = collate(samples(0))
    loss = loss_sum(model, batch) / (batch.labels != IGNORE).sum()
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "shard dtype": str({local(p).dtype for p in model.parameters()}.pop()),
    }


class HostReads(TorchDispatchMode):
    """Counts what makes a host wait for a GPU: reading a number out of a tensor."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            self.count += 1
        return function(*args, **(kwargs or {}))


def settings_of(**extra: object) -> TrainingSettings:
    sets = [
        "model.d_model=16", "model.d_ff=24", "model.num_layers=1", "model.num_decoder_layers=1",
        "data.task=span-corruption", "batch_size=2", "eval_batches=0", "checkpoint.every_steps=0",
        "checkpoint.at_end=false", *[f"{key}={value}" for key, value in extra.items()],
    ]  # fmt: skip
    return load_settings({}, sets)


def host_reads(ranks: Ranks) -> list[int]:
    """Distinct numbers of reads in the trainer's own steps between two logged ones."""
    marks: list[int] = []
    reads = HostReads()
    original = fsdp_t5.seed_step

    def marking(*arguments: int) -> None:
        marks.append(reads.count)
        original(*arguments)

    fsdp_t5.seed_step = marking
    with tempfile.TemporaryDirectory() as folder, reads:
        fsdp_t5.train(settings_of(steps=6, log_every=6), TaskPaths(Path(folder)), ranks)
    fsdp_t5.seed_step = original
    return sorted({b - a for a, b in itertools.pairwise(marks[1:])})


def not_finite(ranks: Ranks) -> dict:
    """One rank's loss becomes infinite in step 3; the trainer's weights before and after."""
    seen: list[list[torch.Tensor]] = []
    original = fsdp_t5.token_loss_sum
    calls = 0

    def poisoned(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            seen.append([local(p).detach().clone() for p in model.parameters()])
            poisoned.model = model
        loss = original(model, batch)
        return loss * math.inf if calls == 3 and ranks.rank == 2 else loss

    fsdp_t5.token_loss_sum = poisoned
    with tempfile.TemporaryDirectory() as folder:
        message = message_of(
            lambda: fsdp_t5.train(settings_of(steps=5), TaskPaths(Path(folder)), ranks),
            FsdpkitError,
        )
    fsdp_t5.token_loss_sum = original
    after = [local(p).detach() for p in poisoned.model.parameters()]
    return {
        "message": message,
        "weights unchanged": all(torch.equal(a, b) for a, b in zip(seen[0], after, strict=True)),
    }


if __name__ == "__main__":
    main()
