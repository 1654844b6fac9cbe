"""In a list, runs of one name are told apart by their arguments and settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.reporting.status.apart import set_apart

JOB: dict[str, Any] = {
    "name": "t5",
    "description": "words",
    "args": ["--lr", "1e-4", "--tag", "a", "b"],
    "resources": {"nodes": 2, "account": None},
    "training": {"steps": 100},
}


def job(**changed: Any) -> dict[str, Any]:
    return {**JOB, **changed}


@pytest.mark.parametrize(
    ("other", "said", "said_of_other"),
    [
        ({"args": ["--lr", "3e-4", "--tag", "a", "b"]}, "--lr 1e-4", "--lr 3e-4"),
        ({"args": ["--lr", "1e-4"]}, "--tag a b", None),
        ({"resources": {"nodes": 4, "account": "x"}}, "nodes=2", "nodes=4, account=x"),
        ({"training": {**JOB["training"], "steps": 9}}, "steps=100", "steps=9"),
        ({"description": "others"}, None, None),
        ({"name": "other", "args": []}, None, None),
    ],
)
def test_what_differs_among_runs_of_a_name(
    other: Any, said: str | None, said_of_other: str | None
) -> None:
    found = set_apart({"a": JOB, "b": job(**other)})
    assert (found.get("a"), found.get("b")) == (said, said_of_other)


WORD = st.none() | st.booleans() | st.integers() | st.text()
VALUE = st.recursive(WORD, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=9)


@given(st.dictionaries(st.text(), st.dictionaries(st.sampled_from([*JOB, "x"]), VALUE)))
def test_whatever_is_in_a_job_file_is_no_error(jobs: dict[str, dict[str, Any]]) -> None:
    assert set_apart(jobs).keys() <= jobs.keys()
