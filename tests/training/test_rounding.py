"""bfloat16 weights that lose nothing: rounding by chance, or with what was rounded off kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launch import ranks_found
from torch import Tensor, nn

from fsdpkit.training.rounding import RoundingAdamW, round_stochastically

BFLOAT16 = 2.0**-8
"""The largest error of rounding to nearest, relative to the number: half a step between two."""
ENGINES = ["full_shard stochastic", "fsdp1 full_shard stochastic"]

found = ranks_found(4, "rounding")


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 99))
def test_a_value_becomes_one_of_the_two_around_it(value, seed):
    exact = torch.tensor([value])
    rounded = round_stochastically(exact, random(seed))
    assert torch.equal(rounded, rounded.bfloat16().float())
    toward_zero = (exact.view(torch.int32) & -(1 << 16)).view(torch.float32)
    away = (toward_zero.view(torch.int32) + (1 << 16)).view(torch.float32)
    assert rounded in (toward_zero, away)
    if torch.equal(exact, toward_zero):
        assert torch.equal(rounded, exact)


def after_small_updates(rounding: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Weights of about one after 400 updates of 1e-4, each an eightieth of the step between two."""
    weight = nn.Parameter(torch.linspace(1.0, 1.9, 512).to(dtype))
    start = weight.detach().float().clone()
    optimizer = RoundingAdamW([weight], lr=1e-4, rounding=rounding)
    for _ in range(400):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
    return start - weight.detach().float()


def test_rounding_to_nearest_loses_small_updates_and_the_two_remedies_do_not():
    assert after_small_updates("nearest").abs().max() == 0
    exact = after_small_updates("nearest", torch.float32).mean()
    assert exact == pytest.approx(0.04, rel=1e-3)
    assert after_small_updates("stochastic").mean() == pytest.approx(exact, rel=0.02)
    # Each weight by itself, to half a step.
    assert (after_small_updates("compensated") - exact).abs().max() <= BFLOAT16 * 1.01


def test_shards_are_bfloat16_and_take_half_of_what_float32_takes(found):
    whole = found["float32"]["bytes"]
    for name in ENGINES:
        assert found[name]["types"] == ["bfloat16"]
        assert found[name]["bytes"] == {what: size // 2 for what, size in whole.items()}
    kept = found["full_shard compensated"]["bytes"]["state"]
    assert kept == whole["state"] // 2 + whole["weights"] // 2


@pytest.mark.parametrize(
    "case", ["full_shard", "fsdp1 full_shard", "hybrid_shard", "some ignored", "fsdp1 no_shard"]
)
def test_losses_are_those_of_float32_weights_to_rounding(found, case):
    result = found[f"{case} stochastic"]
    assert result["losses"] == pytest.approx(found["float32"]["losses"], rel=0.03)
    assert result["losses"][-1] < result["losses"][0] / 2
    assert result["norm"] == "float32"
    assert result["alike"] is not None, "replicas drew other numbers"


def test_modules_kept_in_float32_keep_float32_weights(found):
    result = found["half"]
    assert result["types"] == ["bfloat16", "float32"]
    assert result["losses"] == pytest.approx(found["half float32"]["losses"], rel=0.03)
