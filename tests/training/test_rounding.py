"""bfloat16 weights that lose nothing: rounding by chance, or with what was rounded off kept."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launch import EXAMPLE, findings, run_ranks
from safetensors import safe_open
from torch import Tensor, nn

from fsdpkit.config.training import OptimizerSettings
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.rounding import RoundingAdamW, round_stochastically

BFLOAT16 = 2.0**-8
"""The largest error of rounding to nearest, relative to the number: half a step between two."""
ENGINES = ["full_shard stochastic", "fsdp1 full_shard stochastic"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return findings(4, "rounding.py", tmp_path_factory.mktemp("rounding") / "found.json")


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


def test_the_mean_of_many_draws_is_the_value():
    exact = torch.tensor([1.0 + BFLOAT16 / 5, -3.1415926, 1e-30]).repeat_interleave(40_000)
    rounded = round_stochastically(exact, random()).view(3, -1).double()
    relative = rounded.mean(1) / exact.view(3, -1)[:, 0].double() - 1
    assert relative.abs().max() < BFLOAT16 / 40  # several standard errors


def test_infinity_and_nan_stay_what_they_are():
    rounded = round_stochastically(torch.tensor([torch.inf, -torch.inf, torch.nan]), random())
    assert rounded[:2].tolist() == [torch.inf, -torch.inf]
    assert rounded[2].isnan()


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


def test_weights_of_float32_are_updated_as_torch_does():
    torch.manual_seed(0)
    start = torch.randn(5, 3)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    arguments = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}
    optimizers = [
        RoundingAdamW([ours], **arguments, rounding="compensated"),
        torch.optim.AdamW([theirs], **arguments),
    ]
    for step in range(6):
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = torch.randn(5, 3, generator=random(step))
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rounding", ["stochastic", "compensated"])
def test_a_mean_of_squares_that_decays_slowly_falls(rounding):
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = RoundingAdamW([weight], lr=1e-3, betas=(0.9, 0.999), rounding=rounding)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    weight.grad = torch.zeros_like(weight)
    for _ in range(700):
        optimizer.step()
    square = optimizer.state[weight]["exp_avg_sq"].float().mean()
    assert float(square) == pytest.approx(0.001 * 0.999**700, rel=0.02)


@pytest.mark.torch
def test_shards_are_bfloat16_and_take_half_of_what_float32_takes(found):
    whole = found["float32"]["bytes"]
    for name in ENGINES:
        assert found[name]["types"] == ["bfloat16"]
        assert found[name]["bytes"] == {what: size // 2 for what, size in whole.items()}
    kept = found["full_shard compensated"]["bytes"]["state"]
    assert kept == whole["state"] // 2 + whole["weights"] // 2


@pytest.mark.torch
@pytest.mark.parametrize(
    "case",
    ["full_shard", "fsdp1 full_shard", "hybrid_shard", "no_shard", "some ignored",
     "fsdp1 hybrid_shard", "fsdp1 no_shard"],
)  # fmt: skip
def test_losses_are_those_of_float32_weights_to_rounding(found, case):
    result = found[f"{case} stochastic"]
    assert result["losses"] == pytest.approx(found["float32"]["losses"], rel=0.03)
    assert result["losses"][-1] < result["losses"][0] / 2
    assert result["norm"] == "float32"
    assert result["alike"] is not None, "replicas drew other numbers"


@pytest.mark.torch
def test_compensated_losses_are_those_of_float32_weights_to_rounding(found):
    result = found["full_shard compensated"]
    assert result["losses"] == pytest.approx(found["float32"]["losses"], rel=0.03)


@pytest.mark.torch
def test_first_weights_are_those_of_float32_rounded_on_both_engines(found):
    first = {found[f"{case} stochastic"]["first"] for case in ("full_shard", "fsdp1 full_shard")}
    assert len(first) == 1
    assert None not in first
    assert found["full_shard stochastic"]["losses"][0] == pytest.approx(
        found["float32"]["losses"][0], rel=BFLOAT16
    )


@pytest.mark.torch
def test_a_run_draws_the_same_numbers_again(found):
    assert found["again"] == found["full_shard stochastic"]


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["", "fsdp1 "])
def test_modules_kept_in_float32_keep_float32_weights(found, engine):
    result = found[f"{engine}half"]
    assert result["types"] == ["bfloat16", "float32"]
    assert result["losses"] == pytest.approx(found["half float32"]["losses"], rel=0.03)


def test_each_remedy_is_an_optimizer_of_its_own_to_who_resumes():
    kinds = {
        type(make_optimizer(nn.Linear(2, 2), OptimizerSettings(rounding=rounding))).__name__
        for rounding in ("stochastic", "compensated", None)
    }
    assert len(kinds) == 3


@pytest.mark.torch
def test_an_export_says_that_its_weights_are_bfloat16(tmp_path):
    words = ["steps=2", "evaluation.batches=0", "checkpoint.export=true"]
    words += ["precision.master=bfloat16", "optimizer.rounding=compensated"]
    sets = [word for each in words for word in ("--set", each)]
    done = run_ranks(1, EXAMPLE / "fsdp_t5.py", *sets, FSDPKIT_TASK_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout[-4000:]
    with safe_open(tmp_path / "export" / "model.safetensors", "pt") as weights:
        types = {weights.get_tensor(name).dtype for name in weights.keys()}  # noqa: SIM118
    assert types == {torch.bfloat16}
    said = json.loads((tmp_path / "export" / "config.json").read_text())
    assert said["torch_dtype"] == "bfloat16"
