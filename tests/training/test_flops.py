"""FLOPs of a sequence: against published totals, and against what PyTorch counts."""

from __future__ import annotations

import pytest
from flops import FORMULA, flops_per_sequence
from model import T5Config
from small_t5 import DIMENSIONS, V1_0, V1_1, batch_of, build
from torch.utils.flop_counter import FlopCounterMode

from fsdpkit.config.training.presets import PRESETS


@pytest.mark.parametrize(
    ("size", "gflop"),
    [("small", 110), ("base", 438), ("large", 1504), ("xl", 5472), ("xxl", 21380)],
)
def test_published_sizes_at_512_source_and_128_target_tokens(size, gflop):
    config = T5Config(**PRESETS[f"t5-v1.1-{size}"])
    assert flops_per_sequence(config, 512, 128) / 1e9 == pytest.approx(gflop, rel=0.005)


@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_the_formula_is_what_pytorch_counts_in_forward_and_backward(family):
    model = build("math", **family)
    batch = batch_of(([5] * 9, [7] * 6), ([5], [7]))
    with FlopCounterMode(display=False) as counted:
        model(*batch).sum().backward()
    assert counted.get_total_flops() == 2 * flops_per_sequence(model.config, 9, 6)


def test_the_printed_formula_gives_the_number_computed():
    config = T5Config(**DIMENSIONS, **V1_1)
    symbols = {
        "D": config.d_model, "F": config.d_ff, "H": config.num_heads, "K": config.d_kv,
        "V": config.vocab_size, "Le": config.num_layers, "Ld": config.num_decoder_layers,
        "S": 11, "T": 7,
    }  # fmt: skip
    lines = dict(line.split(" = ", 1) for line in FORMULA.splitlines() if " = " in line)
    terms = {name.strip(): text for name, text in lines.items()}
    terms["attn"], terms["ff"] = "4·D·H·K", "3·D·F"
    assert "attn = 4·D·H·K, ff = 3·D·F if gated else 2·D·F" in FORMULA
    for name in ("attn", "ff", "encoder", "decoder", "head"):
        symbols[name] = eval(terms[name].replace("·", "*").replace("²", "**2"), {}, symbols)
    total = 3 * (symbols["encoder"] + symbols["decoder"] + symbols["head"])
    assert total == flops_per_sequence(config, 11, 7)
