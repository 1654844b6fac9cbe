"""Buffers that differ by rank, such as BatchNorm's statistics, in checkpoints of three ranks."""

from __future__ import annotations

import pytest
from launch import findings

ENGINES = ["fsdp2", "fsdp2 no_shard", "fsdp1", "fsdp1 no_shard"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return findings(3, "buffers.py", tmp_path_factory.mktemp("buffers") / "found.json")


@pytest.mark.torch
@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_has_the_first_ranks_statistics_all_of_them(found, engine):
    case = found[engine]
    assert case["saving"][0] != case["saving"][1] != case["saving"][2]
    assert case["stored"] == case["saving"][0]
    assert len(case["stored"]) == 12
    assert len(case["names"]) == 4 * (4 + 3)


@pytest.mark.torch
@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_goes_on_with_what_the_checkpoint_has(found, engine):
    assert found[engine]["loaded"] == [found[engine]["saving"][0]] * 3
