"""Shard a model by torch's older class `FullyShardedDataParallel`: FSDP1, the second engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from fsdpkit.training.engine import EngineSetup
from fsdpkit.training.initialisation import fill_modules
from fsdpkit.training.precision import cast_output, compute_dtype, dtype_of, unless_masters

_STRATEGY = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
    "no_shard": ShardingStrategy.NO_SHARD,
}
_BACKWARD_PREFETCH = {
    "pre": BackwardPrefetch.BACKWARD_PRE,
    "post": BackwardPrefetch.BACKWARD_POST,
    "none": None,
}


def shard_fsdp1(model: nn.Module, setup: EngineSetup) -> nn.Module:
    """A wrapper around the model."""
    sharding, precision, ranks, units = setup.sharding, setup.precision, setup.ranks, setup.units
    dtype = compute_dtype(precision, ranks.device)
    in_float32 = MixedPrecision(
        reduce_dtype=dtype_of(precision.reduce),
        buffer_dtype=dtype_of(precision.buffer) if precision.buffer else None,
    )
    usual = dataclasses.replace(in_float32, param_dtype=unless_masters(dtype, precision))
    plain = usual == MixedPrecision(reduce_dtype=torch.float32)
    float32_units = {module for unit in units if unit.float32 for module in unit.modules}
    all_units = {module for unit in units for module in unit.modules}

    def policy(module: nn.Module) -> bool | dict[str, Any]:
        if module in float32_units:
            return {"mixed_precision": in_float32}
        return module in all_units

    initialise: Callable[[nn.Module], None] | None = None
    if setup.start:
        initialise = fill_modules(model, setup.start, ranks.device)
    sharded = FullyShardedDataParallel(
        model,
        # With a mesh, state dicts hold DTensors, which either engine can load.
        device_mesh=None if sharding.strategy == "no_shard" else setup.mesh,
        sharding_strategy=_STRATEGY[sharding.strategy],
        auto_wrap_policy=CustomPolicy(policy),
        mixed_precision=None if plain else usual,
        # On a CPU there is nothing to offload, and FSDP1 crashes trying.
        cpu_offload=CPUOffload(sharding.cpu_offload and ranks.device.type != "cpu"),
        limit_all_gathers=sharding.limit_all_gathers,
        forward_prefetch=sharding.prefetch > 0,
        backward_prefetch=_BACKWARD_PREFETCH[sharding.backward_prefetch],
        param_init_fn=initialise,
        device_id=ranks.device,
        ignored_states=setup.ignored or None,
        use_orig_params=True,  # named parameters for the optimizer's groups and for checkpoints
    )
    if precision.output:
        cast_output(sharded, dtype_of(precision.output))
    return sharded
