"""T5's attention as Triton kernels: neither scores nor pairwise biases are ever in memory.

FlashAttention-2 (Dao 2023, arXiv 2307.08691) with what T5 needs: scores that are not scaled, a bias
that is one number per head and distance, masks told by token, dropout, and a gradient of the bias
without atomic additions, the same bits each time. attention.py imports this file when
`attention = "triton"` asks for it; from elsewhere only `attend` is called.

Four kernels, each made of tiles of queries × keys. What a query did to a key is computed again
wherever it is needed, dropout included: its random numbers belong to pairs, not to tiles.

    forward         a tile of queries, over all keys     o, and the log of each softmax's sum
    query_gradient  a tile of queries, over all keys     dq, and delta = rowsum(do ∘ o)
    key_gradient    a tile of keys, over all queries     dk, dv
    bias_gradient   a diagonal of tiles, over the batch  dS, summed by distance

Shapes: B batch, H heads, T queries, S keys, K width of a head; T = S where there is a bias. In
memory a head is a column of its token, [B, T, H, K], as the model's projections write and read it.
`row` is b·H + h; scores and logarithms are to base 2, because `exp2` is an instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_WIDTH = 128
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def places(x, row, tokens, length, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Pointers to head `row` of `tokens` in `x` [B, length, H, K], and which of them exist.

    Heads are taken as PADDED wide, because a matrix product wants powers of two.
    """
    column = tl.arange(0, PADDED)
    begin = x + (row // HEADS * length * HEADS + row % HEADS) * WIDTH
    exist = tokens[:, None] < length
    if WIDTH < PADDED:
        exist = exist & (column[None, :] < WIDTH)
    return begin + (tokens[:, None] * (HEADS * WIDTH) + column[None, :]), exist


@triton.jit
def load(x, row, tokens, length, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    pointers, exist = places(x, row, tokens, length, HEADS, WIDTH, PADDED)
    return tl.load(pointers, mask=exist, other=0.0)


@triton.jit
def store(
    x, tile, row, tokens, length, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    pointers, exist = places(x, row, tokens, length, HEADS, WIDTH, PADDED)
    tl.store(pointers, tile.to(x.dtype.element_ty), mask=exist)


@triton.jit
def scores_of(
    product, i, j, row, bias, of_queries, of_keys, queries, keys,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """`product` = q·k of queries `i` and keys `j`, with biases and −inf on pairs that are hidden.

    `i` and `j` broadcast to the tile, whichever of them is its first dimension.
    """
    exist = (i < queries) & (j < keys)
    if bias is not None:
        of_distance = bias + row % HEADS * (2 * keys - 1) + keys - 1
        product += tl.load(of_distance + (j - i), mask=exist, other=0.0).to(tl.float32)
    visible = exist
    if of_keys is not None:
        key = tl.load(of_keys + row // HEADS * keys + j, mask=j < keys, other=0).to(tl.int32)
        if of_queries is None:
            visible = visible & (key != 0)
        else:
            at = of_queries + row // HEADS * queries + i
            visible = visible & (key == tl.load(at, mask=i < queries, other=0).to(tl.int32))
    if CAUSAL:
        visible = visible & (j <= i)
    return tl.where(visible, product * LOG2_E, float("-inf"))


@triton.jit
def dropped(x, i, j, row, seed, keys, dropout):
    """`x` with a share `dropout` of its pairs at zero, the others scaled up; `x` if no `seed`."""
    if seed is not None:
        # Philox, Salmon et al. 2011: seven rounds pass all their tests, Triton's default is ten.
        uniform = tl.rand(tl.load(seed) + row, i * keys + j, 7)
        x = tl.where(uniform >= dropout, x / (1 - dropout), 0.0)
    return x


@triton.jit
def softmax_backward(
    product, dp, i, j, lse, delta, row, bias, of_queries, of_keys, seed, queries, keys, dropout,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The weights after dropout, and the gradient of the scores, from q·k and `dp` = do·v."""
    scores = scores_of(
        product, i, j, row, bias, of_queries, of_keys, queries, keys, HEADS, CAUSAL
    )  # fmt: skip
    p = tl.exp2(scores - lse)
    ds = p * (dropped(dp, i, j, row, seed, keys, dropout) - delta)
    return dropped(p, i, j, row, seed, keys, dropout), ds


@triton.jit
def forward_kernel(
    q, k, v, bias, of_queries, of_keys, seed, o, lse, queries, keys, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(queries, TILE_Q)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.program_id(0) % tiles * TILE_Q + tl.arange(0, TILE_Q)
    end = tl.minimum(keys, (tl.program_id(0) % tiles + 1) * TILE_Q) if CAUSAL else keys
    q_tile = load(q, row, i, queries, HEADS, WIDTH, PADDED)
    highest = tl.full([TILE_Q], float("-inf"), tl.float32)
    total = tl.zeros([TILE_Q], tl.float32)
    mixed = tl.zeros([TILE_Q, PADDED], tl.float32)
    for start in range(0, end, TILE_K):
        j = start + tl.arange(0, TILE_K)
        k_tile = load(k, row, j, keys, HEADS, WIDTH, PADDED)
        v_tile = load(v, row, j, keys, HEADS, WIDTH, PADDED)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        scores = scores_of(
            product, i[:, None], j[None, :], row, bias, of_queries, of_keys, queries, keys,
            HEADS, CAUSAL,
        )  # fmt: skip
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # seen nothing so far: −inf − −inf
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(p, 1)
        p = dropped(p, i[:, None], j[None, :], row, seed, keys, dropout)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(p.to(v_tile.dtype), v_tile, mixed, input_precision=PRECISION)
        highest = higher
    saw_nothing = total == 0
    total = tl.where(saw_nothing, 1.0, total)
    store(o, mixed / total[:, None], row, i, queries, HEADS, WIDTH, PADDED)
    log_sum = tl.where(saw_nothing, float("inf"), highest + tl.log2(total))  # +inf: weights of 0
    tl.store(lse + row * queries + i, log_sum, mask=i < queries)


@triton.jit
def query_gradient_kernel(
    q, k, v, bias, of_queries, of_keys, seed, o, lse, do, delta, dq, queries, keys, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(queries, TILE_Q)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.program_id(0) % tiles * TILE_Q + tl.arange(0, TILE_Q)
    end = tl.minimum(keys, (tl.program_id(0) % tiles + 1) * TILE_Q) if CAUSAL else keys
    q_tile = load(q, row, i, queries, HEADS, WIDTH, PADDED)
    do_tile = load(do, row, i, queries, HEADS, WIDTH, PADDED)
    o_tile = load(o, row, i, queries, HEADS, WIDTH, PADDED)
    lse_tile = tl.load(lse + row * queries + i, mask=i < queries, other=float("inf"))
    delta_tile = tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1)
    tl.store(delta + row * queries + i, delta_tile, mask=i < queries)
    dq_tile = tl.zeros([TILE_Q, PADDED], tl.float32)
    for start in range(0, end, TILE_K):
        j = start + tl.arange(0, TILE_K)
        k_tile = load(k, row, j, keys, HEADS, WIDTH, PADDED)
        v_tile = load(v, row, j, keys, HEADS, WIDTH, PADDED)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        dp = tl.dot(do_tile, tl.trans(v_tile), input_precision=PRECISION)
        _, ds = softmax_backward(
            product, dp, i[:, None], j[None, :], lse_tile[:, None], delta_tile[:, None],
            row, bias, of_queries, of_keys, seed, queries, keys, dropout, HEADS, CAUSAL,
        )  # fmt: skip
        dq_tile = tl.dot(ds.to(k_tile.dtype), k_tile, dq_tile, input_precision=PRECISION)
    store(dq, dq_tile, row, i, queries, HEADS, WIDTH, PADDED)


@triton.jit
def key_gradient_kernel(
    q, k, v, bias, of_queries, of_keys, seed, lse, do, delta, dk, dv, queries, keys, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Tiles are keys × queries here: what is summed over queries needs no transposition then."""
    tiles = tl.cdiv(keys, TILE_K)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * TILE_K
    j = first + tl.arange(0, TILE_K)
    k_tile = load(k, row, j, keys, HEADS, WIDTH, PADDED)
    v_tile = load(v, row, j, keys, HEADS, WIDTH, PADDED)
    dk_tile = tl.zeros([TILE_K, PADDED], tl.float32)
    dv_tile = tl.zeros([TILE_K, PADDED], tl.float32)
    for start in range(first // TILE_Q * TILE_Q if CAUSAL else 0, queries, TILE_Q):
        i = start + tl.arange(0, TILE_Q)
        q_tile = load(q, row, i, queries, HEADS, WIDTH, PADDED)
        do_tile = load(do, row, i, queries, HEADS, WIDTH, PADDED)
        lse_tile = tl.load(lse + row * queries + i, mask=i < queries, other=float("inf"))
        delta_tile = tl.load(delta + row * queries + i, mask=i < queries, other=0.0)
        product = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)
        dp = tl.dot(v_tile, tl.trans(do_tile), input_precision=PRECISION)
        p, ds = softmax_backward(
            product, dp, i[None, :], j[:, None], lse_tile[None, :], delta_tile[None, :],
            row, bias, of_queries, of_keys, seed, queries, keys, dropout, HEADS, CAUSAL,
        )  # fmt: skip
        dv_tile = tl.dot(p.to(do_tile.dtype), do_tile, dv_tile, input_precision=PRECISION)
        dk_tile = tl.dot(ds.to(q_tile.dtype), q_tile, dk_tile, input_precision=PRECISION)
    store(dk, dk_tile, row, j, keys, HEADS, WIDTH, PADDED)
    store(dv, dv_tile, row, j, keys, HEADS, WIDTH, PADDED)


@triton.jit
def bias_gradient_kernel(
    q, k, v, bias, of_queries, of_keys, seed, lse, do, delta, parts, batch, length, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums over one diagonal of tiles and one group of the batch, into float32
    `parts` [groups, H, TILE, 2·length − 1].

    Tiles of a diagonal hold the same distances at the same places, so they are added up whole. Row
    r of the sum goes to row r of `parts`, each number below its distance: no two programs write to
    the same place, and adding up the rows is left to one ordered sum.
    """
    head, group, turn = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    # The longest diagonals first: 0, −1, 1, −2, 2, … in tiles; causal ones have no key ahead.
    diagonal = -turn if CAUSAL else (turn + 1) // 2 * (1 - 2 * (turn % 2))
    tiles = tl.cdiv(length, TILE) - tl.abs(diagonal)
    size = tl.cdiv(batch, tl.num_programs(1))
    samples = tl.minimum(size, batch - group * size)
    r = tl.arange(0, TILE)
    total = tl.zeros([TILE, TILE], tl.float32)
    for step in range(samples * tiles):
        row = (group * size + step // tiles) * HEADS + head
        i = (step % tiles - tl.minimum(diagonal, 0)) * TILE + r
        j = i + diagonal * TILE
        q_tile = load(q, row, i, length, HEADS, WIDTH, PADDED)
        k_tile = load(k, row, j, length, HEADS, WIDTH, PADDED)
        v_tile = load(v, row, j, length, HEADS, WIDTH, PADDED)
        do_tile = load(do, row, i, length, HEADS, WIDTH, PADDED)
        lse_tile = tl.load(lse + row * length + i, mask=i < length, other=float("inf"))
        delta_tile = tl.load(delta + row * length + i, mask=i < length, other=0.0)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        dp = tl.dot(do_tile, tl.trans(v_tile), input_precision=PRECISION)
        _, ds = softmax_backward(
            product, dp, i[:, None], j[None, :], lse_tile[:, None], delta_tile[:, None],
            row, bias, of_queries, of_keys, seed, length, length, dropout, HEADS, CAUSAL,
        )  # fmt: skip
        total += ds
    distance = diagonal * TILE + r[None, :] - r[:, None]
    at = ((group * HEADS + head) * TILE + r[:, None]) * (2 * length - 1) + distance + length - 1
    tl.store(parts + at, total, mask=tl.abs(distance) < length)


class Tiles(NamedTuple):
    """Queries and keys in a tile, warps that share it, and loads under way at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles(kernel: str, q: Tensor) -> Tiles:
    """Of "forward" or "backward".

    Fixed, where others measure a few on first use: all ranks and all runs then add in the same
    order. As large as registers allow (ptxas spills little or nothing with these), and 99 KiB of
    shared memory, which all GPUs have since compute capability 8.6. Hopper's matrix unit reads
    from shared memory, of which it has more, so its tiles are larger.
    """
    wide = padded(q.shape[-1]) > 64
    if q.element_size() == 4:
        return Tiles(16, 16, 4, 1) if wide and kernel == "backward" else Tiles(32, 32, 4, 2 - wide)
    hopper = q.is_cuda and torch.cuda.get_device_capability(q.device)[0] == 9
    if kernel == "forward":
        return Tiles(128 if hopper else 64, 64, 8 if wide else 4, 3 if hopper and not wide else 2)
    return Tiles(64 if hopper else 32, 64, 8 if wide else 4, 1 if wide else 2)


BATCH_GROUPS = 8
"""Parts of the batch whose bias gradients are summed side by side: enough programs to fill a GPU,
few enough that they stay small (8 · H · 64 · 2S · 4 bytes: 34 MB for 16 heads and 512 tokens).
"""


def padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def launch(
    kernel: Callable[..., None], grid: tuple[int, ...], warps: int, stages: int,
    *arguments: Tensor | float | None, **constants: int,
) -> None:  # fmt: skip
    """Run `kernel` on the GPU of its first argument, q [B, T, H, K], or in Triton's interpreter."""
    q = arguments[0]
    heads, width = q.shape[2:]
    with torch.cuda.device_of(q):
        kernel[grid](
            *arguments, HEADS=heads, WIDTH=width, PADDED=padded(width),
            PRECISION="tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            num_warps=warps, num_stages=stages, **constants,
        )  # fmt: skip


@torch.library.custom_op("fsdpkit::t5_attention", mutates_args=())
def t5_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` for contiguous [B, T, H, K]; also the base-2 logarithm of each softmax's sum,
    float32 [B, H, T]: +inf for a query that sees nothing."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    o, lse = torch.empty_like(q), q.new_empty((batch, heads, queries), dtype=torch.float32)
    tile = tiles("forward", q)
    launch(
        forward_kernel, (triton.cdiv(queries, tile.queries) * batch * heads,),
        tile.warps, tile.stages,
        q, k, v, bias, of_queries, of_keys, seed, o, lse, queries, keys, dropout,
        CAUSAL=causal, TILE_Q=tile.queries, TILE_K=tile.keys,
    )  # fmt: skip
    return o, lse


@t5_attention.register_fake
def _(q, k, v, bias, of_queries, of_keys, seed, causal, dropout):  # type: ignore[no-untyped-def]
    batch, queries, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, queries), dtype=torch.float32)


@torch.library.custom_op("fsdpkit::t5_attention_backward", mutates_args=())
def t5_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float,
    o: Tensor, lse: Tensor, do: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv; and delta = rowsum(do ∘ o), float32 [B, H, T]."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    dq, dk, dv, delta = (torch.empty_like(x) for x in (q, k, v, lse))
    tile = tiles("backward", q)
    common = q, k, v, bias, of_queries, of_keys, seed
    sizes = {"CAUSAL": causal, "TILE_Q": tile.queries, "TILE_K": tile.keys}
    launch(
        query_gradient_kernel, (triton.cdiv(queries, tile.queries) * batch * heads,),
        tile.warps, tile.stages,
        *common, o, lse, do, delta, dq, queries, keys, dropout, **sizes,
    )  # fmt: skip
    launch(
        key_gradient_kernel, (triton.cdiv(keys, tile.keys) * batch * heads,),
        tile.warps, tile.stages,
        *common, lse, do, delta, dk, dv, queries, keys, dropout, **sizes,
    )  # fmt: skip
    return dq, dk, dv, delta


@t5_attention_backward.register_fake
def _(q, k, v, bias, of_queries, of_keys, seed, causal, dropout, o, lse, do):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(x) for x in (q, k, v, lse))


@torch.library.custom_op("fsdpkit::t5_attention_bias_gradient", mutates_args=())
def t5_attention_bias_gradient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float,
    lse: Tensor, do: Tensor, delta: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of `bias` [H, 2·S − 1], in its type; the same bits for the same input."""
    batch, length, heads, _ = q.shape
    tile = tiles("backward", q)
    along = triton.cdiv(length, tile.queries)
    diagonals = along if causal else 2 * along - 1
    groups = min(batch, BATCH_GROUPS)
    parts = q.new_zeros((groups, heads, tile.queries, bias.shape[1]), dtype=torch.float32)
    launch(
        bias_gradient_kernel, (heads, groups, diagonals), tile.warps, tile.stages,
        q, k, v, bias, of_queries, of_keys, seed, lse, do, delta, parts, batch, length, dropout,
        CAUSAL=causal, TILE=tile.queries,
    )  # fmt: skip
    return parts.sum((0, 2)).to(bias.dtype)


@t5_attention_bias_gradient.register_fake
def _(q, k, v, bias, of_queries, of_keys, seed, causal, dropout, lse, do, delta):  # type: ignore[no-untyped-def]
    return torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, do: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, o, lse = ctx.saved_tensors
    do = do.contiguous()
    same = *tensors, ctx.causal, ctx.dropout
    dq, dk, dv, delta = t5_attention_backward(*same, o, lse, do)
    dbias = None
    if ctx.needs_input_grad[3]:
        dbias = t5_attention_bias_gradient(*same, lse, do, delta)
    return dq, dk, dv, dbias, None, None, None, None, None


t5_attention.register_autograd(_backward, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, *, causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """Attention of `q` [B, H, T, K] over `k` and `v` [B, H, S, K]; [B, H, T, K] in their type.

    `bias` [H, 2·S − 1], any float type, is added at index key − query + S − 1 and needs T = S. A
    query sees the keys that have its number, `of_queries` int [B, T] = `of_keys` int [B, S];
    without `of_queries` those where `of_keys`, int or bool, is not zero; `causal` hides keys behind
    it. A query that sees nothing gets zeros and gives no gradient, where the other kernels give it
    the mean of all values: no loss may come from it.

    Products are rounded to the type of `q` before a matrix product, everything else is float32;
    float32 products follow `torch.set_float32_matmul_precision`. Dropout's seed is drawn from the
    device's generator and never read by the host: recomputation with the generator's state
    restored, as activation checkpointing does it, drops the same pairs.
    """
    seed = torch.randint(2**62, (1,), device=q.device) if dropout else None
    tokens_first = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    masks = (None if x is None else x.contiguous() for x in (bias, of_queries, of_keys))
    o, _ = t5_attention(*tokens_first, *masks, seed, causal, dropout)
    return o.transpose(1, 2)
