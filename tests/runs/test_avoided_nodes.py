"""Nodes that failed are left out for a while, and nothing in that directory can do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.errors import UsageError
from fsdpkit.runs.avoided_nodes import avoid, avoided, forgive


def test_a_node_is_avoided_until_its_time_is_over(tmp_path: Path) -> None:
    avoid(tmp_path, "node2", why="it hung", run_id="t5-1", until_s=2000.0)
    avoid(tmp_path, "node1", why="it was lost", run_id="t5-2", until_s=1000.0)
    assert [one.node for one in avoided(tmp_path, 999.0)] == ["node1", "node2"]
    (left,) = avoided(tmp_path, 1000.0)
    assert (left.node, left.why, left.run_id, left.until_s) == ("node2", "it hung", "t5-1", 2000.0)
    assert avoided(tmp_path, 2000.0) == []


def test_the_newest_note_of_a_node_counts(tmp_path: Path) -> None:
    avoid(tmp_path, "node1", why="once", run_id="a", until_s=1000.0)
    avoid(tmp_path, "node1", why="again", run_id="b", until_s=3000.0)
    assert [(one.why, one.until_s) for one in avoided(tmp_path, 0.0)] == [("again", 3000.0)]


def test_a_forgiven_node_is_used_again(tmp_path: Path) -> None:
    avoid(tmp_path, "node1", why="it hung", run_id="a", until_s=1000.0)
    assert forgive(tmp_path, "node1")
    assert not forgive(tmp_path, "node1")
    assert avoided(tmp_path, 0.0) == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a,b", "a b", "a\nb", "-a", ".a", "a" * 300])
def test_what_is_no_node_s_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a node name"):
        avoid(tmp_path, name, why="", run_id="a", until_s=1.0)
    with pytest.raises(UsageError, match="not a node name"):
        forgive(tmp_path, name)
