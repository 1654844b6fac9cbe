"""Mixed precision, float16's scale and recomputed dropout, on both engines."""

from __future__ import annotations

import pytest
from launch import ranks_found

ENGINES = ["fsdp2", "fsdp1"]
BFLOAT16 = 2e-2  # 8 bits: an operation errs by up to 4e-3 of its result

found = ranks_found(2, "precision")


def test_bfloat16_gives_a_close_loss_and_not_the_same(found):
    exact, rounded = found["float32"][0], found["bfloat16"][0]
    assert rounded == pytest.approx(exact, rel=BFLOAT16)
    assert rounded != exact


@pytest.mark.parametrize(
    "case",
    ["fsdp2", "fsdp2 full", "fsdp2 selective", "fsdp2 prefetch", "fsdp2 two blocks", "fsdp1",
     "fsdp1 full", "fsdp2 offload", "fsdp1 offload"],
)  # fmt: skip
def test_modules_kept_in_float32_compute_in_it_and_give_back_the_compute_type(found, case):
    kept = found["kept"][case]
    assert kept["in a norm"] == [["float32", "float32", "float32"]]  # input, weight, result
    assert kept["in a linear"] == [["bfloat16", "bfloat16", "bfloat16"]]  # right behind a norm
    assert kept["shards"] == ["float32"]
    assert kept["losses"] == pytest.approx(found["float32"][0], rel=BFLOAT16)
    assert kept["norms"] == pytest.approx(found["float32"][1], rel=BFLOAT16)


@pytest.mark.parametrize(
    "case",
    ["fsdp2 full", "fsdp2 selective", "fsdp2 prefetch", "fsdp1 full", "fsdp2 offload",
     "fsdp1 offload"],
)  # fmt: skip
def test_kept_modules_survive_recomputation_and_prefetch_bit_for_bit(found, case):
    assert found["kept"][case] == found["kept"][case.split()[0]]


def test_fsdp1_refuses_kept_modules_inside_selectively_checkpointed_blocks(found):
    assert "encoder.block.0.layer.0.layer_norm is gathered by itself" in found["fsdp1 selective"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["full", "selective", "offload"])
def test_recomputed_and_offloaded_dropout_draws_the_same_numbers(found, engine, mode):
    assert found["dropout"][f"{engine} {mode}"] == found["dropout"][f"{engine} none"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("param", ["bfloat16", "float32"])
@pytest.mark.parametrize("reduce", ["float32", "bfloat16"])
def test_output_and_gradient_sums_have_the_types_asked_for(found, engine, param, reduce):
    types = found["output and reduce"][engine][f"{param} {reduce}"]
    assert types == {"output": "float32", "reduced": [reduce]}


@pytest.mark.parametrize(
    "case",
    [
        "fsdp2 full_shard fused",
        "fsdp2 full_shard foreach",
        "fsdp2 no_shard sgd",
        "fsdp1 full_shard fused",
        "fsdp1 full_shard sgd",
    ],
)
def test_an_overflow_on_one_rank_makes_every_rank_skip_and_halve_the_scale(found, case):
    ranks = found["overflow"][case]
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["changed"] == [True, False, True]
        assert rank["scales"] == [1024.0, 512.0, 512.0]
        assert rank["finite"]
        assert rank["first norm"] == pytest.approx(found["float32"][1][0], rel=1e-2)  # unscaled


def test_fsdp1_casts_buffers_to_the_type_asked_for(found):
    assert found["buffer"] == "bfloat16"
