"""How many steps a run has to do, by what it was submitted with."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpkit.reporting.status.progress import steps_to_do


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ({"steps": 20}, 20),
        ({"steps": 20, "epochs": 3}, 20),
        ({"steps": 0, "epochs": 0}, 100),
        ({"steps": 0, "epochs": 3}, None),  # as many as three epochs have
        ({"steps": "many"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_steps_to_do_are_those_given_or_the_default_or_not_known(
    training: Any, steps: int | None
) -> None:
    assert steps_to_do({"training": training}) == steps


def test_a_job_without_settings_has_none() -> None:
    assert steps_to_do({}) is None
