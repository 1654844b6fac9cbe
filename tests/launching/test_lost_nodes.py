"""Of a head node and those that it no longer hears, who is to be left out next time."""

from __future__ import annotations

import pytest

from fsdpkit.launching.policy import Losses

ALL = tuple(f"node{n}" for n in range(2, 31))


@pytest.mark.parametrize(
    ("losses", "nodes", "facts", "blamed"),
    [
        ([("node2",)], 4, {}, ("node2",)),
        ([("node2",)], 2, {}, ("node2",)),
        # The head cannot know whether it was cut off, or all others were.
        ([("node2", "node3", "node4")], 4, {}, ()),
        ([ALL], 30, {}, ()),
        # Those that say so are not gone, and one fault explains what they all see.
        ([("node2", "node3", "node4")], 4, {"accusers": ["node3", "node4"]}, ("node1",)),
        ([ALL], 30, {"accusers": ALL[4:]}, ("node1",)),
        ([("node2", "node3", "node4")], 4, {"accusers": ["node3"]}, ()),
        # The others still hear it: a part of the network failed.
        ([("node3", "node4")], 4, {"accusers": ["node3", "node4"]}, ()),
        ([("node2",)], 4, {"accusers": ["node2"]}, ("node2",)),
        # A cable that is out says all.
        ([("node2",)], 2, {"cut_off": True}, ("node1",)),
        ([("node2", "node3")], 3, {"cut_off": True}, ("node1",)),
        ([("node2",)], 3, {"cut_off": True}, ("node2",)),
        # Of many, several may break together, as those on one power supply.
        ([("node2", "node3", "node4")], 30, {}, ("node2", "node3", "node4")),
        # One after the other each stands for itself.
        ([("node2",), ("node3",)], 3, {}, ("node2", "node3")),
        ([("node1",)], 2, {}, ("node1",)),
        ([()], 2, {}, ()),
        ([], 1, {}, ()),
    ],
)
def test_one_fault_that_explains_all_is_blamed_and_otherwise_nobody(
    losses: list[tuple[str, ...]], nodes: int, facts: dict[str, object], blamed: tuple[str, ...]
) -> None:
    assert Losses(losses, nodes, "node1", **facts).to_blame == blamed  # type: ignore[arg-type]


def test_who_fell_silent_is_not_counted_on_unless_it_was_the_head_that_was_cut_off() -> None:
    lost = [("node2",), ("node3", "node4")]
    assert Losses(lost, 4).maybe_gone == {"node2", "node3", "node4"}
    assert Losses([("node2", "node3")], 3, cut_off=True).maybe_gone == set()
    assert Losses([("node2", "node3")], 3, accusers=["node2", "node3"]).maybe_gone == set()
    assert Losses([("node2", "node3")], 3, accusers=["node2"]).maybe_gone == {"node2", "node3"}
