"""First values of a sharded model: the same on every rank, and never a whole copy on one.

Either the model was built with values, which then must be equal everywhere (`fingerprint`), or it
was built on the meta device, without memory, and a `Fill` makes its values: each whole parameter in
turn, of which a rank keeps its part (FSDP2), or each module in turn as FSDP1 asks for it. They
depend on seed and name alone, not on engine, strategy or number of ranks.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from fsdpkit.training.units import plain_name

Fill = Callable[[str, Tensor, Generator], None]
"""Fills one whole parameter or buffer in place: (its name, the tensor, a generator seeded for it).

A weight with several names is filled once, under the first.
"""


@runtime_checkable
class PartFill(Protocol):
    """A `Fill` that knows what it has, and can give a rank its part alone (`fill_from`)."""

    def __call__(self, name: str, tensor: Tensor, generator: Generator, /) -> None: ...

    def check(self, model: nn.Module) -> None:
        """Raise ConfigError unless it has what `model` needs."""

    def has(self, name: str) -> bool:
        """Whether `fill_part` can fill this tensor."""

    def fill_part(self, name: str, tensor: DTensor) -> None:
        """Fill this rank's part of a sharded tensor."""


def is_on_meta(model: nn.Module) -> bool:
    """Whether any weight is still without memory."""
    return any(p.is_meta for p in model.parameters())


def fingerprint(model: nn.Module) -> str:
    """A checksum of all values; equal on ranks that were seeded alike."""
    digest = 0
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            sums = tensor.detach().double().flatten()
            weights = torch.arange(1, sums.numel() + 1, device=sums.device, dtype=torch.float64)
            digest = zlib.crc32(f"{name} {(sums * weights).sum().item()!r}".encode(), digest)
    return f"crc {digest:08x}"


def send_to_all(model: nn.Module) -> None:
    """Give all ranks rank 0's values of what `model` has; a collective."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            values = tensor.detach().contiguous()
            dist.broadcast(values, src=0)
            tensor.copy_(values)


def fill_shards(
    model: nn.Module, fill: Fill, seed: int, device: torch.device, *, offload: bool
) -> None:
    """FSDP2, after `fully_shard` on meta: give each shard memory and its part of `fill`'s values.

    `device` is where values are made and buffers live; shards live there too, or with `offload` in
    host memory. One whole parameter at a time is held beside the shards, of a `PartFill` none.
    """
    model.to_empty(device="cpu" if offload else device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))

    with torch.no_grad():
        for full_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            name = plain_name(full_name)
            if isinstance(tensor, DTensor) and isinstance(fill, PartFill) and fill.has(name):
                fill.fill_part(name, tensor)
                continue
            whole = _filled(fill, name, tensor, seed, device)
            if isinstance(tensor, DTensor):
                # src_data_rank=None: every rank cuts its own copy, nothing is sent.
                part = distribute_tensor(
                    whole, tensor.device_mesh, tensor.placements, src_data_rank=None
                )
                tensor.to_local().copy_(part.to_local())
            else:
                tensor.copy_(whole)


def fill_modules(
    model: nn.Module, fill: Fill, seed: int, device: torch.device
) -> Callable[[nn.Module], None]:
    """FSDP1's `param_init_fn`: it asks for one module at a time and does not say which it is."""
    names = {id(module): name for name, module in model.named_modules()}
    first_of = {
        (module, name): slots[0] for slots in _tied_slots(model) for module, name in slots[1:]
    }

    def materialise(module: nn.Module) -> None:
        module.to_empty(device=device, recurse=False)
        prefix = names[id(module)]
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        with torch.no_grad():
            for last, tensor in own:
                if (module, last) in first_of:
                    first, name = first_of[module, last]
                    module.register_parameter(last, getattr(first, name))
                    continue
                name = plain_name(f"{prefix}.{last}" if prefix else last)
                tensor.copy_(_filled(fill, name, tensor, seed, device))

    return materialise


def _filled(fill: Fill, name: str, like: Tensor, seed: int, device: torch.device) -> Tensor:
    """One whole tensor's values. Of bfloat16 they are drawn as those of float32, then rounded."""
    dtype = torch.float32 if like.dtype is torch.bfloat16 else like.dtype
    whole = torch.empty(like.shape, dtype=dtype, device=device)
    fill(name, whole, seeded_generator(name, seed, device))
    return whole.to(like.dtype)


def _tied_slots(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """For each weight that several modules hold: (module, attribute), the first named first."""
    slots: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                slots[parameter].append((module, name))
    return [held for held in slots.values() if len(held) > 1]


def seeded_generator(name: str, seed: int, device: torch.device) -> Generator:
    """For the values of one parameter. A hash: on a CPU only 32 bits of a seed count."""
    return Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
