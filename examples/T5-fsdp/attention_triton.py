"""T5's attention as Triton kernels: neither scores nor pairwise biases are ever in memory.

FlashAttention-2 (Dao 2023, arXiv 2307.08691) with what T5 needs: scores that are not scaled, a bias
that is one number per head and distance, masks told by token, dropout, and a gradient of the bias
without atomic additions, the same bits each time. attention.py imports this file when
`attention = "triton"` asks for it; from elsewhere only `attend` is called.

Two kernels, each made of tiles of queries × keys. What a query did to a key is computed again in
backward, dropout included: its random numbers belong to pairs, not to tiles.

    forward   a tile of queries, over all keys                o, and the log of each softmax's sum
    backward  a head's tiles of keys, each over all queries   dq, dk, dv, and dS by offset

Matrix products of a tile: two forward, five backward, and for the bias's gradient one with ones and
zeros that is a sixteenth of their size. Where all offsets of a tile share one bias (T5: beyond its
largest distance) the bias is one number, and so is its gradient.

Shapes: B batch, H heads, T queries, S keys, K width of a head; T = S where there is a bias. In
memory a head is a column of its token, [B, T, H, K], as the model's projections write and read it;
from a token to the next it is a stride, so that q, k and v may be parts of one product.
`row` is b·H + h; scores and logarithms are to base 2, because `exp2` is an instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def places(
    x, row, tokens, length, stride,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Pointers to head `row` of `tokens` in `x` [B, length, H, K], and which of them exist.

    Heads are taken as PADDED wide, because a matrix product wants powers of two.
    """
    column = tl.arange(0, PADDED)
    begin = x + row // HEADS * length * stride + row % HEADS * WIDTH
    exist = tokens[:, None] < length
    if WIDTH < PADDED:
        exist = exist & (column[None, :] < WIDTH)
    return begin + (tokens[:, None] * stride + column[None, :]), exist


@triton.jit
def load(
    x, row, tokens, length, stride,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    pointers, exist = places(x, row, tokens, length, stride, HEADS, WIDTH, PADDED)
    return tl.load(pointers, mask=exist, other=0.0)


@triton.jit
def store(
    x, tile, row, tokens, length, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    pointers, exist = places(x, row, tokens, length, HEADS * WIDTH, HEADS, WIDTH, PADDED)
    tl.store(pointers, tile.to(x.dtype.element_ty), mask=exist)


@triton.jit
def seen_keys(of_keys, of_queries, j, row, keys, HEADS: tl.constexpr):
    """Which keys `j` exist and are not hidden from all, and their numbers if `of_queries`."""
    exist = j < keys
    numbers = exist.to(tl.int32)
    if of_keys is not None:
        numbers = tl.load(of_keys + row // HEADS * keys + j, mask=exist, other=0).to(tl.int32)
        if of_queries is None:
            exist = exist & (numbers != 0)
    return exist, numbers


@triton.jit
def scores_of(
    product, i, j, row, seen, numbers, bias, of_queries, queries,
    HEADS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """`product` = q·k with `bias`, a tile or one number, to base 2; −inf on pairs that are hidden.

    `i`, `j`, `seen` and `numbers` broadcast to the tile, whichever of them is its first dimension.
    """
    visible = seen
    if of_queries is not None:
        at = of_queries + row // HEADS * queries + i
        visible = visible & (numbers == tl.load(at, mask=i < queries, other=0).to(tl.int32))
    if CAUSAL:
        visible = visible & (j <= i)
    return tl.where(visible, product * LOG2_E + bias, float("-inf"))


@triton.jit
def near_biases(windows, head, offset, reach, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The tile of biases whose first column is `offset` after its first row; see `biases_of`.

    Even rows are read from one copy of the vector and odd ones from the other, so that all pairs
    of columns are aligned. What is near is so small that it stays in the first cache.
    """
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = windows + (head * 2 + 1 - r % 2) * width + reach + offset
    return tl.load(at - r // 2 * 2 + c)


@triton.jit
def sums_of_offsets(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """Of each square of 8 × 8 in `tile` the sums over its offsets row − column, from −8:
    [ROWS · COLUMNS / 64, 16], row after row of squares.

    A product with ones and zeros, once each square is a row: nothing else adds along a diagonal
    without moving most numbers to other threads.
    """
    down: tl.constexpr = ROWS // 8
    across: tl.constexpr = COLUMNS // 8
    squares = tl.reshape(tile, [down, 8, across, 8]).permute(0, 2, 1, 3)
    place = tl.arange(0, 64)[:, None]
    ones = tl.where(place // 8 - place % 8 + 8 == tl.arange(0, 16)[None, :], 1.0, 0.0)
    squares = tl.reshape(squares, [down * across, 64])
    return tl.dot(squares, ones.to(tile.dtype), input_precision=PRECISION)


@triton.jit
def dropped(x, i, j, row, seed, keys, dropout):
    """`x` with a share `dropout` of its pairs at zero, the others scaled up; `x` if no `seed`."""
    if seed is not None:
        # Philox, Salmon et al. 2011: seven rounds pass all their tests, Triton's default is ten.
        uniform = tl.rand(tl.load(seed) + row, i * keys + j, 7)
        x = tl.where(uniform >= dropout, x / (1 - dropout), 0.0)
    return x


@triton.jit
def forward_tile(
    highest, total, mixed, q_tile, start, k, v, kv_stride, bias, of_queries, of_keys, seed, i, row,
    queries, keys, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """The online softmax after one more tile of keys, which begins at `start`."""
    j = start + tl.arange(0, TILE_K)
    seen, numbers = seen_keys(of_keys, of_queries, j, row, keys, HEADS)
    k_tile = load(k, row, j, keys, kv_stride, HEADS, WIDTH, PADDED)
    v_tile = load(v, row, j, keys, kv_stride, HEADS, WIDTH, PADDED)
    product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
    scores = scores_of(
        product, i[:, None], j[None, :], row, seen[None, :], numbers[None, :], bias, of_queries,
        queries, HEADS, CAUSAL,
    )  # fmt: skip
    higher = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # seen nothing so far: −inf − −inf
    p = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    total = total * shrink + tl.sum(p, 1)
    p = dropped(p, i[:, None], j[None, :], row, seed, keys, dropout)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(p.to(v_tile.dtype), v_tile, mixed, input_precision=PRECISION)
    return higher, total, mixed


@triton.jit
def forward_kernel(
    q, k, v, q_stride, kv_stride, bias, of_queries, of_keys, seed, o, lse,
    queries, keys, far, reach, width, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(queries, TILE_Q)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * TILE_Q
    i = first + tl.arange(0, TILE_Q)
    q_tile = load(q, row, i, queries, q_stride, HEADS, WIDTH, PADDED)
    highest = tl.full([TILE_Q], float("-inf"), tl.float32)
    total = tl.zeros([TILE_Q], tl.float32)
    mixed = tl.zeros([TILE_Q, PADDED], tl.float32)
    behind, ahead = 0.0, 0.0
    near_begin, near_end = 0, 0
    end = tl.cdiv(keys, TILE_K)
    if bias is not None or CAUSAL:
        # Tiles of keys far behind the queries, then those near them, then those far ahead.
        if CAUSAL:
            end = tl.minimum(end, tl.cdiv(first + TILE_Q, TILE_K))
        near_begin = tl.minimum(tl.maximum(first - far + 1, 0) // TILE_K, end)
        near_end = tl.minimum(tl.cdiv(first + TILE_Q - 1 + far, TILE_K), end)
        for number in range(near_begin, near_end):
            start = number * TILE_K
            b = 0.0
            if bias is not None:
                b = near_biases(bias, row % HEADS, start - first, reach, width, TILE_Q, TILE_K)
            highest, total, mixed = forward_tile(
                highest, total, mixed, q_tile, start, k, v, kv_stride, b, of_queries, of_keys, seed,
                i, row, queries, keys, dropout, HEADS, WIDTH, PADDED, CAUSAL, PRECISION, TILE_K,
            )  # fmt: skip
    if bias is not None:
        middle = bias + (row % HEADS * 2 + 1) * width + reach
        behind, ahead = tl.load(middle - (keys - 1)), tl.load(middle + (keys - 1))
    for number in range(end - near_end + near_begin):
        is_behind = number < near_begin
        start = (number if is_behind else number + near_end - near_begin) * TILE_K
        highest, total, mixed = forward_tile(
            highest, total, mixed, q_tile, start, k, v, kv_stride, behind if is_behind else ahead,
            of_queries, of_keys, seed, i, row,
            queries, keys, dropout, HEADS, WIDTH, PADDED, False, PRECISION, TILE_K,
        )  # fmt: skip
    saw_nothing = total == 0
    total = tl.where(saw_nothing, 1.0, total)
    store(o, mixed / total[:, None], row, i, queries, HEADS, WIDTH, PADDED)
    log_sum = tl.where(saw_nothing, float("inf"), highest + tl.log2(total))  # +inf: weights of 0
    tl.store(lse + row * queries + i, log_sum, mask=i < queries)


@triton.jit
def backward_tile(
    dk_tile, dv_tile, k_tile, v_tile, start, q, q_stride, bias, of_queries, seed, lse, do, delta,
    sums, j, seen, numbers, row, queries, keys, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr,
):  # fmt: skip
    """dk and dv with what the tile of queries that begins at `start` adds, and dS [keys, queries].

    Its share of dq is added to `sums`, by the L2 cache, to which no other program adds.
    """
    i = start + tl.arange(0, TILE_Q)
    q_tile = load(q, row, i, queries, q_stride, HEADS, WIDTH, PADDED)
    do_tile = load(do, row, i, queries, HEADS * WIDTH, HEADS, WIDTH, PADDED)
    lse_tile = tl.load(lse + i, mask=i < queries, other=float("inf"))
    delta_tile = tl.load(delta + i, mask=i < queries, other=0.0)
    product = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)
    scores = scores_of(
        product, i[None, :], j[:, None], row, seen[:, None], numbers[:, None], bias, of_queries,
        queries, HEADS, CAUSAL,
    )  # fmt: skip
    p = tl.exp2(scores - lse_tile[None, :])
    kept = dropped(p, i[None, :], j[:, None], row, seed, keys, dropout)
    dv_tile = tl.dot(kept.to(do_tile.dtype), do_tile, dv_tile, input_precision=PRECISION)
    dp = tl.dot(v_tile, tl.trans(do_tile), input_precision=PRECISION)
    dp = dropped(dp, i[None, :], j[:, None], row, seed, keys, dropout)
    ds = p * (dp - delta_tile[None, :])
    rounded = ds.to(q_tile.dtype)
    dk_tile = tl.dot(rounded, q_tile, dk_tile, input_precision=PRECISION)
    dq_tile = tl.dot(tl.trans(rounded), k_tile, input_precision=PRECISION)
    pointers = sums + i[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
    tl.atomic_add(pointers, dq_tile, mask=i[:, None] < queries, sem="relaxed")
    return dk_tile, dv_tile, ds, rounded


@triton.jit
def backward_kernel(
    q, k, v, q_stride, kv_stride, bias, of_queries, of_keys, seed, o, lse, do, delta, sums,
    dq, dk, dv, near_sums, far_sums,
    rows, queries, keys, far, reach, width, slots, last_slot, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """All gradients of one head, or of its tiles of keys number part, part + parts, …

    Tiles are keys × queries here: what is summed over queries needs no transposition then. No
    other program adds to the same dq, in `sums` [parts, B·H, T, PADDED], and all threads wait for
    each other between two tiles of keys; so sums have one order, and the same bits each time.
    """
    parts, part = tl.num_programs(0), tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    sums += (part * rows + row) * queries * PADDED
    lse += row * queries
    delta += (part * rows + row) * queries
    for start in range(0, queries, TILE_Q):
        i = start + tl.arange(0, TILE_Q)
        do_tile = load(do, row, i, queries, HEADS * WIDTH, HEADS, WIDTH, PADDED)
        o_tile = load(o, row, i, queries, HEADS * WIDTH, HEADS, WIDTH, PADDED)
        products = do_tile.to(tl.float32) * o_tile.to(tl.float32)
        tl.store(delta + i, tl.sum(products, 1), mask=i < queries)
        at = sums + i[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
        tl.store(at, tl.zeros([TILE_Q, PADDED], tl.float32), mask=i[:, None] < queries)
    behind, ahead = 0.0, 0.0
    if bias is not None:
        middle = bias + (row % HEADS * 2 + 1) * width + reach
        behind, ahead = tl.load(middle + (keys - 1)), tl.load(middle - (keys - 1))
    if near_sums is not None:
        near_sums += (part * rows + row) * slots * (TILE_K * TILE_Q // 4)
        far_sums += row * tl.cdiv(keys, TILE_K) * 2
    for tile in tl.range(part, tl.cdiv(keys, TILE_K), parts, disable_licm=True):
        tl.debug_barrier()  # what other threads of this program have written can be read now
        first = tile * TILE_K
        j = first + tl.arange(0, TILE_K)
        seen, numbers = seen_keys(of_keys, of_queries, j, row, keys, HEADS)
        k_tile = load(k, row, j, keys, kv_stride, HEADS, WIDTH, PADDED)
        v_tile = load(v, row, j, keys, kv_stride, HEADS, WIDTH, PADDED)
        dk_tile = tl.zeros([TILE_K, PADDED], tl.float32)
        dv_tile = tl.zeros([TILE_K, PADDED], tl.float32)
        near_begin, near_end, skipped = 0, 0, 0
        end = tl.cdiv(queries, TILE_Q)
        if bias is not None or CAUSAL:
            # Tiles of queries that these keys are far ahead of, then near to, then far behind.
            near_begin = tl.minimum(tl.maximum(first - far + 1, 0) // TILE_Q, end)
            near_end = tl.minimum(tl.cdiv(first + TILE_K - 1 + far, TILE_Q), end)
            if CAUSAL:
                near_begin = tl.minimum(first // TILE_Q, end)
                skipped = near_begin
            for number in tl.range(near_begin, near_end, disable_licm=True):
                start = number * TILE_Q
                b = 0.0
                if bias is not None:
                    b = near_biases(bias, row % HEADS, start - first, reach, width, TILE_K, TILE_Q)
                dk_tile, dv_tile, ds, rounded = backward_tile(
                    dk_tile, dv_tile, k_tile, v_tile, start, q, q_stride, b, of_queries, seed,
                    lse, do, delta, sums, j, seen, numbers, row, queries, keys, dropout,
                    HEADS, WIDTH, PADDED, CAUSAL, PRECISION, TILE_Q,
                )  # fmt: skip
                if near_sums is not None:
                    squares: tl.constexpr = TILE_K * TILE_Q // 64
                    slot = last_slot + tile * (TILE_K // TILE_Q) - number
                    at = near_sums + slot * (squares * 16) + tl.arange(0, squares)[:, None] * 16
                    at += tl.arange(0, 16)[None, :]
                    ds_sums = sums_of_offsets(rounded, TILE_K, TILE_Q, PRECISION)
                    tl.atomic_add(at, ds_sums, sem="relaxed")
        sum_behind = tl.zeros([TILE_K], tl.float32)
        sum_ahead = tl.zeros([TILE_K], tl.float32)
        for number in tl.range(skipped, end - near_end + near_begin, disable_licm=True):
            is_ahead = number < near_begin
            start = (number if is_ahead else number + near_end - near_begin) * TILE_Q
            dk_tile, dv_tile, ds, rounded = backward_tile(
                dk_tile, dv_tile, k_tile, v_tile, start, q, q_stride,
                ahead if is_ahead else behind, of_queries, seed, lse, do, delta, sums,
                j, seen, numbers, row, queries, keys, dropout,
                HEADS, WIDTH, PADDED, False, PRECISION, TILE_Q,
            )  # fmt: skip
            if near_sums is not None:
                sum_ds = tl.sum(ds, 1)
                sum_ahead += tl.where(is_ahead, sum_ds, 0.0)
                sum_behind += tl.where(is_ahead, 0.0, sum_ds)
        store(dk, dk_tile, row, j, keys, HEADS, WIDTH, PADDED)
        store(dv, dv_tile, row, j, keys, HEADS, WIDTH, PADDED)
        if near_sums is not None:
            tl.store(far_sums + tile * 2, tl.sum(sum_behind, 0))
            tl.store(far_sums + tile * 2 + 1, tl.sum(sum_ahead, 0))
    if dq is not None:
        tl.debug_barrier()
        for start in range(0, queries, TILE_Q):
            i = start + tl.arange(0, TILE_Q)
            at = sums + i[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
            dq_tile = tl.load(at, mask=i[:, None] < queries, other=0.0)
            store(dq, dq_tile, row, i, queries, HEADS, WIDTH, PADDED)


class Tiles(NamedTuple):
    """Queries and keys in a tile, warps that share it, and loads under way at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles(kernel: str, q: Tensor) -> Tiles:
    """Of "forward" or "backward", on the GPU of `q`."""
    major = torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 0
    return tiles_of(kernel, q.shape[-1], q.element_size(), major)


def tiles_of(kernel: str, width: int, element_size: int, major: int) -> Tiles:
    """For a GPU of compute capability `major`.

    Fixed, where others measure a few on first use: all ranks and all runs then add in the same
    order. As large as registers allow without spilling, and 99 KiB of shared memory, which all GPUs
    have since compute capability 8.6; Hopper and Blackwell for data centres have 227 KiB.
    benchmarks/kernels.py compiles them all.
    """
    wide = padded(width) > 64
    if element_size == 4:
        return Tiles(16, 16, 4, 1) if wide and kernel == "backward" else Tiles(32, 32, 4, 2 - wide)
    large = major in (9, 10)
    if kernel == "forward":
        return Tiles(128, 64, 8, 2 if wide else 3) if large else Tiles(64, 64, 8 if wide else 4, 2)
    if wide:
        return Tiles(16 if major == 9 else 32, 64, 8, 2)
    return Tiles(32, 128, 8, 2)


PROGRAMS = 256
"""How many programs backward aims at where heads and batch are fewer: about two a multiprocessor.

A constant, because it decides in which order gradients are added.
"""


def padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


class Kernel(Protocol):
    """What `triton.jit` makes of a kernel: for a grid, what launches it."""

    def __getitem__(self, grid: tuple[int, ...], /) -> Callable[..., None]: ...


def launch(
    kernel: Kernel, grid: tuple[int, ...], warps: int, stages: int,
    q: Tensor, *arguments: Tensor | float | None, **constants: int,
) -> None:  # fmt: skip
    """Run `kernel` on the GPU of `q` [B, T, H, K], or in Triton's interpreter."""
    heads, width = q.shape[2:]
    with torch.cuda.device_of(q):
        kernel[grid](
            q, *arguments, HEADS=heads, WIDTH=width, PADDED=padded(width),
            PRECISION="tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            num_warps=warps, num_stages=stages, **constants,
        )  # fmt: skip


def tokens_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """`tensors` [B, H, T, K] as [B, T, H, K] of one stride, copied if the kernels cannot read them
    where they are: parts of one product of a projection they can."""
    turned = tuple(x.transpose(1, 2) for x in tensors)
    stride = token_stride(turned[0])
    if all(x.stride() == (x.shape[1] * stride, stride, x.shape[3], 1) for x in turned):
        return turned
    return tuple(x.contiguous() for x in turned)


def token_stride(x: Tensor) -> int:
    """Elements from one token of `x` [B, T, H, K] to the next, across samples as within one."""
    # A dimension of one may have any stride.
    return x.stride(0) // x.shape[1] if len(x) > 1 and x.shape[1] else x.stride(1)


class Biases(NamedTuple):
    """A bias by offset as the kernels read it; see `near_biases`."""

    windows: Tensor | None  # float32 [H, 2, width], to base 2; the first is the second, moved by 1
    far: int  # offsets from ±far on share one bias
    reach: int  # where offset 0 is in the second
    width: int


def biases_of(bias: Tensor | None, far: int, tile: Tiles, *, turned: bool = False) -> Biases:
    """`bias` [H, 2·S − 1]; `far` as `attend` has it; `turned`: by query − key instead."""
    if bias is None:
        return Biases(None, 1, 0, 0)
    length = (bias.shape[1] + 1) // 2
    far = min(far or length, length)
    reach = triton.cdiv(length + tile.queries + tile.keys, 16) * 16  # room for whole tiles
    vector = (bias.flip(-1) if turned else bias).float() * LOG2_E.value
    vector = torch.nn.functional.pad(vector, (reach + 2 - length, reach - length))
    return Biases(vector.unfold(-1, 2 * reach, 1).contiguous(), far, reach, 2 * reach)


@torch.library.custom_op("fsdpkit::t5_attention", mutates_args=())
def t5_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, far: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` for [B, T, H, K] as `tokens_first` leaves them; also the base-2 logarithm of each
    softmax's sum, float32 [B, H, T]: +inf for a query that sees nothing. `far` is 0 if not known.
    """
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    o, lse = q.new_empty(q.shape), q.new_empty((batch, heads, queries), dtype=torch.float32)
    tile = tiles("forward", q)
    biases = biases_of(bias, far, tile)
    launch(
        forward_kernel, (triton.cdiv(queries, tile.queries) * batch * heads,),
        tile.warps, tile.stages,
        q, k, v, token_stride(q), token_stride(k),
        biases.windows, of_queries, of_keys, seed, o, lse, queries, keys, *biases[1:],
        dropout, CAUSAL=causal, TILE_Q=tile.queries, TILE_K=tile.keys,
    )  # fmt: skip
    return o, lse


@t5_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, far: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, queries, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, queries), dtype=torch.float32)


@torch.library.custom_op("fsdpkit::t5_attention_backward", mutates_args=())
def t5_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, far: int,
    o: Tensor, lse: Tensor, do: Tensor, bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv; and the gradient of `bias` [H, 2·S − 1], in its type, empty unless wanted."""
    (batch, queries, heads, width), keys = q.shape, k.shape[1]
    tile = tiles("backward", q)
    biases = biases_of(bias, far, tile, turned=True)
    tiles_of_keys = triton.cdiv(keys, tile.keys)
    parts = parts_of(tiles_of_keys, batch * heads)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    sums = q.new_empty((parts, batch, heads, queries, padded(width)), dtype=torch.float32)
    delta = q.new_empty((parts, batch, heads, queries), dtype=torch.float32)
    near, far_sums, slots, last = None, None, 0, 0
    if bias_learns:
        # A slot for each distance between near tiles; that of tiles side by side is `last`.
        last = triton.cdiv(biases.far + tile.keys, tile.queries) - 1
        ahead = triton.cdiv(biases.far + tile.queries, tile.queries) - 1
        slots = last + 1 + (0 if causal else ahead)
        squares = tile.keys * tile.queries // 64
        near = q.new_zeros((parts * batch, heads, slots, squares, 16), dtype=torch.float32)
        far_sums = q.new_empty((batch, heads, tiles_of_keys, 2), dtype=torch.float32)
    launch(
        backward_kernel, (parts, batch * heads), tile.warps, tile.stages,
        q, k, v, token_stride(q), token_stride(k),
        biases.windows, of_queries, of_keys, seed, o, lse, do, delta, sums,
        dq if parts == 1 else None, dk, dv, near, far_sums, batch * heads, queries, keys,
        *biases[1:], slots, last, dropout, CAUSAL=causal, TILE_Q=tile.queries, TILE_K=tile.keys,
    )  # fmt: skip
    if parts > 1:
        dq.copy_(sums.sum(0)[..., :width].transpose(1, 2))
    if bias is None or near is None or far_sums is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, by_offset(near.sum(0), last, far_sums.sum((0, 2)), tile, keys).to(bias.dtype)


def parts_of(tiles_of_keys: int, rows: int) -> int:
    """Among how many programs to share the keys of a head, so that about as many get each."""
    if not rows or not tiles_of_keys:
        return 1
    wanted = min(triton.cdiv(PROGRAMS, rows), tiles_of_keys)
    return triton.cdiv(tiles_of_keys, triton.cdiv(tiles_of_keys, wanted))


def by_offset(near: Tensor, last: int, far: Tensor, tile: Tiles, keys: int) -> Tensor:
    """The gradient by offset, [H, 2·S − 1], from the sums that `backward_kernel` leaves.

    `near` [H, slots, squares, 16]: tiles of slot `last` begin at offset 0, and each slot TILE_Q
    after the slot before; each square has the 16 offsets from −8. `far` [H, 2] goes to the first
    and the last offset.
    """
    heads, slots = near.shape[:2]
    down, across, hop = tile.keys // 8, tile.queries // 8, tile.queries // 8
    halves = near.view(heads, slots, down, across, 2, 8)
    # Row after row moved by one square, so that squares with the same offsets are a column.
    turned = near.new_zeros(heads, slots, across, down + across, 2, 8)
    strides = (*turned.stride()[:2], turned.stride(2) - turned.stride(3), *turned.stride()[3:])
    moved = turned.as_strided(
        (heads, slots, across, down, 2, 8), strides, (across - 1) * turned.stride(3)
    )  # fmt: skip
    moved.copy_(halves.transpose(2, 3))
    lines = turned.sum(2)
    eights = lines[..., 0, :]
    eights[:, :, 1:] += lines[:, :, :-1, 1]
    pieces = eights.unflatten(2, (-1, hop)).flatten(3)
    whole = near.new_zeros(heads, slots + pieces.shape[2] - 1, hop * 8)
    for piece in range(pieces.shape[2]):
        whole[:, piece : piece + slots] += pieces[:, :, piece]
    begin = (last * hop + across) * 8 - (keys - 1)  # where offset −(S − 1) is
    found = torch.nn.functional.pad(
        whole.flatten(1), (-begin, begin + 2 * keys - 1 - whole.shape[1] * whole.shape[2])
    )  # fmt: skip
    found[:, 0] += far[:, 0]
    found[:, -1] += far[:, 1]
    return found


@t5_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, far: int,
    o: Tensor, lse: Tensor, do: Tensor, bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    if bias is None or not bias_learns:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.dropout, ctx.far = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, do: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, o, lse = ctx.saved_tensors
    same = *tensors, ctx.causal, ctx.dropout, ctx.far
    learns = ctx.needs_input_grad[3]
    dq, dk, dv, dbias = t5_attention_backward(*same, o, lse, do.contiguous(), learns)
    return dq, dk, dv, dbias if learns else None, None, None, None, None, None, None


t5_attention.register_autograd(_backward, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, of_queries: Tensor | None,
    of_keys: Tensor | None, *, causal: bool, dropout: float, far: int = 0,
) -> Tensor:  # fmt: skip
    """Attention of `q` [B, H, T, K] over `k` and `v` [B, H, S, K]; [B, H, T, K] in their type.

    `bias` [H, 2·S − 1], any float type, is added at index key − query + S − 1 and needs T = S. A
    query sees the keys that have its number, `of_queries` int [B, T] = `of_keys` int [B, S];
    without `of_queries` those where `of_keys`, int or bool, is not zero; `causal` hides keys behind
    it. A query that sees nothing gets zeros and gives no gradient, where the other kernels give it
    the mean of all values: no loss may come from it.

    `far`, if not 0, promises that all offsets ≥ far have one bias, and all ≤ −far one: T5's
    largest distance. That is faster; the gradient of such a bias is then divided among its offsets
    in any way, mostly to the outermost one.

    Products are rounded to the type of `q` before a matrix product, everything else is float32;
    float32 products follow `torch.set_float32_matmul_precision`. Dropout's seed is drawn from the
    device's generator and never read by the host: recomputation with the generator's state
    restored, as activation checkpointing does it, drops the same pairs.
    """
    seed = torch.randint(2**62, (1,), device=q.device) if dropout else None
    masks = (None if x is None else x.contiguous() for x in (bias, of_queries, of_keys))
    o, _ = t5_attention(*tokens_first(q), *tokens_first(k, v), *masks, seed, causal, dropout, far)
    return o.transpose(1, 2)
