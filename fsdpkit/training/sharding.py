"""One setting, two engines: spread a model's weights, gradients and optimizer state over the ranks.

FSDP2 (`fully_shard`) is the default and FSDP1 (`FullyShardedDataParallel`) a first-class second,
with the same numbers. Both average gradients over ranks: a loop that wants a sum over samples
multiplies its loss by the world size. Gradient accumulation and clipping, where the engines differ
too, are here as well.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Generator, Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
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
from torch.distributed.tensor import DTensor, distribute_tensor

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.activation_checkpointing import checkpoint_activations
from fsdpkit.training.distributed import Ranks, check_same_everywhere

Fill = Callable[[str, Tensor, Generator], None]
"""Fills one whole parameter in place: (its name, the tensor, a generator seeded for it)."""

_WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_FSDP1 = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "no_shard": ShardingStrategy.NO_SHARD,
}


def shard(
    model: nn.Module,
    sharding: ShardingSettings,
    precision: PrecisionSettings,
    ranks: Ranks,
    *,
    blocks: Collection[type[nn.Module]],
    fill: Fill | None = None,
    seed: int = 0,
) -> nn.Module:
    """`model` sharded block by block, on `ranks.device`; build the optimizer from what it returns.

    `blocks` are the classes of the large repeated layers: each instance is one unit, gathered and
    freed as a whole, and everything outside them is the root unit. Two ways to start:

    - Built on the meta device, with `fill`: each rank fills one whole parameter at a time and keeps
      its shard (FSDP1: one unit at a time). The values depend on seed and parameter name only, so
      they are the same for every world size and both engines.
    - Built with values: they must be equal on all ranks, which is checked; FSDP does not broadcast.

    Raises ConfigError for blocks that the model lacks, a hybrid group that does not divide the
    world, or a parameter tied across units; FsdpkitError when ranks hold different values.
    """
    if sharding.activation_checkpointing == "full":
        checkpoint_activations(model, blocks)
    units = _units(model, blocks)
    _refuse_ties_across(model, units)
    on_meta = any(p.is_meta for p in model.parameters())
    if on_meta and fill is None:
        raise ConfigError("The model is on the meta device: pass `fill`, or build it with values.")
    if not on_meta:
        check_same_everywhere("initial weights", _fingerprint(model))
    check_same_everywhere("modules", f"crc {zlib.crc32(repr(model).encode()):08x}")

    mesh = _mesh(sharding, ranks)
    if sharding.engine == "fsdp1":
        initialise = _by_module(model, fill, seed, ranks.device) if fill and on_meta else None
        return _shard_fsdp1(model, sharding, precision, ranks, units, mesh, initialise)

    dtype = compute_dtype(precision, ranks.device)
    apply = functools.partial(
        fully_shard,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=None if dtype is torch.float32 else dtype,
            reduce_dtype=getattr(torch, precision.reduce),
        ),
        offload_policy=CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda")
        if sharding.cpu_offload
        else OffloadPolicy(),
    )
    for unit in units:
        apply(unit, reshard_after_forward=sharding.strategy in ("full_shard", "hybrid_shard"))
    # The root's weights are the first that backward needs again: not freed in between.
    apply(model, reshard_after_forward=False)
    if on_meta and fill:
        model.to_empty(device="cpu" if sharding.cpu_offload else ranks.device)
        _fill_shards(model, fill, seed, ranks.device)
    return model


def compute_dtype(precision: PrecisionSettings, device: torch.device) -> torch.dtype:
    """The type in which gathered weights and activations are held."""
    if precision.param == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, precision.param)
    return dtype


@contextmanager
def gradient_sync(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside, backward reduces gradients over ranks only if `wanted`, else it adds them up."""
    if isinstance(model, FullyShardedDataParallel):
        with nullcontext() if wanted else model.no_sync():
            yield
    else:
        assert isinstance(model, FSDPModule), "shard() has not seen this model"
        model.set_requires_gradient_sync(wanted)
        yield


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most `max_norm` (0: leave them).

    Returns the norm before clipping, a float32 scalar on the device; the host does not wait.
    """
    limit = max_norm or math.inf
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(limit)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    # What a DTensor holds may be this rank's share of the norm only.
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def plain_name(name: str) -> str:
    """A parameter's name as the unwrapped model has it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _mesh(sharding: ShardingSettings, ranks: Ranks) -> DeviceMesh:
    """One dimension of shards, or replicas × shards; needs the process group."""
    if sharding.strategy not in ("hybrid_shard", "no_shard"):
        return init_device_mesh(ranks.device.type, (ranks.world_size,), mesh_dim_names=("shard",))
    size = sharding.shard_size or ranks.local_world_size
    if sharding.strategy == "no_shard":
        size = 1
    if ranks.world_size % size:
        raise ConfigError(
            f"hybrid_shard in groups of {size} does not divide {ranks.world_size} ranks: set "
            "training.sharding.shard_size to a divisor."
        )
    return init_device_mesh(
        ranks.device.type,
        (ranks.world_size // size, size),
        mesh_dim_names=("replicate", "shard"),
    )


def _units(model: nn.Module, blocks: Collection[type[nn.Module]]) -> list[nn.Module]:
    """The outermost modules of the given classes, each with its checkpoint wrapper if any."""
    units: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        inner = (
            module._checkpoint_wrapped_module if isinstance(module, CheckpointWrapper) else module
        )
        if isinstance(inner, tuple(blocks)):
            units.append(module)
        else:
            for child in module.children():
                visit(child)

    visit(model)
    if not units:
        names = ", ".join(block.__name__ for block in blocks) or "none"
        raise ConfigError(f"{type(model).__name__} has no module of the block classes: {names}.")
    return units


def _refuse_ties_across(model: nn.Module, units: list[nn.Module]) -> None:
    owner: dict[nn.Parameter, int] = {}
    in_units = {id(p) for unit in units for p in unit.parameters()}
    rest = {id(m) for unit in units for m in unit.modules()}
    for number, unit in enumerate(units):
        for parameter in unit.parameters():
            if owner.setdefault(parameter, number) != number:
                raise ConfigError(_TIED)
    for module in model.modules():
        if id(module) not in rest and any(
            id(p) in in_units for p in module.parameters(recurse=False)
        ):
            raise ConfigError(_TIED)


_TIED = (
    "A weight is shared between two FSDP units. Keep tied layers (embedding and head, say) outside "
    "the block classes: then both belong to the root unit."
)


def _fingerprint(model: nn.Module) -> str:
    """A checksum of all values; equal on ranks that were seeded alike."""
    digest = 0
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            sums = tensor.detach().double().flatten()
            weights = torch.arange(1, sums.numel() + 1, device=sums.device, dtype=torch.float64)
            digest = zlib.crc32(f"{name} {(sums * weights).sum().item()!r}".encode(), digest)
    return f"crc {digest:08x}"


def _generator(name: str, seed: int, device: torch.device) -> Generator:
    return Generator(device).manual_seed(seed * 2**32 + zlib.crc32(name.encode()))


def _fill_shards(model: nn.Module, fill: Fill, seed: int, device: torch.device) -> None:
    """FSDP2: make each whole parameter in turn, keep this rank's part of it."""
    with torch.no_grad():
        for full_name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            name = plain_name(full_name)
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            fill(name, whole, _generator(name, seed, device))
            if isinstance(parameter, DTensor):
                # src_data_rank=None: every rank cuts its own copy, nothing is sent.
                part = distribute_tensor(
                    whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
                parameter.to_local().copy_(part.to_local())
            else:
                parameter.copy_(whole)


def _by_module(
    model: nn.Module, fill: Fill, seed: int, device: torch.device
) -> Callable[[nn.Module], None]:
    """FSDP1 asks for one module at a time, not its children, and does not say which it is."""
    names = {id(module): name for name, module in model.named_modules()}

    def materialise(module: nn.Module) -> None:
        module.to_empty(device=device, recurse=False)
        prefix = names[id(module)]
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        with torch.no_grad():
            for last, tensor in own:
                name = plain_name(f"{prefix}.{last}" if prefix else last)
                fill(name, tensor, _generator(name, seed, device))

    return materialise


def _shard_fsdp1(
    model: nn.Module,
    sharding: ShardingSettings,
    precision: PrecisionSettings,
    ranks: Ranks,
    units: list[nn.Module],
    mesh: DeviceMesh,
    initialise: Callable[[nn.Module], None] | None,
) -> nn.Module:
    unit_ids = {id(unit) for unit in units}
    dtype = compute_dtype(precision, ranks.device)
    return FullyShardedDataParallel(
        model,
        # With a mesh, state dicts hold DTensors, which either engine can load.
        device_mesh=None if sharding.strategy == "no_shard" else mesh,
        sharding_strategy=_FSDP1[sharding.strategy],
        auto_wrap_policy=CustomPolicy(lambda module: id(module) in unit_ids),
        mixed_precision=None
        if dtype is torch.float32
        else MixedPrecision(param_dtype=dtype, reduce_dtype=getattr(torch, precision.reduce)),
        # On a CPU there is nothing to offload, and FSDP1 crashes trying.
        cpu_offload=CPUOffload(sharding.cpu_offload and ranks.device.type != "cpu"),
        limit_all_gathers=sharding.limit_all_gathers,
        param_init_fn=initialise,
        device_id=ranks.device,
        use_orig_params=True,  # named parameters for the optimizer's groups and for checkpoints
    )
