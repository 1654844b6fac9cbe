"""A report that a login node sends is written under a name of the laptop's own."""

from __future__ import annotations

import pytest

from fsdpkit.remote.commands import report_name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "fsdpkit-report.html"),
        ({"run": None, "task": 3}, "fsdpkit-report-task-3.html"),
        ({"run": "t5-20261121-101500-3f2a"}, "t5-20261121-101500-3f2a.html"),
        ({"run": "/scratch/runs/t5-3f2a/"}, "t5-3f2a.html"),
        ({"run": ".."}, "fsdpkit-report.html"),
        ({"run": "a b;c"}, "a-b-c.html"),
    ],
)
def test_it_comes_from_what_was_typed(options: dict[str, object], name: str) -> None:
    assert report_name(options) == name
