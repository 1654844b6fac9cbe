"""`compile = true`: each block one graph, whatever gathers its weights."""

from __future__ import annotations

import pytest
from launch import findings

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return findings(2, "compiled.py", tmp_path_factory.mktemp("compiled") / "found.json")


@pytest.mark.parametrize("case", ["fsdp2 full", "fsdp2 selective", "fsdp2 offload", "fsdp1"])
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
