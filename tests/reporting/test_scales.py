"""Axes with round ticks, and numbers and times as a person says them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fsdpkit.reporting.scales import linear, logarithmic
from fsdpkit.reporting.words import duration, number


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
@example(-1e29, 2e29)
@example(0.0, 1e29)
@example(-1e29, 0.0)
@example(1e-30, 1e-31)
def test_an_axis_shows_all_and_has_few_round_ticks(low: float, wide: float) -> None:
    axis = linear(low, low + wide)
    assert axis.low <= low
    assert axis.high >= low + wide
    assert 1 <= len(axis.ticks) <= 9
    values = [value for value, _ in axis.ticks]
    assert values == sorted(values)
    assert len({label for _, label in axis.ticks}) == len(values), "no label twice"
    assert all(0 <= axis.fraction(value) <= 1 for value in values)


@given(st.floats(), st.floats())
def test_no_number_is_too_large_or_too_small_for_an_axis(one: float, other: float) -> None:
    low, high = sorted((one, other))
    drawn = [linear(low, high), linear(low, high, tight=True)]
    for axis in [*drawn, logarithmic(low, high)] if low > 0 and high == high else drawn:
        assert axis.high > axis.low
        assert all(len(label) <= 18 for _, label in axis.ticks)
        assert all(0 <= axis.fraction(value) <= 1 for value, _ in axis.ticks)
        axis.as_data()
    number(one)
    duration(one)


def test_ticks_are_written_short() -> None:
    assert [label for _, label in linear(0, 2e29).ticks] == ["0", "5e28", "1e29", "1.5e29", "2e29"]
    assert [label for _, label in linear(0, 7).ticks] == ["0", "2", "4", "6"]
    assert [label for _, label in linear(0, 0.003).ticks] == ["0", "0.001", "0.002", "0.003"]
    assert [label for _, label in linear(0, 320_000).ticks] == ["0", "100k", "200k", "300k"]
    assert [label for _, label in linear(1, 100, tight=True).ticks][-1] == "100"
    assert [label for _, label in logarithmic(0.5, 30).ticks] == ["0.5", "1", "2", "5", "10", "20"]


def test_what_never_changes_has_an_axis_too() -> None:
    for value in (0.0, 5.0, -5.0, -1e-308, float("nan"), float("inf")):
        axis = linear(value, value)
        assert axis.high > axis.low
        assert axis.low <= value or not math.isfinite(value)
        assert np.isfinite(axis.fractions(np.array([1.0]))).all()


def test_a_logarithmic_axis_puts_decades_at_equal_distances() -> None:
    places = logarithmic(1, 1000).fractions(np.array([1.0, 10.0, 100.0]))
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (2.34, "2.3 s"), (48, "48 s"), (72, "1 min 12 s"), (3600, "1 h")),
        *((11040, "3 h 4 min"), (190_800, "2 d 5 h")),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((0, "0"), (0.0004, "0.0004"), (1.2345, "1.23"), (41_234, "41,200"), (3.2e6, "3.20 M")),
        *((-12.34, "-12.3"), (float("nan"), "not a number"), (999.6, "1,000")),
        *((float("inf"), "infinite"), (-1e29, "-1e29"), (3e14, "300 T")),
    ],
)
def test_numbers_have_three_digits(value: float, words: str) -> None:
    assert number(value) == words
