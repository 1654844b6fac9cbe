"""Every engine, strategy and knob trains as plain torch does, token for token, and takes effect."""

from __future__ import annotations

import math

import pytest
from launch import ranks_found

# Float32 has 24 bits: an operation errs by up to 6e-8 of its result. Sharding changes only the
# order in which gradients are added (over ranks, and over padding of another width), so after two
# SGD steps on weights of size one a few such errors remain. Losses are about ten: ten times that.
WEIGHT_TOLERANCE, LOSS_TOLERANCE, NORM_TOLERANCE = 2e-6, 1e-5, 2e-6

ENGINES = ["fsdp2", "fsdp1"]
STRATEGIES = ["full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"]
UNITS = 5  # two encoder blocks, two decoder blocks, the root
PARAMETERS = 28752

found = ranks_found(4, "equality")


def same_as_plain(found: dict, case: str) -> dict:
    result = found["cases"][case]
    losses, norms = found["plain"][result["family"]]
    assert result["losses"] == pytest.approx(losses, abs=LOSS_TOLERANCE)
    assert result["norms"] == pytest.approx(norms, rel=NORM_TOLERANCE)
    assert result["names_equal"], "state dict keys differ from the unsharded model's"
    assert result["weight_difference"] < WEIGHT_TOLERANCE
    return result


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_equals_one_process_with_unequal_tokens_per_rank(found, engine, strategy):
    same_as_plain(found, f"{engine} {strategy}")


def test_microbatches_of_unequal_token_counts_equal_one_batch(found):
    """In a loop of one's own; `test_step_messages.py` has the trainer's, with every strategy."""
    same_as_plain(found, "fsdp2 hybrid_shard checkpointed selectively accumulated")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["", " selectively"])
def test_activation_checkpointing_changes_nothing_and_is_the_same_on_every_rank(
    found, engine, mode
):
    result = same_as_plain(found, f"{engine} full_shard checkpointed{mode}")
    assert result["checkpointed"] == [4] * 4
    half = same_as_plain(found, "fsdp2 full_shard every 2nd block checkpointed")
    assert half["checkpointed"] == [2] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_offloading_activations_changes_nothing_and_copies_no_gathered_weight(found, engine):
    result = same_as_plain(found, f"{engine} full_shard activations offloaded")
    assert result["values offloaded"] == found["values offloaded by a whole model"] > 0
    half = same_as_plain(found, "fsdp2 full_shard every 2nd block's activations offloaded")
    assert 0 < half["values offloaded"] < result["values offloaded"]


def test_activations_of_two_blocks_in_a_unit_are_offloaded_without_its_weights(found):
    result = same_as_plain(found, "fsdp2 two blocks per unit activations offloaded")
    assert result["values offloaded"] == found["values offloaded by a whole model"]


@pytest.mark.parametrize("engine", ENGINES)
def test_ignored_parameters_are_whole_and_train_as_one_model(found, engine):
    result = same_as_plain(found, f"{engine} full_shard some ignored")
    assert not result["ignored differ"]
    everything = found["cases"][f"{engine} full_shard"]
    assert result["parameters"] == everything["parameters"]
    assert result["held at first"] < PARAMETERS / 2
    ignored = 64 * 24 + 2 * 24 + 4 * 24 * 24 + 24
    assert result["largest_shard"] >= 64 * 24, "lm_head is whole"
    assert everything["held at first"] * 4 - result["held at first"] * 4 >= ignored


def test_patterns_that_ignore_nothing_or_everything_are_refused(found):
    assert "'head.*' fits no parameter of T5" in found["no such parameter"]
    assert "nothing would be sharded" in found["all ignored"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_may_choose_the_units(found, engine):
    result = same_as_plain(found, f"{engine} full_shard wrapped by a function")
    assert result["units"] == 3  # the second block of each stack, and the root
    assert "is_unit chose no module of T5" in found["nothing chosen"]


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("full_shard", "BackwardPrefetch.BACKWARD_PRE"),
        ("full_shard backward prefetch after", "BackwardPrefetch.BACKWARD_POST"),
        ("full_shard no backward prefetch", "None"),
    ],
)
def test_fsdp1_gathers_ahead_in_backward_as_asked(found, case, mode):
    assert same_as_plain(found, f"fsdp1 {case}")["backward prefetch"] == mode


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "full_shard checkpointed", "full_shard tied"])
def test_whole_weights_are_those_of_the_model_by_their_plain_names(found, engine, strategy):
    result = found["cases"][f"{engine} {strategy}"]
    assert result["look differs"] == 0
    names = result["names at a look"]
    assert len(names) == result["parameters"] == len(set(names))
    assert "encoder.block.0.layer.0.SelfAttention.q.weight" in names
    assert result["chosen at a look"] == [
        f"encoder.block.{number}.layer.0.SelfAttention.q.weight" for number in (0, 1)
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_tied_embedding_and_head_train_as_one_weight(found, engine):
    same_as_plain(found, f"{engine} full_shard tied")
    tied = same_as_plain(found, f"{engine} tied modules in the root")
    untied = found["cases"][f"{engine} full_shard"]
    assert tied["parameters"] == untied["parameters"] - 1, "the optimizer would see it twice"


def test_tied_modules_named_as_units_are_gathered_together(found):
    assert same_as_plain(found, "fsdp2 tied units")["units"] == 2  # the pair, and the root


def test_a_weight_tied_across_units_is_refused_with_both_names(found):
    assert "shared and lm_head share a weight" in found["tied across"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_built_with_values_starts_from_them_and_groups_keep_their_rate_and_decay(
    found, engine
):
    same_as_plain(found, f"{engine} full_shard two groups with values")
    one, two = found["plain"]["untied"][0], found["plain"]["two groups"][0]
    assert one[1:] != pytest.approx(two[1:], abs=1e-3), "the groups make no difference here"


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard offloaded",
        "fsdp1 full_shard offloaded",
        "fsdp1 full_shard unlimited gathers",
        "fsdp1 full_shard prefetch",
    ],
)
def test_offload_prefetch_and_gather_limit_change_nothing_but_memory_and_time(found, case):
    same_as_plain(found, case)


@pytest.mark.parametrize("engine", ENGINES)
def test_wrapping_by_size_makes_units_of_the_large_blocks_only(found, engine):
    result = same_as_plain(found, f"{engine} full_shard wrapped by size")
    assert result["units"] == 4  # two decoder blocks, the rest of the encoder, the root


@pytest.mark.parametrize("engine", ENGINES)
def test_wrapping_by_name_makes_units_of_what_is_named(found, engine):
    result = same_as_plain(found, f"{engine} full_shard wrapped by name")
    assert result["units"] == 5  # encoder, two decoder blocks, lm_head, the root


def test_neighbouring_blocks_can_share_a_unit(found):
    result = same_as_plain(found, "fsdp2 two blocks per unit")
    assert result["units"] == 3
    assert result["messages"] == {"gather": 5, "reduce_scatter": 3}


def test_units_are_gathered_as_far_ahead_as_asked(found):
    """The unit whose forward begins, and those after it that are being gathered already."""
    ahead = {
        name: same_as_plain(found, f"fsdp2 {name}")["ahead"]
        for name in ("full_shard", "full_shard prefetch")
    }
    assert ahead["full_shard"] == [0, 0, 0, 0]
    assert ahead["full_shard prefetch"] == [2, 2, 1, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_recomputing_gathers_no_unit_once_more(found, engine):
    """Other steps: test_step_messages.py."""
    found = found["cases"][f"{engine} full_shard checkpointed"]
    # Each unit in forward, and again in backward but for the root, which stays.
    assert found["messages"] == {"gather": 2 * UNITS - 1, "reduce_scatter": UNITS}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hybrid_over_all_ranks_has_no_replicas_to_talk_to(found, engine):
    result = same_as_plain(found, f"{engine} hybrid_shard in one group")
    assert "allreduce" not in result["messages"]


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_falls_from_no_shard_to_shard_grad_op_to_full_shard(found, engine):
    """Values held at the worse of two moments: before backward, and after it with gradients."""
    no_shard, shard_grad_op, full_shard = (
        max(found["cases"][f"{engine} {name}"][f"held {when}"] for when in ("between", "after"))
        for name in ("no_shard", "shard_grad_op", "full_shard")
    )
    assert no_shard > 1.5 * shard_grad_op > 2 * full_shard


@pytest.mark.parametrize("engine", ENGINES)
def test_each_rank_holds_its_share_only(found, engine):
    held = {name: case["held at first"] for name, case in found["cases"].items()}
    assert held[f"{engine} full_shard"] == PARAMETERS // 4
    assert held[f"{engine} hybrid_shard"] == PARAMETERS // 2
    assert held[f"{engine} no_shard"] == PARAMETERS


def test_resharding_to_two_ranks_keeps_half_of_each_unit_until_backward(found):
    same_as_plain(found, "fsdp2 reshard to 2")
    between = {name: case["held between"] for name, case in found["cases"].items()}
    assert between["fsdp2 full_shard"] < between["fsdp2 reshard to 2"]
    assert between["fsdp2 reshard to 2"] < between["fsdp2 shard_grad_op"]
    assert between["fsdp2 reshard to node"] == between["fsdp2 full_shard"]  # one node here


def test_gradient_norms_were_clipped_in_this_comparison(found):
    assert all(norm > 0.5 for _, norms in found["plain"].values() for norm in norms)
    assert all(math.isfinite(x) for _, norms in found["plain"].values() for x in norms)


def test_differently_seeded_ranks_are_refused(found):
    assert "differ in their initial weights" in found["differently seeded"]
    assert "on rank 3" in found["differently seeded"]
    assert "torch.manual_seed" in found["differently seeded"]
    assert "sync_module_states = true" in found["differently seeded"]


def test_a_group_of_ranks_that_does_not_divide_the_world_is_refused(found):
    assert "groups of 3 does not divide 4 ranks" in found["indivisible"]
    assert "reshard_to: 3 ranks do not divide 4" in found["indivisible reshard_to"]


def test_units_too_small_for_a_message_are_pointed_out_once(found):
    (line,) = found["cases"]["fsdp2 full_shard"]["warnings"]
    assert "4 of 4 sharding units have fewer than 10,000 parameters (encoder.block.1: 5,2" in line


def test_ranks_with_other_data_are_named(found):
    assert found["other data"] == (
        "The ranks differ in their training data: a on ranks 0-2; b on rank 3."
    )
