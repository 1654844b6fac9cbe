"""What a call of torch computes, how much it moves, on which device, and among which ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d as c10d
from torch.utils.flop_counter import flop_registry

COLLECTIVES = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
}


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Of products and attention, a multiply-add as two. `torch.utils.flop_counter` leaves masks
    aside; a causal attention computes half of its scores."""
    count = flop_registry.get(getattr(func, "overloadpacket", func))
    if count is None:
        return 0
    flops = int(count(*args, **kwargs, out_val=result))
    return flops // 2 if _given(func, args, kwargs).get("is_causal") is True else flops


def is_biased(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether attention adds a tensor to its scores: a bias, or a mask."""
    return isinstance(_given(func, args, kwargs).get("attn_bias"), Tensor)


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def device_of(tensor: Tensor) -> torch.device:
    """`tensor.device`, for which torch would dispatch an operation of a fake one."""
    if type(tensor) is not FakeTensor:
        return tensor.device
    return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def group_of(args: tuple[Any, ...]) -> tuple[str, int]:
    """Name and size of the group of ranks among a collective's arguments."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            try:
                group = dist.ProcessGroup.unbox(arg)
            except (RuntimeError, TypeError):
                continue
            return group.group_name, group.size()
    name = next((arg for arg in reversed(args) if isinstance(arg, str)), "")
    found = next((g for g in c10d._world.pg_map if g.group_name == name), None)
    return name, found.size() if found is not None else 0
