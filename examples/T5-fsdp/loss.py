"""T5's loss: cross-entropy, summed over the target tokens of a batch.

A sum, not a mean, so that a trainer can weight every token equally whatever batch, micro-batch or
rank it is in. There are two ways to compute it:

- `whole` computes the logits of all tokens at once: the definition, and the reference for the
  other. Logits are the largest tensor of a training step: tokens × vocabulary, several times over.
- `chunked` computes the logits of some tokens at a time and keeps none. The gradients of a sum are
  known up to the factor from backward, so each chunk's are computed, by `whole` itself, while its
  logits exist. Nothing is computed twice, and the head's weight is only needed in forward.

torch 2.13 has the same idea as `F.linear_cross_entropy`, which adds the chunks' losses up in the
type of its input. A sum over thousands of tokens exceeds float16's largest number and is off by
percents in bfloat16; here it is float32, and so is the sum of the weight's gradients.

Shapes: B batch, T target tokens, D d_model, V vocabulary, N = B·T.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from fsdpkit.errors import ConfigError

IGNORE = -100
"""The label of a target position that is not scored: padding."""

FEWEST_CHUNKS = 8
MOST_SCORES = 1 << 24
"""Of one chunk: 64 MiB in float32, and enough work for a GPU."""
TILE = 64
"""Rows of a product that a GPU computes together: what is left over costs as much as a tile."""


def scored(
    x: Tensor, weight: Tensor, labels: Tensor | None, how: str | None, *, compiled: bool = False
) -> Tensor:
    """Scores [B, T, V] of `x` [B, T, D] under the head's `weight`; or, by `how`, their loss at
    `labels` [B, T]: "whole" or "chunked", which may be `compiled`."""
    if how is None or labels is None:
        return F.linear(x, weight)
    if how == "chunked":
        return chunked(x, weight, labels, compiled=compiled)
    return whole(F.linear(x, weight), labels)


def whole(scores: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy of `scores` [..., V] at `labels` [...] int64; float32 scalar.

    Positions whose label is IGNORE count nothing. Computed in float32 whatever the scores' type.
    """
    return F.cross_entropy(
        scores.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def chunked(x: Tensor, weight: Tensor, labels: Tensor, *, compiled: bool = False) -> Tensor:
    """`whole(F.linear(x, weight), labels)` with an eighth of the scores at a time, or fewer.

    `x` [B, T, D] is what the head scores, `weight` [V, D] the head's, of the same type. Backward
    can run once. `compiled`: a chunk's loss and its gradient by the scores are one compiled
    function, which reads the scores fewer times.

    Raises ConfigError when this rank has only a shard of `weight`.
    """
    if isinstance(weight, DTensor) or weight.dim() != 2:
        raise ConfigError(
            'training.loss = "chunked" needs the whole weight of the head, and of a tied one this '
            "rank has a shard: leave `shared` to the root unit, by training.sharding.wrap = "
            '"class" or no pattern for it in wrap_names.'
        )
    x, labels = x.flatten(0, 1), labels.flatten()
    if torch.is_grad_enabled():
        loss: Tensor = _Chunked.apply(x, weight, labels, compiled)
        return loss
    losses = [whole(F.linear(part, weight), wanted) for part, wanted in _chunks(x, weight, labels)]
    return torch.stack(losses).sum()


def _chunks(x: Tensor, weight: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Parts of `x` [N, D] and `labels` [N]."""
    most = MOST_SCORES // len(weight)
    most -= most % TILE if most > TILE else 0
    rows = max(1, min(-(-len(x) // FEWEST_CHUNKS), most))
    return list(zip(x.split(rows), labels.split(rows), strict=True))


def score_gradient(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`whole` of `scores` [N, V] at `labels` [N], and its gradient by them, in their type.

    Written for a compiler: uncompiled it makes more tensors of this size than `whole` does.
    """
    counts = (labels != IGNORE)[:, None]
    wanted = labels[:, None].where(counts, 0)
    log_p = F.log_softmax(scores.float(), -1)  # logsumexp loses digits where scores are large
    losses = -log_p.gather(-1, wanted).where(counts, 0.0)
    is_wanted = torch.arange(scores.shape[-1], device=scores.device) == wanted
    gradient = (log_p.exp() - is_wanted.float()).where(counts, 0.0)
    return losses.sum(), gradient.to(scores.dtype)


@lru_cache
def compiled_score_gradient() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return torch.compile(score_gradient)


def _parts(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of `x` [n, D], and its gradients by `x` and `weight`."""
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        loss = whole(F.linear(*leaves), labels)
    of_x, of_weight = torch.autograd.grad(loss, leaves)
    return loss.detach(), of_x, of_weight


def _compiled_parts(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    loss, gradient = compiled_score_gradient()(F.linear(x, weight), labels)
    return loss, gradient @ weight, gradient.T @ x


class _Chunked(torch.autograd.Function):
    """The loss of `x` [N, D] under `weight` [V, D], with the gradients of both at hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, compiled: bool) -> Tensor:
        losses, of_x = [], []
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        for part, wanted in _chunks(x, weight, labels):
            parts = _compiled_parts if compiled else _parts
            loss, gradient, of_weight_part = parts(part, weight, wanted)
            of_x.append(gradient)
            of_weight += of_weight_part
            losses.append(loss)
        ctx.weight_dtype = weight.dtype
        ctx.save_for_backward(torch.cat(of_x), of_weight)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_x, of_weight = ctx.saved_tensors
        # In place: autograd itself refuses a second backward, as for any tensor changed since.
        return of_x.mul_(factor), of_weight.mul_(factor).to(ctx.weight_dtype), None, None
