"""What forked ranks find of PYTHONPATH, which the agent itself does without."""

from __future__ import annotations

import os

from fsdpkit.launching.python_path import KEPT, entries, restore, search_path


def test_each_directory_counts_once_and_an_empty_one_is_where_one_stands() -> None:
    assert entries({"PYTHONPATH": "/a::/b:/a/../a"}) == ["/a", os.getcwd(), "/b"]
    assert entries({"PYTHONPATH": ""}) == entries({}) == []


def test_what_is_missing_comes_first_and_what_is_there_stays_in_its_place() -> None:
    assert search_path(["/x", "/a"], {"PYTHONPATH": "/a"}) == ["/x", "/a"]
    assert search_path(["/x", "/a"], {"PYTHONPATH": "/b:/a"}) == ["/b", "/a", "/x"]


def test_programs_started_from_here_get_the_variable_back() -> None:
    kept = {KEPT: "/a", "B": "c"}
    restore(kept)
    assert kept == {"PYTHONPATH": "/a", "B": "c"}
    restore(kept)
    assert kept == {"PYTHONPATH": "/a", "B": "c"}
