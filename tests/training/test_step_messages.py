"""A step of the trainer sends no needless message, makes no host wait, and is that of one process.

`ranks/step_messages.py` runs the trainer's own `train_step` on four ranks, each case twice.
"""

from __future__ import annotations

import pytest
from launch import ranks_found

ENGINES = ("fsdp1", "fsdp2")
BLOCKS = 3
ENDS = {"fsdp1": 1, "fsdp2": 2}
"""Units that are whole when backward begins: the root, and under FSDP2 the head by itself."""
COUNT, NORM = 1, 1  # tokens with the wishes to stop and to save; the gradients' norm

found = ranks_found(4, "step_messages")


def ideal(engine: str, strategy: str, passes: int) -> dict[str, int]:
    """Messages of forward and backward in so many passes, by kind.

    Weights are gathered by each unit in forward; what frees them then gathers them again in
    backward, but for those that are needed first there; and so in each pass. What keeps them
    keeps them for the step. Gradients cross ranks once, with the last pass.
    """
    units = BLOCKS + ENDS[engine]
    sharded = strategy != "no_shard"
    frees = strategy in ("full_shard", "hybrid_shard")
    replicated = strategy in ("hybrid_shard", "hybrid_shard_zero2", "no_shard")
    return {
        "gather": sharded * (passes * (BLOCKS + units) if frees else units),
        "reduce_scatter": sharded * units,
        "allreduce": replicated * units,
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "strategy",
    ["full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"],
)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_whole_step_sends_the_least_that_its_strategy_needs(found, engine, strategy, passes):
    case = found[f"{engine} {strategy}{' accumulated' if passes == 2 else ''}"]
    # Of what every rank holds whole nobody need ask for the norm.
    norm = 0 if strategy == "no_shard" else NORM
    expected = ideal(engine, strategy, passes)
    expected["allreduce"] += COUNT + norm
    assert case["messages"] == {kind: n for kind, n in expected.items() if n}
    # The count is waited for when all else but the norm is on its way.
    expected["allreduce"] -= norm
    assert case["before the count"] == {kind: n for kind, n in expected.items() if n}


def test_the_host_waits_in_no_step_but_where_it_must_decide(found):
    decides = {name for name in found if name.endswith((" float16", "skipped", "auto"))}
    assert len(decides) == 4
    for name, case in found.items():
        if name != "ranks differ":
            assert case["waits"] == ({"tolist": 1} if name in decides else {}), name


ROUNDED = {"bfloat16": 2e-2, "float16": 3e-3}


def test_every_step_is_that_of_one_process_in_float64(found):
    """Whatever the lengths of each rank's rows: a token weighs the same everywhere."""
    for name, case in found.items():
        if name == "ranks differ" or "masters" in name:
            continue
        tolerance = next((t for kind, t in ROUNDED.items() if kind in name), 1e-5)
        assert case["norms"] == pytest.approx(case["expected norms"], rel=tolerance), name
        assert case["off"] < tolerance, name


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_in_bfloat16_get_gradients_of_the_right_size(found, engine):
    case = found[f"{engine} bfloat16 masters"]
    assert case["norms"][0] == pytest.approx(case["expected norms"][0], rel=1e-2)


def test_a_step_without_any_token_changes_no_weight(found):
    case = found["fsdp2 no token"]
    assert (case["tokens"], case["norms"], case["off"]) == (0, [0, 0], 0)
    assert found["fsdp2 one rank without a token"]["tokens"] > 0


def test_all_ranks_hear_of_a_wish_to_stop_after_the_same_step(found):
    assert found["fsdp2 stopping"]["stopping"] == [False, True]
    assert found["ranks differ"] == []
