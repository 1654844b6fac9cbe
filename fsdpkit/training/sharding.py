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

import zlib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.activation_checkpointing import checkpoint_activations, offload_activations
from fsdpkit.training.compilation import COMPILED, compile_blocks
from fsdpkit.training.distributed import Ranks, check_same_everywhere
from fsdpkit.training.engine import EngineSetup
from fsdpkit.training.fsdp1 import shard_fsdp1
from fsdpkit.training.fsdp2 import shard_fsdp2
from fsdpkit.training.initialisation import (
    Fill,
    PartFill,
    Start,
    fingerprint,
    is_on_meta,
    seeded_generator,
    send_to_all,
)
from fsdpkit.training.precision import cast_around, compute_dtype, keep_float32, lower_masters
from fsdpkit.training.units import (
    IsUnit,
    ShardedUnit,
    block_paths,
    find_units,
    own_blocks,
    plain_name,
    unwrapped,
    walk,
    warning_about_tiny,
)

__all__ = ["Fill", "plain_name", "shard"]

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
    ignored = _ignored_parameters(model, sharding.ignore)
    kept = _set_types(model, precision, dtype, ignored.values())
    units = find_units(
        model, sharding, blocks, kept, is_unit, _apart(model, sharding, last, set(ignored.values()))
    )
    if sharding.activation_checkpointing == "selective":
        _refuse_units_in_blocks(units, block_paths(model, blocks), sharding)
    warning = warning_about_tiny(units)
    if warning and ranks.world_size > 1:
        ranks.say(warning)

    start = _start(model, fill, fill_buffers, seed)
    _agree_on(model, with_values=start is None, send=sharding.sync_module_states)
    compiled = compile_blocks(model, blocks) if compile is True else None
    if sharding.activation_checkpointing == "offload":
        offload_activations(model, blocks, every=sharding.checkpoint_every)
    if start:
        ignored = _fill_ignored(model, ignored, start.fill, seed, ranks.device)
    _keep_equal(ignored.values(), ranks.device)
    sharding = _without_groups_of_one(sharding, ranks)
    setup = EngineSetup(
        sharding,
        precision,
        ranks,
        _mesh(sharding, ranks),
        units,
        set(ignored.values()),
        start,
        _memory_bytes(ranks.device),
    )
    engine = shard_fsdp1 if sharding.engine == "fsdp1" else shard_fsdp2
    dimensions = {plain_name(name): parameter.ndim for name, parameter in model.named_parameters()}
    model = engine(model, setup)
    setattr(model, DIMENSIONS, dimensions)
    if compiled:
        setattr(model, COMPILED, compiled)
    return model


def _set_types(
    model: nn.Module,
    precision: PrecisionSettings,
    dtype: torch.dtype,
    ignored: Collection[nn.Parameter],
) -> list[str]:
    """Make modules that compute in another type than the rest cast by themselves, and the shards
    as small as they are to be; paths of the modules that compute in float32."""
    if ignored and dtype is not torch.float32:
        cast_around(model, _modules_of(model, ignored), dtype)
    kept = keep_float32(model, precision, dtype)
    if precision.master == "bfloat16":
        lower_masters(model, kept, set(ignored))
    return kept


def _agree_on(model: nn.Module, *, with_values: bool, send: bool) -> None:
    """All ranks have the same modules, and the same values where they were built with any; send:
    rank 0's first. Raises FsdpkitError."""
    check_same_everywhere("modules", f"crc {zlib.crc32(repr(model).encode()):08x}")
    if with_values:
        if send:
            send_to_all(model)
        check_same_everywhere("initial weights", fingerprint(model), _SAME_WEIGHTS)


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
    if not sharding.hybrid:
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
        return msgspec.structs.replace(sharding, strategy=sharding.within_group)
    return sharding


def _mesh(sharding: ShardingSettings, ranks: Ranks) -> DeviceMesh:
    """One dimension of shards, or replicas × shards; needs the process group."""
    size = sharding.shard_ranks(ranks.world_size, ranks.local_world_size)
    if not sharding.hybrid and sharding.strategy != "no_shard":
        return init_device_mesh(ranks.device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(
        ranks.device.type, (ranks.world_size // size, size), mesh_dim_names=("replicate", "shard")
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


def _memory_bytes(device: torch.device) -> int:
    """Of a GPU; 0 of a host, which has other uses for it."""
    if device.type != "cuda":
        return 0
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total


_KEY = "training.sharding.ignore"


def _ignored_parameters(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that one of `patterns` fits, by plain name; a tied one under its first.

    Raises ConfigError for a pattern that fits nothing, and when nothing would be left to shard.
    """
    named = {plain_name(name): parameter for name, parameter in model.named_parameters()}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(
                f"{_KEY}: {pattern!r} fits no parameter of {type(model).__name__}. They are named "
                f"like {', '.join(list(named)[:4])}."
            )
    found = {n: p for n, p in named.items() if any(fnmatchcase(n, each) for each in patterns)}
    if found and len(found) == len(named):
        raise ConfigError(
            f"{_KEY} fits every parameter, so nothing would be sharded: use strategy "
            '"no_shard", or narrower patterns.'
        )
    return found


def _modules_of(model: nn.Module, ignored: Collection[nn.Parameter]) -> list[str]:
    """Paths of the modules that hold `ignored`. Raises ConfigError for one that holds others, too:
    it could not compute in a single type."""
    paths = []
    for path, module in walk(model):
        own = [p for p in unwrapped(module)._parameters.values() if p is not None]
        among = [p for p in own if any(p is each for each in ignored)]
        if among and len(among) < len(own):
            raise ConfigError(
                f"{_KEY}: {path} has other parameters, too, which would compute in another type: "
                f'ignore all of it ("{path}.*"), or set training.precision.param = "float32".'
            )
        if among:
            paths.append(path)
    return paths


def _fill_ignored(
    model: nn.Module,
    ignored: Mapping[str, nn.Parameter],
    fill: Fill,
    seed: int,
    device: torch.device,
) -> dict[str, nn.Parameter]:
    """`ignored` with memory on `device` and the values that `fill` gives them, put into `model`."""
    filled: dict[str, nn.Parameter] = {}
    for name, parameter in ignored.items():
        whole = torch.empty_like(parameter, device=device)
        with torch.no_grad():
            fill(name, whole, seeded_generator(name, seed, device))
        filled[name] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
    by_empty = {id(parameter): filled[name] for name, parameter in ignored.items()}
    for module in model.modules():
        for last, held in module._parameters.items():
            module._parameters[last] = by_empty.get(id(held), held)
    return filled


def _keep_equal(ignored: Collection[nn.Parameter], device: torch.device) -> None:
    """Put them on `device`; from now on their gradients are the average over all ranks,
    which both engines leave alone, so that each rank would train its own copy.

    Each time that one was added to, so that gradients may also be accumulated: the average of what
    is the same everywhere and of what was added is the average of both.
    """
    for parameter in ignored:
        parameter.data = parameter.data.to(device)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]


def _average(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(dist.get_world_size())
