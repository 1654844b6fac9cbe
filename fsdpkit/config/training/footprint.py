"""Whether a T5 can be trained on given GPUs at all, known before a job is queued.

Counted is what no run can do without: weights, gradients and the optimizer's state, as the strategy
spreads them. Activations, the unit that is gathered and what CUDA and NCCL take come on top, so a
run that passes may still run out of memory; one that is refused would have. What cpu_offload keeps
in host memory is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fsdpkit.config.training.optimizer import OptimizerSettings
from fsdpkit.config.training.settings import TrainingSettings

GB, GIB = 10**9, 2**30
_MOST_GPUS = 4096


def parameter_count(dimensions: Mapping[str, Any]) -> int:
    """Parameters of the T5 with these dimensions, as `ModelSettings.dimensions` gives them."""
    d: int = dimensions["d_model"]
    heads: int = dimensions["num_heads"]
    attention = 4 * d * heads * dimensions["d_kv"]
    matrices = 3 if dimensions.get("feed_forward_proj", "gated-gelu") == "gated-gelu" else 2
    feed_forward = matrices * d * dimensions["d_ff"]
    encoder = dimensions["num_layers"] * (attention + feed_forward + 2 * d)
    decoder = dimensions["num_decoder_layers"] * (2 * attention + feed_forward + 3 * d)
    tables = 2 * dimensions.get("relative_attention_num_buckets", 32) * heads
    embeddings = dimensions["vocab_size"] * d * (1 if dimensions.get("tie_word_embeddings") else 2)
    total: int = embeddings + encoder + decoder + tables + 2 * d
    return total


def least_gpu_bytes(
    settings: TrainingSettings, parameters: int, ranks: int, ranks_per_node: int
) -> int:
    """Bytes that each GPU must hold at some moment of a step, whatever else it holds."""
    sharding, optimizer = settings.sharding, settings.optimizer
    weight = 4 if settings.precision.master == "float32" else 2
    if any(group.lr_scale == 0 for group in optimizer.groups):
        gradient = state = 0  # of frozen weights there is neither, and their number is not known
    else:
        gradient, state = weight, _state_bytes(optimizer)
    shard = parameters / sharding.shard_ranks(ranks, ranks_per_node)
    gathered = parameters * _bytes_kept_gathered(settings, ranks, ranks_per_node)
    if sharding.cpu_offload:
        return round(gathered)
    updating = shard * (weight + gradient + state)
    between_the_passes = shard * (weight + state) + gathered
    return round(max(updating, between_the_passes))


def checkpoint_bytes(settings: TrainingSettings) -> int:
    """Of one checkpoint, weights and optimizer's state; the little else it has is not counted."""
    parameters = parameter_count(settings.model.dimensions())
    weight = 4 if settings.precision.master == "float32" else 2
    frozen = any(group.lr_scale == 0 for group in settings.optimizer.groups)
    return parameters * (weight + (0 if frozen else _state_bytes(settings.optimizer)))


def memory_problem(
    settings: TrainingSettings,
    ranks: int,
    ranks_per_node: int,
    gpu: str | None,
    gpu_memory_gb: float,
) -> str | None:
    """Why the job cannot fit GPUs of this memory and what would fit, or None when it may. Makers'
    gigabytes are taken for the larger GiB: refused is only what cannot fit either way."""
    parameters = parameter_count(settings.model.dimensions())

    def needs(strategy: str, count: int) -> int:
        sharding = msgspec.structs.replace(
            settings.sharding, strategy=strategy, shard_size=None, reshard_to=None
        )
        changed = msgspec.structs.replace(settings, sharding=sharding)
        return least_gpu_bytes(changed, parameters, count, ranks_per_node)

    memory = gpu_memory_gb * GIB
    needed = least_gpu_bytes(settings, parameters, ranks, ranks_per_node)
    if needed <= memory:
        return None
    if (full := needs("full_shard", ranks)) <= memory:
        fits = f'strategy = "full_shard" on these {ranks} GPUs ({_gb(full)} each)'
    else:
        counts = range(ranks, _MOST_GPUS + 1)
        enough = next((n for n in counts if needs("full_shard", n) <= memory), None)
        more = f'strategy = "full_shard" on {enough} GPUs or more, or ' if enough else ""
        fits = f"{more}training.sharding.cpu_offload, or a smaller model"
    held = (
        "what stays gathered" if settings.sharding.cpu_offload else "weights, gradients and state"
    )
    plural = "s" if ranks > 1 else ""
    return (
        f"{settings.model.source} has {parameters / 1e9:.1f} billion parameters: under "
        f"{settings.sharding.strategy} on {ranks} GPU{plural}, {held} alone take {_gb(needed)} of "
        f"each, which has {gpu_memory_gb:g} GB{f' ({gpu})' if gpu else ''}. What would hold them, "
        f"activations not counted: {fits}."
    )


def _bytes_kept_gathered(settings: TrainingSettings, ranks: int, ranks_per_node: int) -> float:
    """Bytes a parameter that stay on each GPU from forward to backward, beside the shards."""
    sharding = settings.sharding
    compute = 4 if settings.precision.param == "float32" else 2
    if ranks == 1 or sharding.strategy == "no_shard":
        return 0
    if not sharding.frees_after_forward:
        return compute
    if sharding.reshard_to is not None:
        return compute / (ranks_per_node if sharding.reshard_to == "node" else sharding.reshard_to)
    return 0


def _state_bytes(optimizer: OptimizerSettings) -> int:
    """Bytes a parameter; Adafactor's rows and columns do not count."""
    if optimizer.rounding is not None:  # of bfloat16 weights
        return 6 if optimizer.rounding == "compensated" else 4
    if optimizer.name == "sgd":
        return 4 if optimizer.beta1 else 0
    return 0 if optimizer.name == "adafactor" else 8


def _gb(size: int) -> str:
    return f"{size / GB:.0f} GB"
