"""Trade compute for memory: drop a block's activations and compute them again in backward. Or
bandwidth: `offload_activations`.

Applied on every rank alike (a rank that keeps its activations runs out of memory as if nothing had
been done) and to whole blocks (between a block's children there would be as much left to keep).
Dropout draws the same numbers again: the generator's state is restored before a block is rerun.
BatchNorm counts a batch once: its running statistics are left alone the second time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from fsdpkit.training.units import block_paths

_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::convolution"})
_ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "fsdpkit::t5_attention",
        "flex_attention",
    }
)


def checkpoint_activations(
    model: nn.Module,
    blocks: Collection[type[nn.Module]],
    mode: Literal["full", "selective"] = "full",
    *,
    every: int = 1,
    compiled: bool = False,
) -> int:
    """Wrap in place every `every`-th block of the given classes, the first included; returns how
    many. "full" keeps a block's input only, "selective" also what is dear to compute again.

    Call it before compiling and sharding, so that a block is recomputed inside its FSDP unit, while
    the unit's weights are gathered for backward anyway; `fsdpkit.training.sharding.shard` does.
    `compiled` says that the blocks will be compiled. Raises ConfigError for a model without them.
    """
    chosen = block_paths(model, blocks)[::every]
    for path in chosen:
        parent, _, name = path.rpartition(".")
        holder = model.get_submodule(parent)
        block = getattr(holder, name)
        # A compiled block updates its buffers once by itself.
        norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and not compiled]
        extra: dict[str, Any] = {}
        if norms:
            extra = {"context_fn": functools.partial(_contexts, norms, mode)}
        elif mode == "selective":
            extra = {"context_fn": selective_contexts}
        setattr(holder, name, checkpoint_wrapper(block, **extra))
    return len(chosen)


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""For one call of a block: around its forward, and around its recomputation."""


def selective_contexts() -> Contexts:
    """Keep what is dear to compute again, to be found when the rest is."""
    policy = _keep_attention_and_every_second_product()
    forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, again


def _contexts(norms: Sequence[_BatchNorm], mode: str) -> Contexts:
    forward, again = selective_contexts() if mode == "selective" else (nullcontext(),) * 2
    return forward, _without_statistics(norms, again)


@contextmanager
def _without_statistics(
    norms: Sequence[_BatchNorm], inner: AbstractContextManager[Any]
) -> Iterator[None]:
    """Normalise as in training, but leave the running means and variances as they are.

    By momentum 0: without them altogether the operation would save other tensors than before.
    """
    with ExitStack() as restore:
        for norm in norms:
            for name, unchanging in (("momentum", 0.0), ("num_batches_tracked", None)):
                restore.callback(setattr, norm, name, getattr(norm, name))
                setattr(norm, name, unchanging)
        with inner:
            yield


def _keep_attention_and_every_second_product() -> Callable[..., CheckpointPolicy]:
    """Which results stay: the choice of torchtitan's selective checkpointing.

    Matrix products (a convolution counts as one) take most of a block's time and most of its
    memory: half of them are kept. Attention is dear and its result small.
    """
    products = 0

    def policy(
        context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        nonlocal products
        name = op.name()
        if name in _PRODUCTS:
            products += 1
            return _KEEP if products % 2 else _RECOMPUTE
        if name in _ATTENTION and not _dropout(op, args, kwargs):
            return _KEEP
        return _RECOMPUTE

    return policy


_KEEP, _RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


def _dropout(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """An attention kernel's dropout.

    With it the kernel draws random numbers. Left out of the recomputation, it would leave later
    dropouts of the block other numbers than they had: wrong gradients without an error.
    """
    if "dropout_p" in kwargs:
        return float(kwargs["dropout_p"])
    arguments = getattr(getattr(op, "_schema", None), "arguments", ())  # flex has no dropout
    for value, argument in zip(args, arguments, strict=False):
        if argument.name == "dropout_p":
            return float(value)
    return 0.0


def offload_activations(
    model: nn.Module, blocks: Collection[type[nn.Module]], *, every: int = 1
) -> int:
    """Keep what every `every`-th block saves, the first included, in host memory; how many do.

    Bandwidth for memory: nothing is computed twice, and no number changes. A block's weights are
    not copied: their storage is FSDP's, which frees it and gathers it again. On a CPU the copies
    stay where the originals were, and save nothing.

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
