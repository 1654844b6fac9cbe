"""A program that names CUDA, on a machine without it: its tensors go to a device that is here.

While a function builds a model that device is the host; while a step is taped it is the pretended
GPU. Whoever reads `x.device.type` sees which; all that is handed to torch by the name `cuda`, and
what a program commonly asks of `torch.cuda`, is answered as on the card that is planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fsdpkit.planning.autocast import autocasting
from fsdpkit.planning.pretend import NAME, Event, Stream, backend, replaced

_NAMED = re.compile(r"cuda(:\d+)?")
_is_cuda = Tensor.is_cuda.__get__  # type: ignore[attr-defined]


@contextmanager
def cuda_is(
    device: torch.device, memory: int = 0, capability: tuple[int, int] | None = None
) -> Iterator[None]:
    """`cuda` means this device inside: the host, or a pretended one with so many bytes."""
    changes = [
        *_answers(memory, capability or (9, 0)),
        (torch, "is_autocast_enabled", _of_device(torch.is_autocast_enabled, device)),
        (torch, "get_autocast_dtype", _of_device(torch.get_autocast_dtype, device)),
        (autocast_mode.autocast, "__init__", _autocast(device)),
    ]
    types = autocasting() if device.type == NAME else nullcontext()
    with replaced(*changes), types, _Sent(device):
        yield


class _Sent(TorchFunctionMode):
    """Calls of torch with `cuda` among their arguments, sent to another device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:  # a name, until it is handed to torch
            return func(*args, **kwargs)
        if func == _is_cuda:  # a new object at each access
            return args[0].device.type == self._device.type
        if func is Tensor.cuda:
            return args[0].to(self._device, non_blocking=bool(kwargs.get("non_blocking")))
        if any(_names_cuda(each) for each in (*args, *kwargs.values())):
            args, kwargs = tree_map(self._place, (args, kwargs))
        index = kwargs.get("device")
        if type(index) is int:  # of the current kind of device
            kwargs = {**kwargs, "device": self._device}
        return func(*args, **kwargs)

    def _place(self, value: Any) -> Any:
        return self._device if _names_cuda(value) else value


def _names_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and _NAMED.fullmatch(value) is not None


def _of_device(usual: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def run(kind: str = "cuda") -> Any:
        return usual(device.type if kind == "cuda" else kind)

    return run


def _autocast(device: torch.device) -> Callable[..., None]:
    usual = autocast_mode.autocast.__init__

    def init(this: Any, device_type: str, *args: Any, **named: Any) -> None:
        usual(this, device.type if device_type == "cuda" else device_type, *args, **named)

    return init


def _answers(memory: int, capability: tuple[int, int]) -> list[tuple[Any, str, Any]]:
    """What a program asks of `torch.cuda`, as a process on a GPU of its own is told."""
    properties = SimpleNamespace(
        name="planned GPU", total_memory=memory, major=capability[0], minor=capability[1],
        multi_processor_count=132, warp_size=32,
    )  # fmt: skip
    here: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "is_bf16_supported": capability >= (8, 0), "get_device_capability": capability,
        "get_device_name": properties.name, "get_device_properties": properties,
        "mem_get_info": (memory, memory), "is_current_stream_capturing": False,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved",
                         "max_memory_reserved"), 0),
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats",
                         "manual_seed", "manual_seed_all", "set_rng_state"), None),
    }  # fmt: skip
    changes = [(torch.cuda, name, _constant(value)) for name, value in here.items()]
    of_backend = ("current_stream", "set_stream", "stream", "get_rng_state")
    changes += [(torch.cuda, name, getattr(backend(), name)) for name in of_backend]
    return [*changes, (torch.cuda, "Stream", Stream), (torch.cuda, "Event", Event)]


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value
