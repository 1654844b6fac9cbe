"""A program that names CUDA, on a machine without it: its tensors go to a device that is here.

While a function builds a model that device is the host; while a step is taped it is the pretended
GPU. Whoever reads `x.device.type` sees which; all that is handed to torch by the name `cuda`, and
what a program commonly asks of `torch.cuda`, is answered as on the card that is planned.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map, tree_map_only

from fsdpkit.planning.pretend import NAME, Event, Stream, backend, replaced

_KEY = "AutocastPrivateUse1"
LOWER = (
    "_convolution", "convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "prelu", "addmm", "addmv", "addr",
    "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
PROMOTED = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
)  # fmt: skip
SUMMED = (
    "prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "prod.dim_int",
    "sum.dim_IntList",
)  # fmt: skip
"""In float32 where no type is named."""
WHOLE = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Scalar", "pow.Tensor_Tensor",
    "pow.Tensor_Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
_KEYS: Any = torch._C.DispatchKey
_WITHOUT = torch._C.DispatchKeySet(_KEYS.AutocastPrivateUse1)
_Cast = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@contextmanager
def _autocasting() -> Iterator[None]:
    """Inside, `torch.autocast` of the pretended device casts, as torch does it for CUDA.

    The lists are those of torch's documentation (Automatic Mixed Precision, "CUDA Ops that can
    autocast to" ...). The copy of a weight in a lower type is kept until the outermost context
    ends.
    """
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    library: Any = torch.library.Library
    of_aten, of_others = (library(name, "IMPL", _KEY) for name in ("aten", "_"))
    of_others.fallback(torch.library.fallthrough_kernel)
    for names, cast in (
        (LOWER, functools.partial(_lower, kept)),
        (PROMOTED, _promoted),
        (SUMMED, _summed),
        (WHOLE, _whole),
    ):
        for name in names:
            of_aten.impl(name, _kernel(_operation(name), cast))
    usual = torch.clear_autocast_cache

    def clear() -> None:
        kept.clear()
        usual()

    try:
        with replaced((torch, "clear_autocast_cache", clear)):
            yield
    finally:
        of_aten._destroy()
        of_others._destroy()


def _operation(name: str) -> Any:
    name, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def _kernel(operation: Any, cast: _Cast) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_WITHOUT):
            args, kwargs = cast(operation, args, kwargs)
            return operation(*args, **kwargs)

    return run


def _lower(
    kept: dict[int, tuple[Tensor, Tensor]],
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    to = torch.get_autocast_dtype(NAME)

    def cast(tensor: Tensor) -> Tensor:
        if not _is_castable(tensor) or tensor.dtype is to:
            return tensor
        if id(tensor) in kept:
            return kept[id(tensor)][1]
        made = tensor.to(to)
        weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32
        if weight and torch.is_autocast_cache_enabled():
            kept[id(tensor)] = tensor, made
        return made

    args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
    return args, kwargs


def _whole(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32) if _is_castable(tensor) else tensor

    args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
    return args, kwargs


def _promoted(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found: set[torch.dtype] = set()
    tree_map_only(Tensor, lambda t: found.add(t.dtype) if _is_castable(t) else None, (args, kwargs))
    return _whole(operation, args, kwargs) if torch.float32 in found else (args, kwargs)


def _summed(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = [argument.name for argument in operation._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if _is_castable(args[0]) and given.get("dtype") is None:
        given["dtype"] = torch.float32
    return (), given


def _is_castable(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == NAME
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


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
    types = _autocasting() if device.type == NAME else nullcontext()
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
