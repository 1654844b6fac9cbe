"""`compile = true`: each block one graph, whatever gathers its weights."""

from __future__ import annotations

import pytest
from launch import ranks_found

pytestmark = pytest.mark.torch

found = ranks_found(2, "compiled")


@pytest.mark.parametrize("case", ["fsdp2 selective", "fsdp1"])
def test_compiled_blocks_are_whole_graphs_with_plain_names_and_the_same_numbers(found, case):
    result, eager = found["cases"][case], found["eager"]
    assert result["graphs"] == 2  # one encoder block, one decoder block
    assert result["breaks"] == 0
    assert result["plain names"]
    assert result["losses"] == pytest.approx(eager["losses"], abs=1e-5)
    assert result["norms"] == pytest.approx(eager["norms"], rel=1e-5)


def test_without_compile_nothing_is_traced(found):
    assert found["eager"]["graphs"] == 0


def test_a_compiled_checkpointed_block_counts_a_batch_once_in_running_statistics(found):
    assert found["batches seen"] == [1, 1, 1]


shapes = ranks_found(1, "compiled_shapes")


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_all_blocks_stay_compiled_whatever_the_lengths_and_beside_evaluation(shapes, engine):
    assert shapes[engine]["blocks"] == [[6, 6]] * 3
    assert "compiled" not in shapes["said of all"]


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_the_first_block_of_a_stack_has_no_graph_of_its_own(shapes, engine):
    assert shapes[engine]["graphs of one shape"] == 2
    assert shapes[engine]["graphs"] <= 10


def test_blocks_that_fall_back_are_counted_and_said_once(shapes):
    assert shapes["limited"]["blocks"] == [[6, 6], [0, 6], [0, 6]]
    assert shapes["limited"]["said"].count("compiled 0 of 6 blocks") == 1
