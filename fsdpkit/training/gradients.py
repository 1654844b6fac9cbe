"""Between backward and the optimizer: when gradients cross ranks, their norm, float16's scale.

Both engines average gradients over all ranks, so a loop that wants a sum over samples multiplies
its loss by the world size. The functions take what `fsdpkit.training.sharding.shard` returns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from fsdpkit.config.training import PrecisionSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.finite import may_update
from fsdpkit.training.shards import local_part, ranks_of

SMALLEST_SCALE = 2.0**-10
"""A loss scale that only gradients which are never finite can bring about."""

KEEPS_GATHERED = "_fsdpkit_keeps_weights_gathered"
"""Attribute of a model whose strategy does not free weights between forward and backward."""


@contextmanager
def gradient_sync(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside, backward reduces gradients over ranks only if `wanted`; else it adds them up.

    Until then a rank holds gradients of the whole model. Where the strategy keeps weights gathered
    after forward anyway, they stay so between the passes of one step: nothing crosses ranks at all.

    Args:
        model: What `shard` has returned.
        wanted: True for the last of the passes that make one step.

    Yields:
        Nothing: use it with `with`.
    """
    if isinstance(model, FullyShardedDataParallel):
        with nullcontext() if wanted else model.no_sync():
            yield
        return
    assert isinstance(model, FSDPModule), "shard() has not seen this model"
    model.set_requires_gradient_sync(wanted)
    if getattr(model, KEEPS_GATHERED, False):
        model.set_reshard_after_backward(wanted)
    yield


def provisional_tokens(most: int) -> int:
    """What to divide a rank's loss by while nobody knows yet how many tokens all ranks have.

    The largest power of two that `most`, the tokens that a rank can have, is not below: dividing by
    it rounds nothing, and while gradients are reduced they are less than twice those of the mean.
    Where rows are short they are smaller than those, which a loss scale for float16 makes up for.
    What is left to multiply by, world size × this / tokens of all ranks, `clip_gradients` takes.
    """
    return 1 << (most.bit_length() - 1)


@torch.no_grad()
def clip_gradients(model: nn.Module, max_norm: float, scale: Tensor | None = None) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most `max_norm`; a collective.

    As `torch.nn.utils.clip_grad_norm_`, for both engines; the host does not wait for the device.

    Args:
        model: What `shard` has returned, after backward.
        max_norm: The largest L2 norm; 0: any, so that the norm is only measured.
        scale: Multiplies the gradients first: a float32 scalar on the device, equal on all ranks.

    Returns:
        The norm before clipping: a float32 scalar on the device, equal on all ranks.
    """
    limit = max_norm or math.inf
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if isinstance(model, FullyShardedDataParallel):
        if scale is not None:
            _multiply(gradients, scale)
        return model.clip_grad_norm_(limit).float()
    norm = _norm(gradients).float()
    if scale is not None:
        scale = scale.to(norm.device)  # of offloaded shards on the host
        norm = norm * scale
    factor = (limit / (norm + 1e-6)).clamp_(max=1.0)
    _multiply(gradients, factor if scale is None else factor * scale)
    return norm


def _norm(gradients: list[Tensor]) -> Tensor:
    """Over all ranks, of shards and of what is whole and equal on all ranks: ignored parameters.

    Of this rank's own tensors, then one message: by way of DTensors the host takes 25 ms for the
    gradients of T5 v1.1-large.
    """
    held: dict[tuple[dist.ProcessGroup | None, torch.device], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        local = local_part(gradient)
        ranks = ranks_of(gradient) if isinstance(gradient, DTensor) else None
        held[ranks, local.device].append(local)
    squares = []
    for (ranks, _), tensors in held.items():
        dtype = torch.promote_types(tensors[0].dtype, torch.float32)
        square = torch.stack(torch._foreach_norm(tensors, dtype=dtype)).square_().sum()
        if ranks is not None and ranks.size() > 1:
            dist.all_reduce(square, group=ranks)
        squares.append(square)
    return torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()


def _multiply(gradients: list[Tensor], factor: Tensor) -> None:
    """All of them, shards or whole, in place, one operation a device."""
    on: dict[torch.device, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        local = local_part(gradient)
        on[local.device].append(local)
    for device, tensors in on.items():
        torch._foreach_mul_(tensors, factor.to(device))


def loss_scaler(
    precision: PrecisionSettings, model: nn.Module, ranks: Ranks
) -> torch.amp.GradScaler:
    """A gradient scaler for float16; under other types it does nothing, so use it always.

    `scale(loss).backward()`, `unscale_(optimizer)`, clip, `step(optimizer)`, `update()`, as torch
    documents `torch.amp.GradScaler`. A gradient that overflowed on any rank makes all ranks
    skip the step and halve the scale.

    Args:
        precision: Its `param` says whether to scale, its `loss_scale` how to begin.
        model: What `shard` has returned.
        ranks: From `process_group`.

    Returns:
        A scaler that looks at this rank's shards and asks the other ranks.
    """
    return _ScalerOfShards(
        ranks.device.type, init_scale=precision.loss_scale, enabled=precision.param == "float16"
    )


class _ScalerOfShards(torch.amp.GradScaler):
    """Looks at this rank's shards, then asks the others: each holds gradients that they do not."""

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        gradients = [
            local_part(p.grad)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if gradients:  # a small model may leave a rank without any
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


def update(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    grad_norm: Tensor,
    non_finite: Literal["stop", "skip"],
    ranks: Ranks,
    step: int,
) -> bool:
    """One optimizer step, or none because the gradient is not finite; whether there was one.

    The answer is the same on all ranks. float16 expects overflows now and then: it skips the step
    and halves its scale, after `scaler.unscale_(optimizer)`; the others do what `non_finite` says.
    Raises FsdpkitError naming `step` when that is to stop, or when no scale is small enough.
    """
    what = f"The gradient of step {step}"
    if not scaler.is_enabled():
        if not may_update(grad_norm, what, non_finite, ranks):
            return False
        optimizer.step()
        return True
    overflowed, scale = _read(scaler, optimizer)
    if not overflowed:
        optimizer.step()
    scaler.update()
    if overflowed and scale * scaler.get_backoff_factor() < SMALLEST_SCALE:
        raise FsdpkitError(
            f"{what} is not finite in float16 at any scale: use training.precision.param = "
            '"bfloat16", or look at the data of the last steps.'
        )
    return not overflowed


def _read(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> tuple[bool, float]:
    """Whether a gradient overflowed, and the scale; the host waits for the device once.

    `scaler.step` and `get_scale` wait each for themselves, the last for the update of all weights.
    """
    (found,) = scaler._found_inf_per_device(optimizer).values()
    scale = scaler._scale
    assert scale is not None
    overflowed, factor = torch.stack([found, scale.to(found.device)]).tolist()
    return overflowed > 0, factor
