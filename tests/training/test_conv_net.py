"""A network that is no transformer: convolutions and BatchNorm, sharded, train as under DDP."""

from __future__ import annotations

import pytest
from launch import ranks_found

# Two ranks: a sum of two gradients rounds the same in any order. What is left is the engines' own
# averaging, one rounding a step.
TOLERANCE = 1e-6

found = ranks_found(2, "conv_net")


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard",
        "fsdp2 full_shard from meta",
        "fsdp2 wrapped by size",
        "fsdp2 no_shard",
        "fsdp1 full_shard",
        "fsdp1 full_shard from meta",
        "fsdp1 no_shard",
    ],
)
def test_losses_weights_and_running_statistics_equal_ddp_on_every_rank(found, case):
    same_as_ddp(found, case)


@pytest.mark.parametrize("mode", ["checkpointed", "checkpointed selectively"])
def test_a_recomputed_batch_is_counted_once_in_running_statistics(found, mode):
    same_as_ddp(found, f"fsdp2 full_shard {mode}")


def test_running_statistics_are_each_ranks_own(found):
    assert found["ranks differ by"] > 0.1


def same_as_ddp(found: dict, case: str) -> None:
    for rank in found["cases"][case]:
        assert rank["losses"] <= TOLERANCE
        assert rank["weights"] <= TOLERANCE
        assert rank["buffers"] <= TOLERANCE
        assert rank["shapes"]
