"""Attention by itself at T5 v1.1-large's shapes: each kernel's time, forward and backward, and how
far output and gradients are from float64.

Inputs are the same bfloat16 numbers for all, with the model's own kernels as model.py calls them.
cuDNN is asked for by name, although the trainer keeps off it: it has no gradient of the bias, so
its rows stand beside sdpa's without one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_parts.part import Part, Row, Unavailable
from benchmarks.gpu_parts.trial import (
    ATTEND,
    FlexBias,
    TokenBias,
    masked,
    plan,
    relative_buckets,
    visible_blocks,
)


class Case(NamedTuple):
    """One of the model's three uses of attention; lengths in tokens."""

    name: str
    queries: int
    keys: int
    causal: bool
    biased: bool


KINDS = ("sdpa", "triton", "flex", "sdpa, no bias gradient", "cudnn, no bias gradient", "math")
BOUNDS = {"float32": 1e-4, "bfloat16": 0.03}
"""Of the norm of the difference over the norm, for each tensor."""


def run(part: Part) -> None:
    source, target = plan("t5-v1.1-large", dry=part.dry).lengths
    cases = (
        Case("encoder", source, source, causal=False, biased=True),
        Case("decoder", target, target, causal=True, biased=True),
        Case("across", target, source, causal=False, biased=False),
        # Where a tile is cut by the end of the text.
        Case("encoder, odd length", source - 7, source - 7, causal=False, biased=True),
    )
    for case in cases:
        for kind in KINDS:
            if not case.biased and "no bias" in kind and "cudnn" not in kind:
                continue  # the same as sdpa
            name = kind.partition(",")[0]
            # The interpreter of a dry run has no bfloat16.
            dtype = torch.float32 if part.dry and name == "triton" else torch.bfloat16
            part.measure(
                f"{case.name}, {kind}",
                functools.partial(alone, part, case, kind, dtype),
                needs_s=20 if name in ("flex", "triton") else 5,
                lacks=lacks(part, name, dtype),
            )


def lacks(part: Part, kind: str, dtype: torch.dtype) -> str | None:
    if kind == "cudnn":
        return None if part.device.on_gpu else "cuDNN is for GPUs"
    return part.device.lacks(kind, str(dtype).removeprefix("torch."))


class Inputs(NamedTuple):
    """`q` [B, H, T, K], `k` and `v` [B, H, S, K], `by_offset` [H, 2·S − 1] float32, `lengths` int64
    [B] of the real keys of each row."""

    q: Tensor
    k: Tensor
    v: Tensor
    by_offset: Tensor
    lengths: Tensor
    grad: Tensor


def made_up(part: Part, case: Case, dtype: torch.dtype) -> Inputs:
    """As a head sees them at the beginning of training; the last rows have padding."""
    config = plan("t5-v1.1-large", dry=part.dry).config
    rows = 2 if part.dry else 64
    device = part.device.torch
    generator = torch.Generator(device).manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator, device=device)
    heads, width = config.num_heads, config.d_kv

    def make(length: int) -> Tensor:
        # In memory a head is a column of its token, as the projections write it.
        x = draw(rows, length, heads, width) / width**0.25
        own: Tensor = x.to(dtype).transpose(1, 2)
        return own

    q, k, v, grad = make(case.queries), make(case.keys), make(case.keys), make(case.queries)
    table = draw(config.relative_attention_num_buckets, heads)
    buckets = relative_buckets(case.keys, not case.causal, len(table), 128, device)
    by_offset = table[buckets].t().contiguous()
    lengths = torch.full((rows,), case.keys, device=device)
    if not case.causal:
        lengths[rows // 2 :] = case.keys // 2 + 1
    return Inputs(q, k, v, by_offset, lengths, grad)


def pairs(bias: Tensor, keys: int) -> Tensor:
    """[H, S, S] from the biases by offset; model.py's `position_bias`."""
    windows: Tensor = bias.unfold(-1, keys, 1).flip(-2)
    return windows


def mask_of(case: Case, inputs: Inputs) -> tuple[Tensor, TokenBias]:
    """Who sees whom, by pair [·, 1, ·, S] and by token."""
    device = inputs.q.device
    if case.causal:
        by_token = TokenBias(causal=True)
    else:
        by_token = TokenBias(None, torch.arange(case.keys, device=device) < inputs.lengths[:, None])
    return by_token.pairs(case.queries, device), by_token


def forward(case: Case, kind: str, inputs: Inputs, leaves: list[Tensor], visible: Any) -> Tensor:
    """The kernel's output [B, H, T, K], the bias made of `leaves[3]` in the way it takes it."""
    mask, by_token, blocks = visible
    q, k, v, by_offset = leaves
    name = kind.partition(",")[0]
    dtype = q.dtype
    bias: Any
    if name == "triton":
        bias = by_token._replace(by_offset=by_offset) if case.biased else by_token
    elif name == "flex":
        bias = FlexBias(pairs(by_offset, case.keys).to(dtype) if case.biased else None, blocks)
    elif case.biased:
        bias = masked(mask, pairs(by_offset, case.keys).to(dtype))
    else:
        bias = masked(mask, q.new_zeros(()))
    out: Tensor = ATTEND["sdpa" if name == "cudnn" else name](q, k, v, bias, 0.0)
    return out


@contextlib.contextmanager
def only(kind: str) -> Iterator[None]:
    """cuDNN alone for its rows, never for the others, as the trainer has it."""
    names = (
        [SDPBackend.CUDNN_ATTENTION]
        if kind.startswith("cudnn")
        else [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    )
    with sdpa_kernel(names):
        try:
            yield
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise Unavailable(f"{kind.partition(',')[0]} refuses these tensors") from error
            raise


def alone(part: Part, case: Case, kind: str, dtype: torch.dtype) -> Row:
    device = part.device
    inputs = made_up(part, case, dtype)
    mask, by_token = mask_of(case, inputs)
    blocks = visible_blocks(mask, case.queries) if kind == "flex" else None
    visible = (mask, by_token, blocks)
    learns = case.biased and "no bias gradient" not in kind
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    leaves.append(inputs.by_offset.detach().requires_grad_(learns))
    wanted = leaves if learns else leaves[:3]
    with only(kind):

        def go() -> Tensor:
            return forward(case, kind, inputs, leaves, visible)

        found = [(out := go()).detach(), *torch.autograd.grad(out, wanted, inputs.grad)]
        errors = compared(case, inputs, mask, found)
        forward_s = device.seconds(go)

        def both() -> None:
            torch.autograd.grad(go(), wanted, inputs.grad)

        device.restart_peak()
        held = device.held_bytes()
        both_s = device.seconds(both)
        peak = device.peak_bytes() - held
    flops = 4 * case.queries * case.keys * inputs.q[:, :, 0].numel()
    bound = BOUNDS[str(dtype).removeprefix("torch.")]
    return {
        "kind": kind,
        "forward_s": forward_s,
        "backward_s": both_s - forward_s,
        # Two products forward and five backward; of pairs that are hidden too.
        "kernel_tflops": 3.5 * flops / both_s / 1e12,
        "peak_bytes": peak,
        "errors": errors,
        "relative": max(errors.values()),
        "worst": max(errors, key=lambda name: errors[name]),
        "bound": bound,
        "passed": all(error <= bound for error in errors.values()),
    }


def compared(case: Case, inputs: Inputs, mask: Tensor, found: list[Tensor]) -> dict[str, float]:
    """The norm of the difference over the norm, for the output and each gradient, against float64;
    a few rows at a time, because its scores are large."""
    leaves = [x.detach().double().requires_grad_() for x in inputs[:4]]
    rows = len(inputs.q)
    outs, grads = [], [torch.zeros_like(x) for x in leaves]
    for start in range(0, rows, 4):
        part = slice(start, start + 4)
        q, k, v = (x[part] for x in leaves[:3])
        own = mask if len(mask) == 1 else mask[part]
        bias = pairs(leaves[3], case.keys) if case.biased else q.new_zeros(())
        out = torch.softmax((q @ k.mT + bias).masked_fill(~own, -torch.inf), -1) @ v
        some = torch.autograd.grad(out, leaves, inputs.grad[part].double(), allow_unused=True)
        outs.append(out.detach())
        for total, one in zip(grads, some, strict=True):
            if one is not None:
                total += one
    exact = [torch.cat(outs), *grads]
    names = ("out", "dq", "dk", "dv", "dbias")
    return {
        name: float((mine.double() - right).norm() / right.norm())
        for name, mine, right in zip(names, found, exact, strict=False)
    }
