"""T5's attention: unscaled scores, biases by distance, and masks.

Three kernels with one result: `sdpa`, PyTorch's fused ones; `flex`, FlexAttention; `math`, the
scores written out, to compare with. model.py calls them through ATTEND; a trainer calls
`guard_kernels` once and prints `attention_in_use`.

Shapes: B batch, H heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from fsdpkit.errors import ConfigError

if TYPE_CHECKING:
    from model import T5Config


def relative_buckets(
    length: int, bidirectional: bool, buckets: int, max_distance: int, device: torch.device
) -> Tensor:
    """Bucket of each offset key − query from −(length−1) to length−1; int64 [2·length − 1].

    Small distances have a bucket each, larger ones share buckets of logarithmic width. The tensor
    is kept for the next call, so that a step does not wait for its copy to `device`.
    """
    if detect_fake_mode() is not None:  # tensors of a memory estimate must not outlive it
        return _relative_buckets.__wrapped__(length, bidirectional, buckets, max_distance, device)
    with torch.inference_mode(False):  # what text generation made must serve training too
        return _relative_buckets(length, bidirectional, buckets, max_distance, device)


@lru_cache(maxsize=64)
def _relative_buckets(
    length: int, bidirectional: bool, buckets: int, max_distance: int, device: torch.device
) -> Tensor:
    # On the CPU in float32, as the released models were: bucket edges depend on the rounding.
    offset = torch.arange(-(length - 1), length, device="cpu")
    bucket = torch.zeros_like(offset)
    if bidirectional:
        buckets //= 2
        bucket += (offset > 0).long() * buckets
        distance = offset.abs()
    else:
        distance = -offset.clamp(max=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    coarse = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return (bucket + torch.where(distance < exact, distance, coarse)).to(device)


def masked(mask: Tensor, scores: Tensor) -> Tensor:
    """`scores` where the bool `mask` is true, the most negative finite number elsewhere.

    Not −inf: a row that sees nothing must stay finite. In the type the scores have, because
    float32's lowest number rounds to −inf in bfloat16.
    """
    return torch.where(mask, scores, torch.finfo(scores.dtype).min)


def same_sample(of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """Bool [B, 1, queries, keys]: true where both tokens have the same segment."""
    return (of_queries[:, :, None] == of_keys[:, None, :]).unsqueeze(1)


class FlexBias(NamedTuple):
    """What FlexAttention takes instead of one tensor of biases."""

    positions: Tensor | None  # [H, T, S], added to the scores
    visible: BlockMask  # blocks of pairs that are all hidden are never computed


Bias = Tensor | FlexBias
"""Added to the scores: a tensor that broadcasts to [B, H, T, S], or what FlexAttention takes."""


def causal(length: int, device: torch.device) -> Tensor:
    """Bool [1, 1, length, length]: a query sees no key behind it."""
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


def visible_blocks(mask: Tensor, queries: int) -> BlockMask:
    """FlexAttention's form of a bool mask that broadcasts to [B, 1, queries, keys]."""
    whole = mask.expand(-1, -1, queries, -1).contiguous()
    batch, _, _, keys = whole.shape

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return whole[b if batch > 1 else 0, 0, i, j]  # one mask for all rows: `b` still counts

    return create_block_mask(visible, batch, None, queries, keys, device=mask.device)


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The fastest kernel that `attention_in_use` finds; all tensors but `bias` [B, H, ·, K]."""
    # scale=1.0: T5 does not divide by √K; its initialisation accounts for that.
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=1.0)


def attend_math(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The scores written out, [B, H, T, S]; the softmax is taken in float32."""
    weights = torch.softmax((q @ k.mT + bias).float(), dim=-1).to(q.dtype)
    return F.dropout(weights, dropout) @ v


def attend_flex(q: Tensor, k: Tensor, v: Tensor, bias: FlexBias, dropout: float) -> Tensor:
    """FlexAttention: no [B, H, T, S] in memory, its kernel is compiled on first use."""
    refuse_flex(q.device, dropout, training=q.requires_grad)
    positions, visible = bias
    add: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    if positions is not None:

        def add_position(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + positions[h, i, j]  # made once a stack: looked up here it is slower

        add = add_position
    attend: Callable[..., Tensor] = flex_attention
    if q.is_cuda:
        attend = compiled_flex()
    return attend(q, k, v, score_mod=add, block_mask=visible, scale=1.0)


@lru_cache
def compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


ATTEND: dict[str, Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]] = {
    "sdpa": attend_sdpa,
    "math": attend_math,
    "flex": attend_flex,
}
"""Each takes the form of bias that model.py's `Stack` makes for it."""


def guard_kernels(device: torch.device) -> None:
    """Keep scaled_dot_product_attention off cuDNN, which is its first choice on Hopper.

    cuDNN's backward has returned NaN for masked sequences of some lengths (pytorch#196678), and it
    reads a float32 mask beside bfloat16 queries as if it were bfloat16.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def refuse_flex(device: torch.device, dropout: float, *, training: bool) -> None:
    """Raise ConfigError for what FlexAttention cannot do."""
    if training and device.type != "cuda":
        raise ConfigError(
            "FlexAttention has no backward on a CPU: set training.model.attention to sdpa or math."
        )
    if training and dropout:
        raise ConfigError(
            "FlexAttention has no dropout: set training.model.dropout_rate = 0, or "
            'attention = "sdpa".'
        )


def attention_in_use(
    config: T5Config,
    attention: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    training: bool = True,
) -> str:
    """One line: which kernel the model's attention reaches on `device` in `dtype`, and why.

    For sdpa the dispatcher itself is asked; call `guard_kernels` first. Raises ConfigError for an
    `attention` that cannot run.
    """
    dropout = config.dropout_rate if training else 0.0
    if attention == "math":
        return "math: scores written out, softmax in float32"
    if attention == "flex":
        refuse_flex(device, dropout, training=training)
        how = "compiled kernel" if device.type == "cuda" else "uncompiled, for comparison only"
        return f"flex: {how}, reads the bias made once a stack, skips hidden blocks"
    q = torch.zeros(1, config.num_heads, 128, config.d_kv, device=device, dtype=dtype)
    q.requires_grad_(training)
    found = []
    for bias in (q.new_zeros(1, config.num_heads, 128, 128), q.new_zeros(1, 1, 1, 128)):
        bias.requires_grad_(training and bias.shape[1] > 1)
        choice = torch._fused_sdp_choice(q, q, q, bias, dropout, False, scale=1.0)
        found.append(SDPBackend(choice).name.removesuffix("_ATTENTION").lower())
    of_bias = "trained bias" if training else "bias"
    return f"sdpa: {found[0]} in self-attention ({of_bias}), {found[1]} across (padding mask)"
