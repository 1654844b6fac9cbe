"""Trade bandwidth for memory: what a block saves for backward waits in host memory.

Nothing is computed twice and no number changes: values are copied out when they are saved and back
when backward asks for them, in the order of the computation, so a GPU's memory holds what one block
needs at a time. A block's weights are not copied: their storage is FSDP's, which frees it and
gathers it again. On a CPU the copies stay where the originals were, and save nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from fsdpkit.training.units import block_paths


def offload_activations(
    model: nn.Module, blocks: Collection[type[nn.Module]], *, every: int = 1
) -> int:
    """Keep what every `every`-th block saves, the first included, in host memory; how many do.

    Call it before sharding, so that a block's weights are gathered around it, and after compiling,
    so that compiled blocks save through it, too. Raises ConfigError for a model without blocks.
    """
    chosen = block_paths(model, blocks)[::every]
    for path in chosen:
        block = model.get_submodule(path)
        block.forward = functools.partial(_offloading, block, block.forward)
    return len(chosen)


def _offloading(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    gathered = _storages_of_weights(block)

    def pack(tensor: Tensor) -> Tensor | _Offloaded:
        if isinstance(tensor, nn.Parameter) or tensor.untyped_storage().data_ptr() in gathered:
            return tensor
        return _Offloaded(tensor)

    with saved_tensors_hooks(pack, _unpack):
        return forward(*args, **kwargs)


class _Offloaded:
    """A copy in host memory, pinned where there is a GPU: neither copy makes the host wait."""

    def __init__(self, tensor: Tensor) -> None:
        self.device = tensor.device
        on_gpu = tensor.device.type == "cuda"
        self.host = torch.empty_like(tensor, device="cpu", pin_memory=on_gpu)
        self.host.copy_(tensor, non_blocking=on_gpu)

    def back(self) -> Tensor:
        return self.host.to(self.device, non_blocking=True)


def _unpack(saved: Tensor | _Offloaded) -> Tensor:
    return saved.back() if isinstance(saved, _Offloaded) else saved


def _storages_of_weights(block: nn.Module) -> set[int]:
    """Addresses of what is gathered for `block`; its operations save views of it.

    FSDP1 puts plain tensors in the parameters' places while a unit runs.
    """
    held = (tensor for module in block.modules() for tensor in module._parameters.values())
    whole = (t for t in held if t is not None and not isinstance(t, DTensor))
    return {t.untyped_storage().data_ptr() for t in whole}
