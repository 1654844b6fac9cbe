"""Every engine and strategy trains as plain torch does, token for token."""

from __future__ import annotations

import math

import pytest
from launch import findings

pytestmark = pytest.mark.torch

# Float32 has 24 bits: an operation errs by up to 6e-8 of its result. Sharding changes only the
# order in which gradients are added (over ranks, and over padding of another width), so after four
# SGD steps on weights of size one a few such errors remain. Losses are about ten: ten times that.
WEIGHT_TOLERANCE, LOSS_TOLERANCE, NORM_TOLERANCE = 2e-6, 1e-5, 2e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return findings(4, "equality.py", tmp_path_factory.mktemp("equality") / "found.json")


def same_as_plain(found: dict, case: str) -> None:
    result = found["cases"][case]
    losses, norms = found["plain"][result["family"]]
    assert result["losses"] == pytest.approx(losses, abs=LOSS_TOLERANCE)
    assert result["norms"] == pytest.approx(norms, rel=NORM_TOLERANCE)
    assert result["names_equal"], "state dict keys differ from the unsharded model's"
    assert result["weight_difference"] < WEIGHT_TOLERANCE


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"])
def test_each_strategy_equals_one_process_with_unequal_tokens_per_rank(found, engine, strategy):
    same_as_plain(found, f"{engine} {strategy}")


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard accumulated",
        "fsdp2 hybrid_shard accumulated",
        "fsdp1 full_shard accumulated",
    ],
)
def test_microbatches_of_unequal_token_counts_equal_one_batch(found, case):
    same_as_plain(found, case)


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard checkpointed",
        "fsdp2 shard_grad_op checkpointed accumulated",
        "fsdp1 full_shard checkpointed",
    ],
)
def test_activation_checkpointing_changes_nothing_and_wraps_every_block_on_every_rank(found, case):
    same_as_plain(found, case)
    assert found["cases"][case]["checkpointed"] == [4, 4, 4, 4]  # two encoder, two decoder blocks


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_tied_embedding_and_head_train_as_one_weight(found, engine):
    same_as_plain(found, f"{engine} full_shard tied")


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_a_model_built_with_values_starts_from_them(found, engine):
    same_as_plain(found, f"{engine} with values")


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard offloaded",
        "fsdp1 full_shard offloaded",
        "fsdp1 full_shard unlimited gathers",
    ],
)
def test_offload_and_gather_limit_change_nothing_but_memory_and_time(found, case):
    same_as_plain(found, case)


def test_each_rank_holds_its_share_only(found):
    whole = 64 * 24  # the embedding
    held = {name: case["largest_shard"] for name, case in found["cases"].items()}
    assert held["fsdp2 full_shard"] == whole // 4
    assert held["fsdp2 hybrid_shard"] == whole // 2
    assert held["fsdp2 no_shard"] == whole


def test_gradient_norms_were_clipped_in_this_comparison(found):
    assert all(norm > 0.5 for _, norms in found["plain"].values() for norm in norms)
    assert all(math.isfinite(x) for _, norms in found["plain"].values() for x in norms)


def test_differently_seeded_ranks_are_refused(found):
    assert "differ in their initial weights" in found["differently seeded"]
    assert "on rank 3" in found["differently seeded"]


def test_a_hybrid_group_that_does_not_divide_the_world_is_refused(found):
    assert "groups of 3 does not divide 4 ranks" in found["indivisible"]


def test_no_host_waits_between_logged_steps(found):
    assert found["host reads per silent step"] == [1]  # the stop request's vote, on the host


def test_a_loss_that_is_not_finite_stops_before_the_update(found: dict) -> None:
    assert "step 3 is not finite" in found["not finite"]["message"]
    assert found["not finite"]["weights unchanged"]


def test_bfloat16_weights_leave_float32_shards_and_a_close_loss(found):
    result = found["bfloat16"]
    assert result["shard dtype"] == "torch.float32"
    assert result["loss"] == pytest.approx(found["plain"]["untied"][0][0], rel=2e-2)


def test_ranks_with_other_data_are_named(found):
    assert found["other data"] == (
        "The ranks differ in their training data: a on ranks 0, 1, 2; b on rank 3."
    )
