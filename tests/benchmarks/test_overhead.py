"""What the overhead benchmark says of its samples, with known answers."""

from __future__ import annotations

import math

import pytest

from benchmarks.overhead import (
    Again,
    first_step_again,
    interval,
    seconds_a_step,
)


def logged(*steps: tuple[int, float]) -> list[dict]:
    return [{"step": step, "time_s": time_s, "step_time_s": 1.0} for step, time_s in steps]


def test_a_step_takes_the_wall_time_between_the_first_and_the_last_logged_one() -> None:
    assert seconds_a_step(logged((5, 100.0), (10, 103.0), (65, 130.0))) == 0.5


def test_the_interval_is_students_over_the_logarithms_of_pairs() -> None:
    found = interval([1.02, 1.00, 1.01])
    logs = [math.log(x) for x in (1.02, 1.00, 1.01)]
    middle = sum(logs) / 3
    half = 4.30 * math.sqrt(sum((x - middle) ** 2 for x in logs) / 2 / 3)
    assert math.log(found.middle) == pytest.approx(middle)
    assert math.log(found.high / found.middle) == pytest.approx(half)
    assert math.log(found.middle / found.low) == pytest.approx(half)


def test_training_goes_on_where_the_count_of_steps_falls_back() -> None:
    lines = logged((10, 1.0), (11, 2.0), (12, 3.0), (11, 9.0), (12, 10.0))
    assert first_step_again(lines, killed_s=3.5) == Again(9.0, repeated=2)
