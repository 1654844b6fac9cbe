"""FLOPs of a sequence: against published totals, and against what PyTorch counts."""

from __future__ import annotations

import pytest
from flops import flops_per_sequence
from model import T5Config
from small_t5 import V1_0, V1_1, batch_of, build
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
