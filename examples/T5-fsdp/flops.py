"""The arithmetic cost of one sequence, from which TFLOP/s and MFU are computed.

Matrix products only, two operations per multiply-add, backward counted as twice the forward pass.
Recomputation by activation checkpointing is not counted, and nothing is deducted for causal masks
or padding: only the shape of the batch matters. 6·N·tokens, the usual rule, is wrong for an
encoder-decoder, where a token passes through half of the weights.
"""

from __future__ import annotations

from model import T5Config

FORMULA = """\
FLOPs per sequence = 3·(encoder + decoder + head), backward = 2 × forward, matrix products only
  encoder = Le·(2·S·(attn + ff) + 4·S²·H·K)
  decoder = Ld·(2·T·(attn + ff) + 4·T²·H·K + 4·(T + S)·D·H·K + 4·T·S·H·K)
  head    = 2·T·D·V
  attn = 4·D·H·K, ff = 3·D·F if gated else 2·D·F
  S source, T target tokens (padding too), D d_model, F d_ff, H heads, K d_kv, V vocabulary,
  Le, Ld layers of encoder and decoder"""


def flops_per_sequence(config: T5Config, source_length: int, target_length: int) -> int:
    """Forward and backward of one sequence, padded to the given lengths in tokens; see FORMULA."""
    return 3 * sum(forward_flops(config, source_length, target_length).values())


def forward_flops(config: T5Config, source_length: int, target_length: int) -> dict[str, int]:
    """Forward of one sequence by part: linear maps of each stack, its attention's two products
    (the decoder's with those across), and the head."""
    s, t, d = source_length, target_length, config.d_model
    inner = config.num_heads * config.d_kv
    attention = 4 * d * inner  # multiply-adds of q, k, v and o for a token
    feed_forward = (3 if config.feed_forward_proj == "gated-gelu" else 2) * d * config.d_ff
    layer = 2 * (attention + feed_forward)
    across = 4 * (t + s) * d * inner  # q and o of targets, k and v of sources
    return {
        "encoder": config.num_layers * s * layer,
        "encoder attention": config.num_layers * 4 * s * s * inner,
        "decoder": config.num_decoder_layers * (t * layer + across),
        "decoder attention": config.num_decoder_layers * 4 * t * (t + s) * inner,
        "head": 2 * t * d * config.vocab_size,
    }
