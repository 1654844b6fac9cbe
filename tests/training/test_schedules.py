"""The learning rate is a function of the step, with the values that its description promises."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from fsdpkit.config.training import OptimizerSettings, load_settings, problems
from fsdpkit.config.training.optimizer import Schedule
from fsdpkit.config.training.torch_schedules import OURS, TORCHS
from fsdpkit.errors import ConfigError
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.schedules import (
    _torch_schedule,
    learning_rate,
    learning_rate_share,
    warmup_steps,
)

KINDS = ("constant", "linear", "cosine", "inverse-sqrt", "t5")


def shares(schedule: str, steps: int, **settings) -> list[float]:
    chosen = OptimizerSettings(schedule=schedule, **settings)
    return [learning_rate_share(chosen, step, steps) for step in range(steps)]


def test_linear_and_cosine_start_at_the_peak_and_end_at_the_set_share():
    linear = shares("linear", 7, warmup_steps=2, min_lr_ratio=0.2)
    assert linear[2:] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    cosine = shares("cosine", 7, warmup_steps=2, min_lr_ratio=0.0)
    assert cosine[2:] == pytest.approx(
        [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)], abs=1e-12
    )


def test_inverse_sqrt_is_the_root_of_warm_up_over_steps_done():
    rates = shares("inverse-sqrt", 400, warmup_steps=100)
    assert rates[99] == 1.0
    assert rates[399] == pytest.approx(0.5)


def test_t5_s_own_rate_stays_for_k_steps_and_is_the_inverse_root_of_the_step_from_there():
    own = OptimizerSettings(schedule="t5", warmup_steps=100, lr=100**-0.5)
    assert [learning_rate(own, step - 1, 900) for step in (1, 2, 100)] == [0.1, 0.1, 0.1]
    for step in (101, 400, 900):
        assert learning_rate(own, step - 1, 900) == pytest.approx(step**-0.5)


def test_inverse_sqrt_without_warm_up_starts_at_the_peak():
    assert shares("inverse-sqrt", 4, warmup_steps=0) == pytest.approx(
        [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]
    )


@pytest.mark.parametrize(("steps", "expected"), [(5, 0), (100, 10), (50_000, 1000)])
def test_warm_up_is_a_tenth_of_the_run_and_at_most_a_thousand_steps(steps, expected):
    assert warmup_steps(OptimizerSettings(), steps) == expected


@given(
    schedule=st.sampled_from(KINDS),
    steps=st.integers(1, 300),
    warmup=st.none() | st.integers(0, 300),
    low=st.floats(0, 1),
)
def test_the_rate_is_never_negative_nor_above_the_peak_and_falls_after_warm_up(
    schedule, steps, warmup, low
):
    settings = OptimizerSettings(schedule=schedule, warmup_steps=warmup, min_lr_ratio=low)
    rates = [learning_rate_share(settings, step, steps) for step in range(steps)]
    assert all(0 <= rate <= 1 + 1e-12 for rate in rates)
    after = rates[warmup_steps(settings, steps) :]
    assert all(b <= a + 1e-12 for a, b in pairwise(after))


EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3, "gamma": 0.85}),
    ("MultiStepLR", {"milestones": [2, 9], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4, "T_mult": 2}),
    ("CyclicLR", {"base_lr": 1e-4, "max_lr": 1e-2, "step_size_up": 5, "mode": "triangular2"}),
]


def of_torch(name: str, arguments: dict[str, Any], **other: Any) -> OptimizerSettings:
    return OptimizerSettings(schedule=name, schedule_arguments=arguments, lr=3e-3, **other)


@pytest.mark.parametrize(("name", "arguments"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_a_scheduler_of_torch_gives_torchs_own_rates_also_to_who_resumes(name, arguments):
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=3e-3)
    scheduler, rates = getattr(lr_scheduler, name)(optimizer, **arguments), []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 20:
            scheduler.step()
    settings = of_torch(name, arguments)
    assert [learning_rate(settings, step, 20) for step in range(20)] == rates
    for step in (13, 4):  # 13: in a new process; 4: a second run in the same
        if step == 13:
            _torch_schedule.cache_clear()
        assert learning_rate(settings, step, 20) == rates[step]


def test_steps_of_a_scheduler_may_be_epochs():
    settings = of_torch("StepLR", {"step_size": 1, "gamma": 0.5}, schedule_every=4)
    rates = [learning_rate(settings, step, 12) for step in range(12)]
    assert rates == [3e-3] * 4 + [1.5e-3] * 4 + [0.75e-3] * 4


def test_every_scheduler_of_torch_that_is_known_is_one() -> None:
    assert set(TORCHS) <= set(lr_scheduler.__all__)
    assert set(get_args(Schedule)) == {*TORCHS, *OURS}


@pytest.mark.parametrize("sets", [["schedule_arguments={gamma=0.1}"], ["schedule_every=9"]])
def test_what_is_for_torchs_schedulers_is_refused_to_ours(sets):
    found = problems(load_settings({}, [f"optimizer.{item}" for item in sets]), 8, 4)
    assert 'but schedule is "cosine"' in found[0]


@pytest.mark.parametrize(
    "name", ["StepLr", "os.system", "__builtins__", "LRScheduler", "Optimizer"]
)
def test_no_other_name_is_looked_up_in_torch(name):
    with pytest.raises(ConfigError, match=re.escape(f"there is no {name!r}")):
        make_optimizer(torch.nn.Linear(1, 1), OptimizerSettings(schedule=name))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("StepLR", {"step_size": "often"}),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "mode": "square"}),
        ("StepLR", {"gamma": 0.1}),
        ("StepLR", {"stepsize": 3}),
        ("ExponentialLR", {"gamma": math.nan}),
    ],
)
def test_an_argument_that_torch_cannot_use_is_an_error_before_the_first_step(name, arguments):
    with pytest.raises(ConfigError, match=f"schedule_arguments: {name}"):
        make_optimizer(torch.nn.Linear(1, 1), of_torch(name, arguments))
