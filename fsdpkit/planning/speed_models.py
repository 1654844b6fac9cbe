"""Layers of decoders and of T5, counted: products by their shapes, everything else by its bytes.

Bytes are those that kernels move if no cache holds anything. `compiled` says whether neighbours are
fused, as torch.compile fuses them; the counts of passes over an activation are ours, of the
operations as they are written in eager mode and of what is left of them when fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fsdpkit.planning.speed_layers import Sharded, UnitPart, UnitWork, work_of
from fsdpkit.planning.work import StepWork

HALF, FLOAT32 = 2, 4
CHUNK_BYTES = 64 << 20
"""Of scores in float32 in one chunk of the loss, as examples/T5-fsdp/loss.py has it."""


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    gated: bool
    vocabulary: int
    tied: bool = False
    learned_positions: int = 0

    @property
    def block_parameters(self) -> int:
        attention = self.width * self.head_width * 2 * (self.heads + self.kv_heads)
        return (
            attention + (3 if self.gated else 2) * self.width * self.feed_forward + 2 * self.width
        )

    @property
    def parameters(self) -> int:
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        positions = self.learned_positions * self.width
        return self.layers * self.block_parameters + embeddings + positions + self.width


def decoder_work(
    model: Decoder, sharded: Sharded, *, rows: int, length: int, compiled: bool
) -> StepWork:
    """`rows` sequences of `length` tokens in each micro-batch of each rank."""
    tokens = rows * length
    inner, kv = model.heads * model.head_width, model.kv_heads * model.head_width
    own = (
        _product(tokens, model.width, inner + 2 * kv),
        _rotations(tokens, inner + kv, compiled, learned=model.learned_positions > 0),
        # A causal kernel leaves out the half that is masked.
        UnitPart("attention", 2 * rows * length * length * inner, 4 * tokens * inner * HALF, 1),
        _product(tokens, inner, model.width),
        *_feed_forward(tokens, model.width, model.feed_forward, model.gated, compiled),
        _norms(2, tokens, model.width, compiled),
    )
    root = UnitWork(
        unit="",
        parameters=(1 if model.tied else 2) * model.vocabulary * model.width + model.width,
        forward=(UnitPart("other", bytes=2 * tokens * model.width * HALF, kernels=3),),
        block=False,
        stays=True,
    )
    # Gathered with the root, computed at the end: no weights of its own.
    head = UnitWork(
        unit="head",
        parameters=0,
        forward=_head(tokens, model.width, model.vocabulary, compiled),
        block=False,
        stays=True,
    )
    blocks = [
        UnitWork(unit=f"layers.{n}", parameters=model.block_parameters, forward=own)
        for n in range(model.layers)
    ]
    products = 2 * tokens * (model.layers * model.block_parameters + model.vocabulary * model.width)
    scores = 4 * model.layers * rows * length * length * inner
    return work_of(
        _without_empty([root, *blocks, head]),
        sharded,
        tokens=tokens * sharded.accumulation,
        samples=rows * sharded.accumulation,
        model_flops=3 * (products + scores) * sharded.accumulation,
    )


def t5_work(
    dimensions: Mapping[str, Any],
    sharded: Sharded,
    *,
    rows: int,
    source: int,
    target: int,
    compiled: bool,
    head_apart: bool = True,
    chunked: bool = False,
) -> StepWork:
    """Our T5 with the `dimensions` of `ModelSettings.dimensions`; `rows` pairs in a micro-batch.

    `head_apart`: the head is gathered by itself, as under FSDP2; else with the root. `chunked`: its
    loss is taken some tokens at a time, with its gradients at once.
    """
    d, inner = dimensions["d_model"], dimensions["num_heads"] * dimensions["d_kv"]
    gated = dimensions.get("feed_forward_proj", "gated-gelu") == "gated-gelu"
    ff, vocabulary = dimensions["d_ff"], dimensions["vocab_size"]
    encoders, decoders = dimensions["num_layers"], dimensions["num_decoder_layers"]
    s, t = rows * source, rows * target
    attention, maps = 4 * d * inner, (3 if gated else 2) * d * ff

    def self_attention(tokens: int, length: int) -> tuple[UnitPart, ...]:
        return (
            _product(tokens, d, 3 * inner),
            UnitPart("attention", 4 * tokens * length * inner, 4 * tokens * inner * HALF, 1),
            _product(tokens, inner, d),
        )

    encoder = (
        *self_attention(s, source),
        *_feed_forward(s, d, ff, gated, compiled),
        _norms(2, s, d, compiled),
    )
    decoder = (
        *self_attention(t, target),
        _product(t, d, inner),
        _product(s, d, 2 * inner),
        UnitPart("attention", 4 * t * source * inner, (2 * t + 2 * s) * inner * HALF, 1),
        _product(t, inner, d),
        *_feed_forward(t, d, ff, gated, compiled),
        _norms(3, t, d, compiled),
    )
    tied = bool(dimensions.get("tie_word_embeddings"))
    apart = head_apart and not tied
    root = UnitWork(
        unit="",
        parameters=vocabulary * d * (1 if tied or apart else 2) + 2 * d,
        forward=(UnitPart("other", bytes=2 * (s + t) * d * HALF, kernels=6),),
        block=False,
        stays=True,
    )
    head = UnitWork(
        unit="lm_head",
        parameters=vocabulary * d if apart else 0,
        forward=_head(t, d, vocabulary, compiled, chunked),
        block=False,
        stays=True,
    )
    blocks = [
        UnitWork(unit=f"encoder.block.{n}", parameters=attention + maps + 2 * d, forward=encoder)
        for n in range(encoders)
    ]
    blocks += [
        UnitWork(
            unit=f"decoder.block.{n}", parameters=2 * attention + maps + 3 * d, forward=decoder
        )
        for n in range(decoders)
    ]
    layers = [root, *blocks, head]
    flops = sum(p.flops for one in layers for p in one.forward if p.kind != "other")
    return work_of(
        _without_empty(layers),
        sharded,
        tokens=(s + t) * sharded.accumulation,
        samples=rows * sharded.accumulation,
        model_flops=3 * flops * sharded.accumulation,
    )


def _without_empty(layers: list[UnitWork]) -> list[UnitWork]:
    """A head without weights of its own computes with the root's."""
    return [msgspec.structs.replace(one, unit="") if one.parameters == 0 else one for one in layers]


def _product(tokens: int, inputs: int, outputs: int) -> UnitPart:
    size = tokens * (inputs + outputs) + inputs * outputs
    return UnitPart("matmul", 2 * tokens * inputs * outputs, size * HALF, 1)


def _feed_forward(
    tokens: int, width: int, inner: int, gated: bool, compiled: bool
) -> tuple[UnitPart, ...]:
    ways = 2 if gated else 1
    # Gated: fused, two are read and one is written; else the activation and the product apart.
    passes = 2 + gated if compiled else 2 + 3 * gated
    return (
        *(_product(tokens, width, inner) for _ in range(ways)),
        UnitPart("other", bytes=passes * tokens * inner * HALF, kernels=1 if compiled else ways),
        _product(tokens, inner, width),
    )


def _norms(count: int, tokens: int, width: int, compiled: bool) -> UnitPart:
    """With the residual before each. Fused: read both, write the stream and its norm. Eager: a sum
    of three passes, and a norm that goes to float32 and back in ten."""
    passes = 4 if compiled else 13
    return UnitPart(
        "other",
        bytes=count * passes * tokens * width * HALF,
        kernels=count * (1 if compiled else 7),
    )


def _rotations(tokens: int, width: int, compiled: bool, learned: bool) -> UnitPart:
    """Of queries and keys; nothing where positions are learned, but for splitting them."""
    passes = 2 if compiled or learned else 10
    return UnitPart("other", bytes=passes * tokens * width * HALF, kernels=2 if compiled else 8)


def _head(
    tokens: int, width: int, vocabulary: int, compiled: bool, chunked: bool = False
) -> tuple[UnitPart, ...]:
    """The scores, and a cross-entropy in float32: fused it reads them and writes what backward
    needs; eager a copy in float32, its logarithms and their gradient are passes of their own. In
    chunks the weight is read, and its gradient added to, once for each."""
    size = tokens * vocabulary
    chunks = -(-FLOAT32 * size // CHUNK_BYTES) if chunked else 1
    passes = (HALF + FLOAT32) if compiled else (HALF + 3 * FLOAT32)
    again = (chunks - 1) * 2 * width * vocabulary * HALF
    return (
        UnitPart("matmul", 2 * tokens * width * vocabulary, (tokens * width + size) * HALF, chunks),
        UnitPart("other", bytes=passes * size + again, kernels=chunks * (2 if compiled else 6)),
    )
