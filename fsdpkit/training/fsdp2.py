"""Shard a model by torch's `fully_shard`: FSDP2, the default engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from fsdpkit.config.training import ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks, together
from fsdpkit.training.engine import EngineSetup
from fsdpkit.training.gradients import KEEPS_GATHERED
from fsdpkit.training.initialisation import PartFill, fill_shards
from fsdpkit.training.precision import compute_dtype, dtype_of, unless_masters
from fsdpkit.training.units import ShardedUnit


def shard_fsdp2(model: nn.Module, setup: EngineSetup) -> nn.Module:
    """The same model, each unit of it sharded in place."""
    sharding, precision, ranks, units = setup.sharding, setup.precision, setup.ranks, setup.units
    dtype = compute_dtype(precision, ranks.device)
    offload = (
        CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda")
        if sharding.cpu_offload
        else OffloadPolicy()
    )
    # Full-precision modules cast for themselves, the same way for both engines.
    in_float32 = MixedPrecisionPolicy(
        reduce_dtype=dtype_of(precision.reduce), cast_forward_inputs=False
    )
    usual = MixedPrecisionPolicy(
        param_dtype=unless_masters(dtype, precision), reduce_dtype=in_float32.reduce_dtype
    )
    frees = _frees_after_forward(sharding, ranks)
    if ranks.world_size == 1 and not sharding.cpu_offload:
        frees = frees and not _fits_beside(model, dtype, setup.memory_bytes)
    for unit in reversed(units):  # what is inside another comes first
        fully_shard(
            list(unit.modules) if len(unit.modules) > 1 else unit.modules[0],
            mesh=setup.mesh,
            # The inner parts are small, and gathered anew inside a recomputed block they would
            # be a message more for each.
            reshard_after_forward=False if unit.inner or unit.last else frees,
            mp_policy=in_float32 if unit.float32 else usual,
            offload_policy=offload,
            ignored_params=setup.ignored,
        )
    output = dtype_of(precision.output) if precision.output else None
    fully_shard(
        model,
        mesh=setup.mesh,
        # The root's weights are the first that backward needs again: not freed in between.
        reshard_after_forward=False,
        mp_policy=dataclasses.replace(usual, output_dtype=output),
        offload_policy=offload,
        ignored_params=setup.ignored,
    )
    setattr(model, KEEPS_GATHERED, frees is False)
    if sharding.prefetch:
        _prefetch(model, units, sharding.prefetch)
    if (start := setup.start) is not None:
        make = partial(fill_shards, model, start, ranks.device, offload=sharding.cpu_offload)
        # What is wrong with the part that one rank reads is told by all of them.
        together(make) if isinstance(start.fill, PartFill) else make()
    return model


def _frees_after_forward(sharding: ShardingSettings, ranks: Ranks) -> bool | int:
    """Whether weights are freed between forward and backward, or over how many ranks they stay."""
    if sharding.reshard_to is None:
        return sharding.frees_after_forward
    to = ranks.local_world_size if sharding.reshard_to == "node" else sharding.reshard_to
    if ranks.world_size % to:
        raise ConfigError(
            f"training.sharding.reshard_to: {to} ranks do not divide {ranks.world_size}."
        )
    return False if to == 1 else to


def _fits_beside(model: nn.Module, dtype: torch.dtype, memory_bytes: int) -> bool:
    """Whether all weights, in the type they are gathered in, are a small part of a GPU's memory.

    One rank has nothing to gather, but copies its weights: once a step if they may stay from
    forward to backward, and twice if not.
    """
    values = sum(parameter.numel() for parameter in model.parameters())
    return values * dtype.itemsize <= memory_bytes // 16


def _prefetch(root: nn.Module, units: Sequence[ShardedUnit], depth: int) -> None:
    """Tell each unit which `depth` to gather ahead: the next in forward, those before in backward.

    The order is that of definition, which is a model's order of execution as a rule; where it is
    not, weights are gathered earlier than needed, and the numbers stay the same.
    """
    leading = [_as_fsdp(root), *(_as_fsdp(unit.modules[0]) for unit in units)]
    freed = [_as_fsdp(unit.modules[0]) for unit in units if not unit.last]
    for number, module in enumerate(leading):
        if number and units[number - 1].inner:
            continue  # runs again when its block is recomputed, where gathering ahead is waste
        module.set_modules_to_forward_prefetch(leading[number + 1 :][:depth])
        # Backward begins with the root and with what forward ended with, which are still whole.
        before = leading[1:number] if number and not units[number - 1].last else freed
        module.set_modules_to_backward_prefetch(before[::-1][:depth])


def _as_fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module
