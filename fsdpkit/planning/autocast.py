"""Automatic mixed precision on the pretended device: operations cast what they are given, as torch
does it for CUDA.

The lists are those of torch's documentation (Automatic Mixed Precision, "CUDA Ops that can autocast
to" ...); a device of one's own has to bring its own. As on CUDA, the copy of a weight in a lower
type is kept until the outermost context ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fsdpkit.planning.pretend import NAME, replaced

KEY = "AutocastPrivateUse1"
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
Cast = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@contextmanager
def autocasting() -> Iterator[None]:
    """Inside, `torch.autocast` of the pretended device casts."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    library: Any = torch.library.Library
    of_aten, of_others = (library(name, "IMPL", KEY) for name in ("aten", "_"))
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


def _kernel(operation: Any, cast: Cast) -> Callable[..., Any]:
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
    return _all_to(torch.float32, args, kwargs)


def _promoted(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found: set[torch.dtype] = set()
    tree_map_only(Tensor, lambda t: found.add(t.dtype) if _is_castable(t) else None, (args, kwargs))
    return _all_to(torch.float32, args, kwargs) if torch.float32 in found else (args, kwargs)


def _summed(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = [argument.name for argument in operation._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if _is_castable(args[0]) and given.get("dtype") is None:
        given["dtype"] = torch.float32
    return (), given


def _all_to(
    dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if _is_castable(tensor) else tensor

    args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
    return args, kwargs


def _is_castable(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == NAME
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )
