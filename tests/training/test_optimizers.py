"""The update rules on shards are those on whole matrices; groups do what the settings say."""

from __future__ import annotations

import pytest
import torch
from launch import ranks_found
from torch import nn

from fsdpkit.config.training import OptimizerSettings
from fsdpkit.config.training.optimizer import ParameterGroup
from fsdpkit.errors import ConfigError
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.schedules import set_learning_rate
from fsdpkit.training.update_rules import Adafactor, ScaledAdamW

ROUNDING = 2e-6
"""Four float32 steps whose norms were summed in another order, relative to the matrix's norm."""

found = ranks_found(4, "optimizers")


@pytest.mark.parametrize("rule", ["adamw", "adam", "sgd", "adafactor", "adamw-scaled"])
def test_every_rule_on_four_uneven_shards_equals_the_rule_on_whole_matrices(found, rule):
    cases = {key: d for key, d in found["difference"].items() if key.split()[0] == rule}
    assert cases
    assert max(cases.values()) < ROUNDING, cases


def test_adafactor_takes_the_rate_that_the_schedule_sets():
    weights = nn.Parameter(torch.ones(2, 3))
    adafactor = Adafactor([weights], lr=0.8)
    for left in (0.2, 0.04):  # torch's own would take 1/√2 of it in the second step
        weights.grad = torch.ones(2, 3)
        adafactor.step()
        torch.testing.assert_close(weights.detach(), torch.full((2, 3), left))


def test_state_goes_through_a_checkpoint_and_the_next_step_is_the_same(found):
    assert max(found["restored"].values()) < 1e-7, found["restored"]


def test_a_frozen_layer_does_not_move_under_fsdp2_and_keeps_no_state(found):
    moved = found["moved"]
    assert moved["first.weight"] == moved["first.bias"] == 0
    assert moved["last.bias"] > 0
    assert moved["second.weight"] > 0
    assert not found["frozen_have_state"]


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_matrices_are_decayed_and_nothing_else_whatever_classes_are_called(found, engine):
    assert found["decayed"][engine] == [
        "block.attention.in_proj_weight",
        "block.attention.out_proj.weight",
        "block.mix",
        "gru.weight_hh_l0",
        "gru.weight_ih_l0",
    ]


def test_a_model_that_is_not_sharded_yet_is_refused_among_ranks(found):
    assert "shard()" in found["not_sharded"]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm, self.head = nn.Linear(3, 3), nn.RMSNorm(3), nn.Linear(3, 2)


def rates_and_decays(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    names = {p: n for n, p in model.named_parameters()}
    return {
        names[p]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }


def test_norms_and_biases_are_not_decayed_unless_a_group_says_so():
    model = Small()
    settings = OptimizerSettings(
        lr=1.0,
        weight_decay=0.1,
        warmup_steps=0,
        groups=(ParameterGroup(match="norm.*", weight_decay=0.05),),
    )
    decays = rates_and_decays(model, make_optimizer(model, settings))
    assert {n: d for n, (_, d) in decays.items()} == {
        "encoder.weight": 0.1,
        "encoder.bias": 0.0,
        "norm.weight": 0.05,
        "head.weight": 0.1,
        "head.bias": 0.0,
    }


def test_the_first_group_that_fits_counts_and_scales_the_scheduled_rate():
    model = Small()
    settings = OptimizerSettings(
        lr=2.0,
        warmup_steps=4,
        groups=(
            ParameterGroup(match="head.*", lr_scale=0.5),
            ParameterGroup(match="*.weight", lr_scale=3.0),
        ),
    )
    optimizer = make_optimizer(model, settings)
    assert set_learning_rate(optimizer, settings, step=1, steps=8) == 1.0  # half way up
    rates = rates_and_decays(model, optimizer)
    assert rates["head.weight"][0] == 0.5
    assert rates["encoder.weight"][0] == rates["norm.weight"][0] == 3.0
    assert rates["encoder.bias"][0] == 1.0


@pytest.mark.parametrize(
    "groups",
    [
        (ParameterGroup(match="decoder.*"),),
        (ParameterGroup(match="*"), ParameterGroup(match="head.*")),  # nothing left for the second
    ],
)
def test_a_pattern_that_no_parameter_is_left_for_is_an_error_naming_it(groups):
    with pytest.raises(ConfigError, match=groups[-1].match.replace("*", r"\*")):
        make_optimizer(Small(), OptimizerSettings(groups=groups))


def test_scaled_adamws_first_step_is_the_rate_times_the_weights_root_mean_square():
    weight = nn.Parameter(torch.tensor([3.0, -4.0]))  # root mean square √12.5
    small = nn.Parameter(torch.tensor([1e-9]))  # below the floor of 1e-3
    optimizer = ScaledAdamW([weight, small], lr=0.1, eps=1e-30)
    weight.grad, small.grad = torch.tensor([0.5, -7.0]), torch.tensor([2.0])
    optimizer.step()
    move = 0.1 * 12.5**0.5
    assert torch.allclose(weight, torch.tensor([3.0 - move, -4.0 + move]))
    assert torch.allclose(small, torch.tensor([1e-9 - 0.1 * 1e-3]))
