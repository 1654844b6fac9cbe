"""Buffers on three ranks: first values of a model on the meta device, and what a checkpoint has."""

from __future__ import annotations

import pytest
from launch import ranks_found

ENGINES = ["fsdp2", "fsdp2 no_shard", "fsdp1", "fsdp1 no_shard"]

found = ranks_found(3, "buffers")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_has_the_first_ranks_statistics_all_of_them(found, engine):
    case = found[engine]
    assert case["saving"][0] != case["saving"][1] != case["saving"][2]
    assert case["stored"] == case["saving"][0]
    assert len(case["stored"]) == 12
    assert len(case["names"]) == 4 * (4 + 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_goes_on_with_what_the_checkpoint_has(found, engine):
    assert found[engine]["loaded"] == [found[engine]["saving"][0]] * 3


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_buffers_begin_as_the_model_made_them_and_fill_is_asked_for_parameters_alone(found, engine):
    begun = found["first values"][engine]["buffers"]
    of_one = {name.removeprefix("1."): each for name, each in begun.items() if name[0] == "1"}
    assert of_one == {
        "inv_freq": pytest.approx([1.0, 0.1, 0.01]),
        "mask": [[True, False], [True, True]],
        "table": [len("1.table")] * 3,
        "norm.running_mean": [0.0] * 6,
        "norm.running_var": [1.0] * 6,
        "norm.num_batches_tracked": 0,
    }
    assert len(begun) == 12


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_a_buffer_whose_value_nobody_knows_is_named_with_both_remedies(found, engine):
    message = found["first values"][engine]["message"]
    assert message.startswith("0.table, 1.table: on the meta device")
    assert 'device="cpu"' in message
    assert "fill_buffers" in message
