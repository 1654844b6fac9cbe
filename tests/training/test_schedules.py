"""The learning rate is a function of the step, with the values that its description promises."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.training import OptimizerSettings
from fsdpkit.training.schedules import learning_rate_share, warmup_steps

KINDS = ("constant", "linear", "cosine", "inverse-sqrt")


def shares(schedule: str, steps: int, **settings) -> list[float]:
    chosen = OptimizerSettings(schedule=schedule, **settings)
    return [learning_rate_share(chosen, step, steps) for step in range(steps)]


@pytest.mark.parametrize("schedule", KINDS)
def test_warm_up_rises_linearly_to_the_peak(schedule):
    assert shares(schedule, 10, warmup_steps=4)[:4] == [0.25, 0.5, 0.75, 1.0]


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


def test_inverse_sqrt_without_warm_up_starts_at_the_peak():
    assert shares("inverse-sqrt", 4, warmup_steps=0) == pytest.approx(
        [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]
    )


def test_constant_stays():
    assert set(shares("constant", 9, warmup_steps=0)) == {1.0}


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
