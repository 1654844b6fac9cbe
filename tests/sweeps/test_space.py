"""What a sweep's file may say of a parameter, and what is drawn from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.errors import ConfigError
from fsdpkit.sweeps.space import SweptParameter, at_random, grid, parameters, words

LR = {"log_uniform": [1e-5, 1e-2]}


def one(value: Any, key: str = "lr") -> SweptParameter:
    (found,) = parameters({"training": {"optimizer": {key: value}}})
    return found


def test_a_key_may_be_written_as_tables_or_with_dots_and_a_list_is_a_choice() -> None:
    nested = parameters({"training": {"optimizer": {"lr": LR, "name": ["adamw", "sgd"]}}})
    dotted = parameters(
        {"training.optimizer.lr": LR, "training.optimizer.name": {"choice": ["adamw", "sgd"]}}
    )
    assert nested == dotted
    assert [p.kind for p in nested] == ["log_uniform", "choice"]


def test_an_option_of_a_script_may_be_called_like_a_kind() -> None:
    assert parameters({"args": {"int": [1, 2], "choice": {"uniform": [0, 1]}}}) == (
        SweptParameter("args.int", "choice", (1, 2)),
        SweptParameter("args.choice", "uniform", (), 0.0, 1.0),
    )


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({}, "there is none"),
        ({"training": {"seed": 3}}, "3 is a single value"),
        ({"training": {"seed": {}}}, "write a list of values"),
        ({"training": {"lr": {"loguniform": [1, 2]}}}, "Did you mean 'log_uniform'?"),
        ({"training": {"lr": {"uniform": [1, 2], "int": [1, 2]}}}, "write a list of values"),
        ({"training": {"lr": {"uniform": [2, 1]}}}, "the first must be below the second"),
        ({"training": {"lr": {"uniform": [1, 1]}}}, "the first must be below the second"),
        ({"training": {"lr": {"uniform": [0, float("inf")]}}}, "below the second"),
        ({"training": {"lr": {"uniform": [0, float("nan")]}}}, "below the second"),
        ({"training": {"lr": {"uniform": [True, 2]}}}, "a list of two numbers"),
        ({"training": {"lr": {"uniform": 3}}}, "a list of two numbers"),
        ({"training": {"lr": {"log_uniform": [0, 1]}}}, "a logarithm needs numbers above 0"),
        ({"training": {"lr": {"int": [0, 1.5]}}}, "a whole number to a whole number"),
        ({"training": {"lr": []}}, "at least one value"),
        ({"training": {"lr": [1, 1]}}, "1 is listed twice"),
        ({"training": {"lr": [[1], [2]]}}, "neither a number, a truth value nor text"),
        ({"training": {"lr": [*range(1001)]}}, "at most 1000"),
        ({"resources": {"nodes": [1, 2]}}, "fsdpkit scale tries numbers of nodes"),
        ({"environment": {"conda": ["a"]}}, "tasks of one array, cannot differ"),
        ({"environment": {"variables": ["a"]}}, "a table has no value of its own"),
        ({"resorces": {"time": ["1", "2"]}}, "Did you mean 'resources'?"),
        ({"args": [1, 2]}, "write args.NAME"),
        ({"args": {"a=b": [1, 2]}}, "write args.NAME"),
        ({"args": {"-x": [1, 2]}}, "write args.NAME"),
        ({"training.seed": [1], "training": {"seed": [2]}}, "sets it as well"),
        ({"training.optimizer": [1]}, "name one of its keys"),
    ],
)
def test_what_is_no_parameter_is_refused_by_its_key(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^parameters") as refused:
        parameters(table)
    assert reason in str(refused.value)


def test_1_and_true_are_two_values() -> None:
    assert one([1, True], "x").values == (1, True)


def test_a_grid_has_every_combination_and_the_last_key_changes_fastest() -> None:
    space = parameters({"args": {"a": [1, 2], "b": ["x", "y"]}})
    assert [tuple(point.values()) for point in grid(space)] == [
        (1, "x"),
        (1, "y"),
        (2, "x"),
        (2, "y"),
    ]


RANGES = st.sampled_from(["uniform", "log_uniform", "int", "log_int"]).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(
            st.integers(1, 10**6) if "int" in kind else st.floats(1e-8, 1e8),
            min_size=2,
            max_size=2,
            unique=True,
        ).map(sorted),
    )
)


@settings(max_examples=200)
@given(RANGES, st.floats(0, 1, exclude_max=True))
def test_what_is_drawn_lies_within_the_range(told: tuple[str, list[Any]], at: float) -> None:
    kind, (low, high) = told
    value = one({kind: [low, high]}).at(at)
    assert low <= value <= high
    assert isinstance(value, int) == ("int" in kind)


def test_every_whole_number_is_drawn_as_often_as_the_others_the_ends_too() -> None:
    whole = one({"int": [1, 4]})
    drawn = [whole.at(k / 4000) for k in range(4000)]
    assert {n: drawn.count(n) for n in (1, 2, 3, 4)} == dict.fromkeys((1, 2, 3, 4), 1000)


def test_half_of_a_logarithmic_range_lies_below_its_geometric_mean() -> None:
    rate = one(LR)
    drawn = [float(rate.at(k / 1000)) for k in range(1000)]
    assert sum(value < 10**-3.5 for value in drawn) == 500


def test_a_sweep_that_is_extended_is_the_one_that_had_as_many_from_the_start() -> None:
    space = parameters({"training": {"optimizer": {"lr": LR}, "seed": {"int": [1, 9]}}})
    whole = at_random(space, range(20), seed=7)
    assert at_random(space, range(12), 7) + at_random(space, range(12, 20), 7) == whole
    assert at_random(space, range(20), seed=8) != whole
    # One parameter more changes nothing of the others.
    more = parameters({"training": {"optimizer": {"lr": LR}, "seed": {"int": [1, 9]}, "x": [1, 2]}})
    drawn = at_random(more, range(20), 7)
    assert [{k: v for k, v in t.items() if k != "training.x"} for t in drawn] == whole


def test_the_trainer_is_told_by_set_and_another_script_by_its_own_options() -> None:
    told = {"training.optimizer.lr": 1e-05, "args.fast": True, "args.note": "it's; x"}
    assert words(told) == ["--set", "training.optimizer.lr=1e-05", "--fast=true", "--note=it's; x"]
