"""Who goes on, how many, and how far: arithmetic that does not depend on who computes it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.loading import overrides
from fsdpkit.config.trainers import job_type
from fsdpkit.scheduling.states import JobState
from fsdpkit.sweeps.file import Halving
from fsdpkit.sweeps.halving import (
    JudgedTrial,
    amount,
    changes,
    ranked,
    survivors,
    survivors_of,
)
from fsdpkit.sweeps.results import Logged, best, judged, read_last, result_of
from tests.sweeps.made_up import made_up_results, made_up_sweep

VALUES = st.none() | st.floats(-1e6, 1e6) | st.integers(-2, 2).map(float)


@given(st.lists(VALUES, max_size=40), st.integers(1, 9), st.booleans(), st.randoms())
def test_the_order_in_which_trials_are_read_changes_nothing(
    values: list[float | None], places: int, highest: bool, order: random.Random
) -> None:
    trials = [JudgedTrial(trial=k, value=value) for k, value in enumerate(values)]
    chosen = survivors(trials, places, highest=highest)
    shuffled = order.sample(trials, len(trials))
    assert survivors(shuffled, places, highest=highest) == chosen
    assert ranked(shuffled, highest=highest) == ranked(trials, highest=highest)
    # No trial that lost has a better value than one that goes on, and none goes on without one.
    known = {k: value for k, value in enumerate(values) if value is not None}
    assert len(chosen) == min(places, len(known))
    sign = -1 if highest else 1
    left = [sign * value for k, value in known.items() if k not in chosen]
    assert all(sign * known[k] <= min(left, default=known[k] * sign) for k in chosen)


def test_of_equal_trials_the_lower_number_goes_on() -> None:
    trials = [JudgedTrial(trial=k, value=1.0) for k in (5, 3, 4)]
    assert survivors(trials, 2, highest=True) == [3, 4]


@pytest.mark.parametrize(
    ("trials", "factor", "numbers"),
    [(32, 3, [32, 10, 3]), (9, 3, [9, 3, 1]), (27, 3, [27, 9, 3, 1]), (5, 4, [5, 1, 1])],
)
def test_one_of_so_many_goes_on_and_never_none(
    trials: int, factor: int, numbers: list[int]
) -> None:
    assert [survivors_of(trials, factor, rung) for rung in range(len(numbers))] == numbers


def test_the_last_rung_gets_all_and_each_before_it_a_part() -> None:
    halving = Halving(rungs=3, factor=3)
    assert [amount(halving, 900, rung) for rung in range(3)] == [100, 300, 900]
    assert [amount(halving, 10, rung) for rung in range(3)] == [2, 4, 10]


def test_words_of_trials_reach_the_next_job_as_they_were() -> None:
    halving = Halving(rungs=2, factor=3, resource="args.steps", most=9)
    own = {7: ['--note=it\'s; "x" \\ é', "--x=1"]}
    told = overrides(job_type(), changes(halving, 9, 1, own))
    assert told == {"array_args": {"7": [*own[7], "--steps=9"]}}


def test_the_last_value_counts_and_one_that_is_not_finite_is_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_last(path, "loss") == Logged()
    path.write_text(
        '{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 2, "eval_loss": 5}\n{"step"'
    )
    assert read_last(path, "loss") == Logged(2, 2.0)
    assert read_last(path, "eval_loss") == Logged(2, 5.0)
    for word in ("null", "NaN", "1e999"):
        path.write_text(f'{{"step": 1, "loss": 3.0}}\n{{"step": 2, "loss": {word}}}\n')
        assert read_last(path, "loss") == Logged(2, None, finite=False), word
    path.write_text('{"step": 2, "loss": true}\n{"step": 3, "loss": "4"}\n')
    assert read_last(path, "loss") == Logged(3)


def test_who_failed_or_has_no_number_loses_and_is_named(tmp_path: Path) -> None:
    _, record = made_up_sweep(tmp_path, 6)
    found = made_up_results(record)
    assert [(one.trial, one.lost) for one in judged(found) if one.value is None] == [
        (3, "FAILED, exit status 1")
    ]
    top = best(found, highest=False)
    assert top is not None
    assert top.value == min(one.value for one in found if one.value is not None)
    assert best([one for one in found if one.trial == 3], highest=False) is None


def test_a_trial_that_was_left_behind_is_not_called_the_best_while_better_ones_go_on(
    tmp_path: Path,
) -> None:
    _, record = made_up_sweep(tmp_path, 6)
    (one, *_) = made_up_results(record)
    left = replace(one, trial=0, rung=0, value=5.0, state="DROPPED")
    on = replace(one, trial=1, rung=1, value=4.0, state="RUNNING", over=False, succeeded=False)
    assert best([left, on], highest=False) == on
    assert best([left, replace(on, value=6.0)], highest=False) != left  # it is worse by now
    failed = replace(on, state="FAILED", over=True)
    assert best([left, failed], highest=False) == left
    first = replace(on, rung=0)
    assert best([first], highest=False) is None  # nobody has judged it yet


def test_a_state_that_nobody_knows_is_no_success(tmp_path: Path) -> None:
    _, record = made_up_sweep(tmp_path, 6)
    unvouched = JobState("COMPLETED", "sacct", exit_code=0, outcome="unknown")
    for state in (None, unvouched, JobState("RUNNING", "squeue")):
        one = result_of(record, None, {0: ("1_0", state)}, [], 0, "r")
        assert not replace(one, value=1.0).counts
