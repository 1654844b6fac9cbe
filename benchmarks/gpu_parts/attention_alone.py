"""Attention by itself at T5 v1.1-large's shapes: each kernel's time, forward and backward.

cuDNN is asked for by name, although the trainer keeps off it: it has no gradient of the bias, so
its rows stand beside sdpa's without one.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from attention import ATTEND, FlexBias, masked, relative_buckets, visible_blocks
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import plan
from benchmarks.peers.workload import held_bytes, peak_bytes, restart_peak


class Case(NamedTuple):
    """One of the model's three uses of attention; lengths in tokens."""

    name: str
    queries: int
    keys: int
    causal: bool
    biased: bool


NO_GRADIENT = "no bias gradient"
BIASED = ("sdpa", "flex", f"sdpa, {NO_GRADIENT}", f"cudnn, {NO_GRADIENT}")
UNBIASED = ("sdpa", "flex", "cudnn")
FUSED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Of all kernels but cuDNN's, as the trainer has it."""


def run(part: Part) -> None:
    source, target = plan("t5-v1.1-large", dry=part.dry).lengths
    for case in (
        Case("encoder", source, source, causal=False, biased=True),
        Case("decoder", target, target, causal=True, biased=True),
        Case("across", target, source, causal=False, biased=False),
    ):
        for kind in BIASED if case.biased else UNBIASED:
            name = kind.partition(",")[0]
            gpu_only = name != "sdpa" and not part.device.on_gpu
            part.measure(
                f"{case.name}, {kind}",
                functools.partial(alone, part, case, kind),
                needs_s=15 if name == "flex" else 5,
                lacks=f"{name} is trained on GPUs only" if gpu_only else None,
            )


def alone(part: Part, case: Case, kind: str) -> Row:
    device = part.device.torch
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION] if kind.startswith("cudnn") else FUSED):
        forward, both = kernel(part, case, kind)
        forward_s = time_of(part, forward)
        held = held_bytes(device)
        restart_peak(device)
        both_s = time_of(part, both)
    return {
        "forward_s": forward_s,
        "backward_s": both_s - forward_s,
        "peak_bytes": peak_bytes(device) - held,
    }


def kernel(part: Part, case: Case, kind: str) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
    """Forward, and forward with backward, on what a head sees at the beginning of training."""
    config, device = plan("t5-v1.1-large", dry=part.dry).config, part.device.torch
    rows = 4 if part.dry else 64
    draw = functools.partial(torch.randn, device=device)

    def make(length: int) -> Tensor:
        # In memory a head is a column of its token, as the projections write it.
        x: Tensor = draw(rows, length, config.num_heads, config.d_kv) / config.d_kv**0.25
        return x.to(torch.bfloat16).transpose(1, 2)

    q, k, v = (make(n).requires_grad_() for n in (case.queries, case.keys, case.keys))
    grad = make(case.queries)
    table = draw(config.relative_attention_num_buckets, config.num_heads)
    buckets = relative_buckets(case.keys, not case.causal, len(table), 128, device)
    by_offset = table[buckets].t().contiguous()
    learned = [q, k, v]
    if case.biased and NO_GRADIENT not in kind:
        learned.append(by_offset.requires_grad_())
    mask = mask_of(case, rows, device)
    blocks = visible_blocks(mask, case.queries) if kind == "flex" else None

    def forward() -> Tensor:
        # [H, S, S] from the biases by offset, as model.py makes it.
        pairs = by_offset.unfold(-1, case.keys, 1).flip(-2).to(q.dtype) if case.biased else None
        if blocks is not None:
            return ATTEND["flex"](q, k, v, FlexBias(pairs, blocks), 0.0)
        added = masked(mask, q.new_zeros(()) if pairs is None else pairs)
        return ATTEND["sdpa"](q, k, v, added, 0.0)

    return forward, lambda: torch.autograd.grad(forward(), learned, grad)


def mask_of(case: Case, rows: int, device: torch.device) -> Tensor:
    """Bool [1 or B, 1, 1 or T, S]: who sees whom. Half of the rows have padding."""
    if case.causal:
        return torch.ones(1, 1, case.queries, case.keys, dtype=torch.bool, device=device).tril()
    own = torch.full((rows, 1, 1, 1), case.keys, device=device)
    own[rows // 2 :] = case.keys // 2 + 1
    return torch.arange(case.keys, device=device) < own


def time_of(part: Part, action: Callable[[], object]) -> float:
    """Seconds of one call, the median of three blocks. A block before compiles and warms up."""
    took, calls = [], 1 if part.dry else 20
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(calls):
            action()
        part.device.synchronize()
        took.append((time.perf_counter() - began) / calls)
    return statistics.median(took[1:])
