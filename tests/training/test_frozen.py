"""Frozen parameters: outside the norm, never updated, the same on every engine."""

from __future__ import annotations

import pytest
from launch import ranks_found

ENGINES = ["fsdp2", "fsdp1", "fsdp1 no_shard"]
FROZEN = ["0.linear.weight", "0.linear.bias", "2.linear.bias"]

found = ranks_found(2, "frozen")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_norm_is_that_of_one_process_without_frozen_gradients(found, engine):
    assert found[engine]["norms"] == pytest.approx(found["one process"]["norms"], rel=1e-5)


@pytest.mark.parametrize("engine", ["one process", *ENGINES])
def test_frozen_weights_do_not_move_though_nobody_sets_a_learning_rate(found, engine):
    moved = found[engine]["moved"]
    assert [name for name, by in moved.items() if by == 0] == FROZEN
    assert moved == pytest.approx(found["one process"]["moved"], rel=1e-4)
    assert moved["1.linear.bias"] == pytest.approx(moved["3.linear.bias"] / 2, rel=0.1), (
        "a group's factor counts from the first step on"
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("other", ["fsdp2", "fsdp1"])
def test_a_checkpoint_with_frozen_weights_is_read_by_either_engine(found, engine, other):
    assert found[engine]["resumed"][other] == pytest.approx(found[engine]["next norms"], rel=1e-4)


def test_who_cannot_freeze_any_more_is_told_when_to(found):
    assert "before you wrap the model" in found["ddp"]
