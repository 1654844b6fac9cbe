"""In which types a model computes: the type of gathered weights, and modules that stay in float32.

What the engines need to know of `[training.precision]`, and what is done to the model itself, the
same under both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fsdpkit.config.gpu import compute_type, type_problem
from fsdpkit.config.training import PrecisionSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.device_code import capability_of, name_of
from fsdpkit.training.units import matching_paths, outermost, walk


def compute_dtype(precision: PrecisionSettings, device: torch.device) -> torch.dtype:
    """The type in which gathered weights and activations are held.

    Raises ConfigError for one that the GPU does not have.
    """
    capability = capability_of(device)
    if problem := type_problem(precision.param, capability, name_of(device)):
        raise ConfigError(problem)
    on_gpu = device.type == "cuda"
    return dtype_of(compute_type(precision.param, on_gpu=on_gpu, capability=capability))


def unless_masters(dtype: torch.dtype, precision: PrecisionSettings) -> torch.dtype | None:
    """The type to gather weights in; None where it is float32, as the shards are."""
    same = dtype is torch.float32 and precision.master == "float32"
    return None if same else dtype


def dtype_of(name: str) -> torch.dtype:
    """torch's type of this name, such as `bfloat16`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def keep_float32(model: nn.Module, precision: PrecisionSettings, dtype: torch.dtype) -> list[str]:
    """Paths of the modules that compute in float32; what goes into them is cast, and back again.

    Empty when everything is float32 already.
    """
    key = "training.precision.keep_float32"
    kept = outermost(matching_paths(model, precision.keep_float32, key))
    if dtype is torch.float32:
        return []
    cast_around(model, kept, dtype)
    return kept


def lower_masters(model: nn.Module, kept: Sequence[str], ignored: set[nn.Parameter]) -> None:
    """Weights in bfloat16, but for `ignored` ones and those in modules that compute in float32."""
    modules = dict(walk(model))
    stay = ignored.union(*(modules[path].parameters() for path in kept))
    for parameter in model.parameters():
        if parameter not in stay and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)


def cast_around(model: nn.Module, paths: Sequence[str], dtype: torch.dtype) -> None:
    """Let these modules compute in float32 between others that compute in `dtype`."""
    modules = dict(walk(model))
    for path in paths:
        _cast_inputs(modules[path], torch.float32)
        cast_output(modules[path], dtype)


def _cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return _cast(args, dtype), _cast(kwargs, dtype)

    module.register_forward_pre_hook(hook, with_kwargs=True)


def cast_output(module: nn.Module, dtype: torch.dtype) -> None:
    """Hand on what the module returns in `dtype`."""
    module.register_forward_hook(lambda _, __, output: _cast(output, dtype))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` with each floating-point tensor in it as `dtype`."""
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)
