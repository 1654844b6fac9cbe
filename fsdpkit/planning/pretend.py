"""A GPU that is not there: tensors with shapes and no values, on a device and among ranks of which
this process has none.

torch lets a program bring a device of its own ("privateuse1"); this one is named `pretend`. Its
tensors are fake ones, so nothing is computed or allocated, and yet autograd, FSDP, DTensor and
optimizers run their own code for a device with streams. Host memory stays another device, "cpu",
so that what is offloaded can be told from what is not.

A process can bring one such device, and one default process group: use a process for planning.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_init import _get_post_forward_mesh_info
from torch.distributed.tensor import DTensor, Shard
from torch.nn.attention import flex_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fsdpkit.training import distributed, initialisation, rounding, sharding
from fsdpkit.training.distributed import Ranks

T = TypeVar("T")
NAME = "pretend"
Kernels = Literal["gpu", "plain"]
"""plain: where a GPU has a fused kernel, what torch does on a device without one, such as a CPU."""


class Stream:
    """A queue of the device, by number; 0 is the one that computes."""

    _numbers = itertools.count(1)
    device_index = 0
    device_type = 20
    """c10's number of privateuse1 (c10/core/DeviceType.h)."""

    def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
        self.stream_id = next(self._numbers) if number is None else number

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record_event(self, event: Any = None) -> Event:
        return event or Event()

    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id


class Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, stream: Any = None) -> Event:
        return self

    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class Backend:
    """`torch.pretend`: what torch and FSDP ask the module of a device."""

    def __init__(self) -> None:
        self.Stream, self.Event = Stream, Event
        self._current = Stream(number=0)

    def current_stream(self, device: Any = None) -> Stream:
        return self._current

    def set_stream(self, stream: Stream) -> None:
        self._current = stream

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        before, self._current = self._current, stream or self._current
        try:
            yield
        finally:
            self._current = before

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None: ...
    def device_count(self) -> int:
        return 1

    def synchronize(self, device: Any = None) -> None: ...
    def empty_cache(self) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...
    def manual_seed(self, seed: int) -> None: ...
    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Tensor, device: Any = None) -> None: ...
    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_backend: Backend | None = None
_library: Any = torch.library.Library
_kernels = _library("aten", "IMPL")


def backend() -> Backend:
    """The device's module; brings the device on the first call."""
    global _backend
    if _backend is None:
        _backend = Backend()
        _setup_privateuseone_for_python_backend(NAME, _backend)
        # Without a kernel for the device torch computes it from several others, each with a result.
        _kernels.impl("silu_backward", torch.empty_like, "PrivateUse1")  # fake ones never get there
    return _backend


_tensor, _usual_rms_norm = torch.tensor, F.rms_norm


def _made(data: Any, *, device: Any = None, **about: Any) -> Tensor:
    """torch.tensor(1.0, device=…), whose value torch knows and would have on the device, too."""
    if device is None or torch.device(device).type != NAME:
        return _tensor(data, device=device, **about)
    with unset_fake_temporarily():
        like = _tensor(data, dtype=about.get("dtype"), device="cpu")
    needs = bool(about.get("requires_grad"))
    return torch.empty(like.shape, dtype=like.dtype, device=device, requires_grad=needs)


def _rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is None or x.dtype is not weight.dtype or x.device.type != NAME:
        return _usual_rms_norm(x, shape, weight, eps)
    normed: Tensor = _FusedNorm.apply(x, weight)  # type: ignore[no-untyped-call]
    return normed


class _FusedNorm(torch.autograd.Function):
    """Keeps its input and one float32 number a row, as CUDA's `_fused_rms_norm` does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, of_normed: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa and (groups := query.shape[-3] // key.shape[-3]) > 1:
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            # As torch does it: a bias of the queries' type, minus infinity where hidden.
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -torch.inf
            )
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    needs_gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (query, key, value, attn_mask)
    )
    result: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_gradient, dropout_p, is_causal, scale=scale
    )[0]
    return result


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, mod: Any, mask: Any, scale: float, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """As its compiled kernel, which keeps the result and a number a row: of the whole square, for
    which blocks are left out only values say."""
    grouped = query.shape[-3] != key.shape[-3]
    result = _attention(query, key, value, scale=scale, enable_gqa=grouped)
    rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return result, rows, rows


@contextmanager
def pretend(
    world_size: int, local_world_size: int, memory: int = 0, kernels: Kernels = "gpu"
) -> Iterator[tuple[Ranks, FakeTensorMode]]:
    """Rank 0 of `world_size` on a pretended GPU of `memory` bytes; what is built inside has no
    values. Nobody else is there: a collective returns at once with whatever its output has."""
    backend()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True) as fake,
            replaced(*_changes(memory, kernels)),
            # Backward in this thread: what fails there ends in an exception, and not the process.
            torch.autograd.set_multithreading_enabled(False),
        ):
            yield Ranks(0, 0, world_size, local_world_size, torch.device(NAME, 0)), fake
    finally:
        dist.destroy_process_group()


def _say_the_same(values: list[Any], value: Any, group: Any = None) -> None:
    """all_gather_object, of ranks that are all like this one."""
    values[:] = [value] * len(values)


def _to_empty(
    module: nn.Module, usual: Callable[..., nn.Module], *, device: Any, recurse: bool = True
) -> nn.Module:
    """As `usual` for parameters that are plain: torch would swap fake ones in their place, which it
    cannot where FSDP1 has weak references to them."""
    if any(isinstance(p, DTensor) for p in module.parameters(recurse)):
        return usual(module, device=device, recurse=recurse)
    for part in module.modules() if recurse else [module]:
        for name, parameter in [*part.named_parameters(recurse=False)]:
            empty = torch.empty_like(parameter, device=device)
            part._parameters[name] = nn.Parameter(empty, parameter.requires_grad)
        for name, buffer in [*part.named_buffers(recurse=False)]:
            part._buffers[name] = torch.empty_like(buffer, device=device)
    return module


def _pieces(tensor: Tensor, count: int, dim: int) -> list[Tensor]:
    """As many shards, of which the first is what the first rank holds: all of its size are that
    tensor, so that a thousand ranks take no longer than two."""
    size = tensor.size(dim)
    each = max(1, -(-size // count))
    whole, rest = divmod(size, each)
    shards = [tensor.narrow(dim, 0, min(each, size))] * whole
    shards += [tensor.narrow(dim, 0, rest)] * (rest > 0)
    return shards + [tensor.narrow(dim, 0, 0)] * (count - len(shards))


def _unpadded_shard(tensor: Tensor, rank: int, count: int) -> tuple[Tensor, int]:
    """FSDP1's, and how many values it lacks."""
    shards = _pieces(tensor.as_strided((tensor.numel(),), (1,)), count, 0)
    return shards[rank], shards[0].numel() - shards[rank].numel()


def _to_reduce(state: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """FSDP1's padded gradient, and where the rank's share of the sum goes."""
    each = -(-gradient.numel() // state.world_size)
    lacking = each * state.world_size - gradient.numel()
    share = torch.empty_like(gradient.narrow(0, 0, each))
    return F.pad(gradient, [0, lacking]) if lacking else gradient, share


def _same_storage(one: Tensor, other: Tensor) -> bool:
    """Of fake tensors, which have no addresses."""
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _with_values(function: Callable[..., T]) -> Callable[..., T]:
    """`function` outside of the fake mode: a mesh reads the numbers of ranks it is made of."""

    def run(*arguments: Any, **named: Any) -> T:
        with unset_fake_temporarily():
            return function(*arguments, **named)

    return run


_INHERITED = object()
"""Of an attribute that is a parent's."""


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes of modules and classes, each (owner, name, new value), for as long as it lasts."""
    before = [(place, name, vars(place).get(name, _INHERITED)) for place, name, _ in changes]
    for place, name, new in changes:
        setattr(place, name, new)
    try:
        yield
    finally:
        for place, name, old in before:
            if old is _INHERITED:
                delattr(place, name)
            else:
                setattr(place, name, old)


def _changes(memory: int, kernels: Kernels) -> list[tuple[Any, str, Any]]:
    """What asks for values that are not there, or for random numbers of this device."""
    changes: list[tuple[Any, str, Any]] = [
        (torch, "tensor", _made),
        # torch's own reads a stream of C++, which this device's are not.
        (torch.accelerator, "current_stream", backend().current_stream),
        (dist, "all_gather_object", _say_the_same),
        (dist, "broadcast_object_list", lambda *_, **__: None),
        (distributed, "on_any", lambda this, _=None: this),
        (sharding, "init_device_mesh", _with_values(init_device_mesh)),
        (_fully_shard, "_get_post_forward_mesh_info", _with_values(_get_post_forward_mesh_info)),
        (_fsdp_param, "_chunk_with_empty", _pieces),
        (Shard, "_custom_chunk", staticmethod(_pieces)),
        (_flat_param.FlatParamHandle, "_get_unpadded_shard", staticmethod(_unpadded_shard)),
        (_runtime_utils, "_get_reduce_scatter_tensors", _to_reduce),
        (nn.Module, "to_empty", functools.partialmethod(_to_empty, nn.Module.to_empty)),
        (_flat_param, "_same_storage", _same_storage),
        (_flat_param, "_data_ptr_allocated", lambda t: t.untyped_storage().nbytes() > 0),
        (sharding, "_memory_bytes", lambda _: memory),
        (initialisation, "seeded_generator", lambda *_: torch.Generator()),
        (rounding, "Generator", lambda *_: torch.Generator()),
    ]
    if kernels == "gpu":
        # What torch decides by asking a device. The memory-efficient attention stands for the flash
        # kernels, too: both keep the result and one number a row.
        changes += [(F, "scaled_dot_product_attention", _attention), (F, "rms_norm", _rms_norm)]
        changes += [
            (flex_attention, "_validate_device", lambda *_: None),
            (flex_attention, "flex_attention_hop", _flex_attention),
        ]
    return changes
