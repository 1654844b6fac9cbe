"""First values of a sharded model: the same on every rank, and never a whole copy on one.

Either the model was built with values, which then must be equal everywhere (`fingerprint`), or it
was built on the meta device, without memory, and a `Fill` makes its values: each whole parameter in
turn, of which a rank keeps its part (FSDP2), or each module in turn as FSDP1 asks for it. They
depend on seed and name alone, not on engine, strategy or number of ranks.

Buffers are no weights: those that were built with values keep them, statistics of normalisations
begin as torch's do, and others need a `Fill` of their own (`Start`).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from fsdpkit.errors import ConfigError
from fsdpkit.listing import first_of
from fsdpkit.training.units import plain_name

Fill = Callable[[str, Tensor, Generator], None]
"""Fills one whole parameter in place: (its name, the tensor, a generator seeded for it).

A weight with several names is filled once, under the first.
"""

_STATISTICS = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
"""First values of what BatchNorm and InstanceNorm keep."""


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


@dataclass(frozen=True)
class Start:
    """Who gives the tensors of a model on the meta device their first values.

    A buffer's come from the files of a `PartFill`, else from where the model was built. Statistics
    of a normalisation begin as torch's do; `fill_buffers` makes the others.
    """

    fill: Fill
    seed: int
    fill_buffers: Fill | None = None

    def check_buffers(self, model: nn.Module) -> None:
        """Raise ConfigError for a buffer without memory whose value nobody knows."""
        unknown = [
            name
            for module, last, name in _buffers(model)
            if getattr(module, last).is_meta
            and not (self.fill_buffers or self._in_files(name) or _is_statistic(module, last))
        ]
        if unknown:
            raise ConfigError(
                f"{first_of(unknown, 3)}: on the meta device, and `fill` is not asked for "
                'buffers. Make them with device="cpu" where the model is built, so that they have '
                "their values, or pass shard() a `fill_buffers`."
            )

    def values(self, name: str, like: Tensor, device: torch.device) -> Tensor:
        """One whole parameter's."""
        return _filled(self.fill, name, like, self.seed, device)

    def set_buffer(
        self, module: nn.Module, last: str, name: str, built: Tensor, device: torch.device
    ) -> None:
        """Put the buffer `last` of `module` on `device`; `built` is what it was before."""
        if self._in_files(name):
            value = _filled(self.fill, name, built, self.seed, device)
        elif not built.is_meta:
            value = built.to(device)
        elif _is_statistic(module, last):
            value = torch.full_like(built, _STATISTICS[last], device=device)
        else:
            assert self.fill_buffers, "check_buffers comes first"
            value = _filled(self.fill_buffers, name, built, self.seed, device)
        setattr(module, last, value)

    def _in_files(self, name: str) -> bool:
        return isinstance(self.fill, PartFill) and self.fill.has(name)


def _buffers(model: nn.Module) -> list[tuple[nn.Module, str, str]]:
    """(module, attribute, plain name) of each buffer."""
    return [
        (module, last, plain_name(f"{prefix}.{last}" if prefix else last))
        for prefix, module in model.named_modules()
        for last, _ in module.named_buffers(recurse=False)
    ]


def _is_statistic(module: nn.Module, last: str) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase) and last in _STATISTICS


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


def fill_shards(model: nn.Module, start: Start, device: torch.device, *, offload: bool) -> None:
    """FSDP2, after `fully_shard` on meta: give each shard memory and its part of the first values.

    `device` is where values are made and buffers live; shards live there too, or with `offload` in
    host memory. One whole parameter at a time is held beside the shards, of a `PartFill` none.
    """
    fill = start.fill
    built = [(*slot, getattr(*slot[:2])) for slot in _buffers(model)]
    model.to_empty(device="cpu" if offload else device)
    with torch.no_grad():
        for module, last, name, buffer in built:
            start.set_buffer(module, last, name, buffer, device)
        for full_name, tensor in model.named_parameters():
            name = plain_name(full_name)
            if isinstance(tensor, DTensor) and isinstance(fill, PartFill) and fill.has(name):
                fill.fill_part(name, tensor)
                continue
            whole = start.values(name, tensor, device)
            if isinstance(tensor, DTensor):
                # src_data_rank=None: every rank cuts its own copy, nothing is sent.
                part = distribute_tensor(
                    whole, tensor.device_mesh, tensor.placements, src_data_rank=None
                )
                tensor.to_local().copy_(part.to_local())
            else:
                tensor.copy_(whole)


def fill_modules(
    model: nn.Module, start: Start, device: torch.device
) -> Callable[[nn.Module], None]:
    """FSDP1's `param_init_fn`: it asks for one module at a time and does not say which it is."""
    names = {id(module): name for name, module in model.named_modules()}
    first_of = {slot: slots[0] for slots in _tied_slots(model) for slot in slots}
    tied: dict[tuple[nn.Module, str], nn.Parameter] = {}  # made already, by the first slot

    def full_name(module: nn.Module, last: str) -> str:
        prefix = names[id(module)]
        return plain_name(f"{prefix}.{last}" if prefix else last)

    def materialise(module: nn.Module) -> None:
        built = dict(module.named_buffers(recurse=False))
        module.to_empty(device=device, recurse=False)
        with torch.no_grad():
            for last, buffer in built.items():
                start.set_buffer(module, last, full_name(module, last), buffer, device)
            for last, tensor in [*module.named_parameters(recurse=False)]:
                slot = first_of.get((module, last), (module, last))
                if (made := tied.get(slot)) is not None:
                    module.register_parameter(last, made)
                    continue
                # FSDP1 asks for a head before an embedding further in.
                tensor.copy_(start.values(full_name(*slot), tensor, device))
                if (module, last) in first_of:
                    tied[slot] = tensor

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
