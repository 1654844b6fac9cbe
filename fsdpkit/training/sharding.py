"""One setting, two engines: spread a model's weights, gradients and optimizer state over the ranks.

FSDP2 (`fully_shard`) is the default and FSDP1 (`FullyShardedDataParallel`) a first-class second,
with the same numbers. Both average gradients over ranks: a loop that wants a sum over samples
multiplies its loss by the world size (`fsdpkit.training.gradients`).

The order of things is fixed here, because most others are wrong: activation checkpointing, then
compilation, then offloading of activations, then sharding, and an optimizer built from what `shard`
returns. Buffers, such as BatchNorm's running statistics, are not sharded and not exchanged: each
rank keeps its own, as under DistributedDataParallel with broadcast_buffers=False, and rank 0's are
those that a checkpoint has.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.activation_checkpointing import checkpoint_activations
from fsdpkit.training.activation_offload import offload_activations
from fsdpkit.training.compilation import COMPILED, compile_blocks
from fsdpkit.training.distributed import Ranks, check_same_everywhere, together
from fsdpkit.training.gradients import KEEPS_GATHERED
from fsdpkit.training.ignored import fill_ignored, ignored_parameters, keep_equal, modules_of
from fsdpkit.training.initialisation import (
    Fill,
    PartFill,
    Start,
    fill_modules,
    fill_shards,
    fingerprint,
    is_on_meta,
    send_to_all,
)
from fsdpkit.training.precision import (
    cast_around,
    cast_output,
    compute_dtype,
    dtype_of,
    keep_float32,
    lower_masters,
    unless_masters,
)
from fsdpkit.training.units import (
    IsUnit,
    ShardedUnit,
    block_paths,
    find_units,
    own_blocks,
    plain_name,
    walk,
    warning_about_tiny,
)

__all__ = ["Fill", "plain_name", "shard"]

_WITHIN_GROUP = {"hybrid_shard": "full_shard", "hybrid_shard_zero2": "shard_grad_op"}
_HYBRID = tuple(_WITHIN_GROUP)
_FREES_AFTER_FORWARD = ("full_shard", "hybrid_shard")
_FSDP1 = {
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


DIMENSIONS = "_fsdpkit_dimensions"
"""Attribute of a sharded model: how many dimensions each parameter has, by its plain name. FSDP1's
shards do not show it."""


_SAME_WEIGHTS = (
    "Call torch.manual_seed with the same number on every rank before the model is built, or set "
    "training.sharding.sync_module_states = true to take rank 0's."
)


def shard(
    model: nn.Module,
    sharding: ShardingSettings,
    precision: PrecisionSettings,
    ranks: Ranks,
    *,
    blocks: Collection[type[nn.Module]] = (),
    fill: Fill | None = None,
    fill_buffers: Fill | None = None,
    seed: int = 0,
    compile: bool | Literal["auto"] = False,
    is_unit: IsUnit | None = None,
    last: Sequence[str] = (),
) -> nn.Module:
    """Shard a model unit by unit, on `ranks.device`; a collective.

    FSDP2 is torch's `fully_shard`, FSDP1 its `FullyShardedDataParallel`. Build the optimizer from
    what this returns. There are two ways to start:

    - Built on the meta device, with `fill`: each rank fills one whole parameter at a time and keeps
      its shard (FSDP1: one unit at a time); of files (`fill_from`) it reads its part alone. Values
      depend on seed and parameter name only, or on the files, so they are the same for every world
      size and both engines. Buffers that were built with values (`device="cpu"`) keep them, and
      BatchNorm's statistics begin anew.
    - Built with values: they must be equal on all ranks, which is checked, or with
      `sync_module_states` are rank 0's.

    Args:
        model: Any module whose `forward` uses its weights inside their modules.
        sharding: `[training.sharding]`: engine, strategy, units, activation checkpointing.
        precision: `[training.precision]`: types of computation, gradients and shards.
        ranks: From `process_group`.
        blocks: Classes of the large repeated layers: what is checkpointed and compiled, and under
            `wrap = "class"` what is gathered and freed as a whole. Everything outside the units is
            the root unit. Empty: those that a model of `transformers` names.
        fill: Fills a parameter in place: (name, tensor, generator). Its shape is the whole one's.
        fill_buffers: The same for buffers on the meta device.
        seed: Of the generators; the same number on all ranks.
        compile: Whether to compile the blocks. `"auto"` is for `fsdpkit.config.training.for_device`
            to decide, and compiles nothing here.
        is_unit: Called with each module's path and the module, in place of the settings' `wrap`: a
            module is a unit where it says so.
        last: Paths of modules that forward ends with, such as a large head: under `wrap = "class"`
            FSDP2 gathers each by itself, while the blocks compute. Outside their forward their
            weights must not be used.

    Returns:
        The sharded model: under FSDP2 the same object, under FSDP1 a wrapper.

    Raises:
        ConfigError: The model lacks one of the blocks or names, a group of ranks does not divide
            the world, a parameter is tied across units, nobody knows a buffer's value, or `fill` is
            missing.
        FsdpkitError: The ranks hold different values or modules.
    """
    blocks = blocks or own_blocks(model)
    if sharding.activation_checkpointing in ("full", "selective"):
        checkpoint_activations(
            model,
            blocks,
            sharding.activation_checkpointing,
            every=sharding.checkpoint_every,
            compiled=compile is True,
        )
    dtype = compute_dtype(precision, ranks.device)
    ignored = ignored_parameters(model, sharding.ignore)
    if ignored and dtype is not torch.float32:
        cast_around(model, modules_of(model, ignored.values()), dtype)
    kept = keep_float32(model, precision, dtype)
    if precision.master == "bfloat16":
        lower_masters(model, kept, set(ignored.values()))
    units = find_units(
        model, sharding, blocks, kept, is_unit, _apart(model, sharding, last, set(ignored.values()))
    )
    if sharding.activation_checkpointing == "selective":
        _refuse_units_in_blocks(units, block_paths(model, blocks), sharding)
    warning = warning_about_tiny(units)
    if warning and ranks.world_size > 1:
        ranks.say(warning)

    start = _start(model, fill, fill_buffers, seed)
    check_same_everywhere("modules", f"crc {zlib.crc32(repr(model).encode()):08x}")
    if start is None:
        if sharding.sync_module_states:
            send_to_all(model)
        check_same_everywhere("initial weights", fingerprint(model), _SAME_WEIGHTS)

    compiled = compile_blocks(model, blocks) if compile is True else None
    if sharding.activation_checkpointing == "offload":
        offload_activations(model, blocks, every=sharding.checkpoint_every)
    if start:
        ignored = fill_ignored(model, ignored, start.fill, seed, ranks.device)
    keep_equal(ignored.values(), ranks.device)
    sharding = _without_groups_of_one(sharding, ranks)
    engine = _shard_fsdp1 if sharding.engine == "fsdp1" else _shard_fsdp2
    dimensions = {plain_name(name): parameter.ndim for name, parameter in model.named_parameters()}
    model = engine(model, sharding, precision, ranks, units, set(ignored.values()), start)
    setattr(model, DIMENSIONS, dimensions)
    if compiled:
        setattr(model, COMPILED, compiled)
    return model


def _start(
    model: nn.Module, fill: Fill | None, fill_buffers: Fill | None, seed: int
) -> Start | None:
    """What gives a model on the meta device its values; None for one that was built with them.
    Raises ConfigError where nothing does."""
    if not is_on_meta(model):
        return None
    if fill is None:
        raise ConfigError("The model is on the meta device: pass `fill`, or build it with values.")
    if isinstance(fill, PartFill):
        fill.check(model)
    start = Start(fill, seed, fill_buffers)
    start.check_buffers(model)
    return start


def _without_groups_of_one(sharding: ShardingSettings, ranks: Ranks) -> ShardingSettings:
    """A hybrid on one node replicates over a single group: the same without that dimension, and
    without its messages; a hybrid in groups of one rank is no_shard.
    """
    if sharding.strategy not in _HYBRID:
        return sharding
    size = sharding.shard_size or ranks.local_world_size
    if ranks.world_size % size:
        raise ConfigError(
            f"{sharding.strategy} in groups of {size} does not divide {ranks.world_size} ranks: "
            "set training.sharding.shard_size to a divisor."
        )
    if size == 1:
        return msgspec.structs.replace(sharding, strategy="no_shard")
    if size == ranks.world_size:
        return msgspec.structs.replace(sharding, strategy=_WITHIN_GROUP[sharding.strategy])
    return sharding


def _mesh(sharding: ShardingSettings, ranks: Ranks) -> DeviceMesh:
    """One dimension of shards, or replicas × shards; needs the process group."""
    if sharding.strategy not in (*_HYBRID, "no_shard"):
        return init_device_mesh(ranks.device.type, (ranks.world_size,), mesh_dim_names=("shard",))
    size = sharding.shard_size or ranks.local_world_size
    if sharding.strategy == "no_shard":
        size = 1
    return init_device_mesh(
        ranks.device.type,
        (ranks.world_size // size, size),
        mesh_dim_names=("replicate", "shard"),
    )


def _apart(
    model: nn.Module, sharding: ShardingSettings, last: Sequence[str], ignored: set[nn.Parameter]
) -> list[str]:
    """Which of `last` FSDP2 gathers by themselves: what has anything to gather."""
    modules = dict(walk(model))
    for path in last:
        if path not in modules:
            raise ConfigError(f"{type(model).__name__} has no module {path}, which `last` names.")
    if sharding.engine != "fsdp2":
        return []
    return [path for path in last if not ignored.issuperset(modules[path].parameters())]


def _refuse_units_in_blocks(
    units: Sequence[ShardedUnit], checkpointed: Sequence[str], sharding: ShardingSettings
) -> None:
    """Selective checkpointing counts operations, and gathering inside a block adds some that come
    once more, or once less, when the block is run again.
    """
    for unit in units:
        # FSDP2's inner parts stay gathered until then: nothing is added.
        harmless = unit.inner and sharding.engine == "fsdp2"
        if not harmless and any(unit.path.startswith(f"{block}.") for block in checkpointed):
            raise ConfigError(
                f"{unit.path} is gathered by itself inside a block that is checkpointed "
                'selectively, which cannot be recomputed: set activation_checkpointing = "full", '
                'or leave it out of training.precision.keep_float32 (works with engine = "fsdp2") '
                "and training.sharding.wrap_names."
            )


def _shard_fsdp2(
    model: nn.Module,
    sharding: ShardingSettings,
    precision: PrecisionSettings,
    ranks: Ranks,
    units: Sequence[ShardedUnit],
    ignored: set[nn.Parameter],
    start: Start | None,
) -> nn.Module:
    mesh = _mesh(sharding, ranks)
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
        frees = frees and not _has_room_for(model, dtype, ranks.device)
    for unit in reversed(units):  # what is inside another comes first
        fully_shard(
            list(unit.modules) if len(unit.modules) > 1 else unit.modules[0],
            mesh=mesh,
            # The inner parts are small, and gathered anew inside a recomputed block they would
            # be a message more for each.
            reshard_after_forward=False if unit.inner or unit.last else frees,
            mp_policy=in_float32 if unit.float32 else usual,
            offload_policy=offload,
            ignored_params=ignored,
        )
    output = dtype_of(precision.output) if precision.output else None
    fully_shard(
        model,
        mesh=mesh,
        # The root's weights are the first that backward needs again: not freed in between.
        reshard_after_forward=False,
        mp_policy=dataclasses.replace(usual, output_dtype=output),
        offload_policy=offload,
        ignored_params=ignored,
    )
    setattr(model, KEEPS_GATHERED, frees is False)
    if sharding.prefetch:
        _prefetch(model, units, sharding.prefetch)
    if start:
        make = partial(fill_shards, model, start, ranks.device, offload=sharding.cpu_offload)
        # What is wrong with the part that one rank reads is told by all of them.
        together(make) if isinstance(start.fill, PartFill) else make()
    return model


def _frees_after_forward(sharding: ShardingSettings, ranks: Ranks) -> bool | int:
    """Whether weights are freed between forward and backward, or over how many ranks they stay."""
    if sharding.reshard_to is None:
        return sharding.strategy in _FREES_AFTER_FORWARD
    to = ranks.local_world_size if sharding.reshard_to == "node" else sharding.reshard_to
    if ranks.world_size % to:
        raise ConfigError(
            f"training.sharding.reshard_to: {to} ranks do not divide {ranks.world_size}."
        )
    return False if to == 1 else to


def _has_room_for(model: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether all weights, in the type they are gathered in, are a small part of a GPU's memory.

    One rank has nothing to gather, but copies its weights: once a step if they may stay from
    forward to backward, and twice if not.
    """
    values = sum(parameter.numel() for parameter in model.parameters())
    return values * dtype.itemsize <= _memory_bytes(device) // 16


def _memory_bytes(device: torch.device) -> int:
    """Of a GPU; 0 of a host, which has other uses for it."""
    if device.type != "cuda":
        return 0
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total


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


def _shard_fsdp1(
    model: nn.Module,
    sharding: ShardingSettings,
    precision: PrecisionSettings,
    ranks: Ranks,
    units: Sequence[ShardedUnit],
    ignored: set[nn.Parameter],
    start: Start | None,
) -> nn.Module:
    mesh = _mesh(sharding, ranks)
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
    if start:
        initialise = fill_modules(model, start, ranks.device)
    sharded = FullyShardedDataParallel(
        model,
        # With a mesh, state dicts hold DTensors, which either engine can load.
        device_mesh=None if sharding.strategy == "no_shard" else mesh,
        sharding_strategy=_FSDP1[sharding.strategy],
        auto_wrap_policy=CustomPolicy(policy),
        mixed_precision=None if plain else usual,
        # On a CPU there is nothing to offload, and FSDP1 crashes trying.
        cpu_offload=CPUOffload(sharding.cpu_offload and ranks.device.type != "cpu"),
        limit_all_gathers=sharding.limit_all_gathers,
        forward_prefetch=sharding.prefetch > 0,
        backward_prefetch=_BACKWARD_PREFETCH[sharding.backward_prefetch],
        param_init_fn=initialise,
        device_id=ranks.device,
        ignored_states=ignored or None,
        use_orig_params=True,  # named parameters for the optimizer's groups and for checkpoints
    )
    if precision.output:
        cast_output(sharded, dtype_of(precision.output))
    return sharded
