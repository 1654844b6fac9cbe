"""No job is left without enough nodes by what fsdpkit leaves out, whatever happened to nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.exclusions import alike, expand, leave_out, nodes_of

SINFO = """\
CLUSTER: pitzer
main*|n1|idle|48|190000|skylake,ib|gpu:v100:4(S:0-1)
main*|n2|mix-|48|190000|skylake,ib|gpu:v100:4(S:0-1)
main*|n3|alloc*|48|190000|skylake,ib|gpu:v100:4(S:0-1)
main*|n4|drain|48|190000|skylake,ib|gpu:v100:4(S:0-1)
main*|n5|idle~|40|190000|cascade|gpu:v100:2,shard:8
main*|n6|maint$|48|190000|skylake,ib|gpu:v100:4
big|n7|plnd|48+|1500000|(null)|(null)
debug|n1|idle|48|190000|skylake,ib|gpu:v100:4(S:0-1)
not|a|node
"""


def test_what_is_like_a_node_that_the_job_had_suits_it() -> None:
    nodes = nodes_of(SINFO)
    assert alike(nodes, {"n1"}, features=False) == [{"n1", "n2"}, {"n1"}]
    assert alike(nodes, {"n3"}, features=True) == [{"n1", "n2"}, {"n1"}]
    assert alike(nodes, {"n5"}, features=True) == [{"n5"}]
    assert alike(nodes, {"n9"}, features=False) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,07],gpu-a", ("n1", "n2", "n3", "n07", "gpu-a")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("r[1-2]n[3-4]x", ("r1n3x", "r1n4x", "r2n3x", "r2n4x")),
        ("", ()),
        ("n[1-3", None),
        ("n]1", None),
        ("n[]", None),
        ("n[a-b]", None),
        ("n[3-1]", None),
        ("n[1-999999999]", None),
        ("n[1-99999]m[1-99999]", None),
    ],
)
def test_a_host_list_is_read_as_slurm_writes_it(text: str, names: tuple[str, ...] | None) -> None:
    assert expand(text) == names


def note(node: str, since_s: float) -> AvoidedNode:
    return AvoidedNode(node, "it hung", "t5-1", since_s, since_s + 3600)


def test_the_newest_are_left_out_first() -> None:
    notes = [note("n1", 10.0), note("n2", 30.0), note("n3", 20.0)]
    known = ["n1", "n2", "n3", "n4"]
    found = leave_out(notes, known, [{*known}], needed=2)
    assert [one.node for one in found] == ["n2", "n3"]
    assert leave_out(notes, known, [{"n1", "n2"}, {"n3", "n4"}], needed=2)[0].node == "n2"


def test_a_node_that_would_not_be_used_anyway_costs_nothing() -> None:
    found = leave_out([note("down", 1.0), note("none", 2.0)], ["n1", "n2", "down"], [{"n1"}], 1)
    assert [one.node for one in found] == ["down"]


NAMES = [f"n{number}" for number in range(1, 7)]


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.floats(0, 1e6)), max_size=12, unique_by=lambda x: x[0]
    ),
    st.lists(st.sets(st.sampled_from(NAMES)), max_size=3),
    st.integers(1, 6),
)
def test_who_could_run_before_can_run_afterwards(
    notes: list[tuple[str, float]], partitions: list[set[str]], needed: int
) -> None:
    out = {one.node for one in leave_out([note(*n) for n in notes], NAMES, partitions, needed)}
    could = any(len(nodes) >= needed for nodes in partitions)
    assert could <= any(len(nodes - out) >= needed for nodes in partitions)
    assert could or not out
