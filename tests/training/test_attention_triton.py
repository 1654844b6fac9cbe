"""The Triton kernel: the numbers of attention written out, forward and backward.

Its kernels run in Triton's interpreter, in a process of their own, because TRITON_INTERPRET has to
be set before Triton is imported. Speed is not looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention import attention_in_use
from launch import RANKS, environment, run_ranks
from model import T5Config
from small_t5 import DIMENSIONS, V1_1, batch_of, build

from fsdpkit.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SAMPLES = (([5, 9, 30, 1], [7, 1]), ([8, 1], [4, 3, 22, 17, 1]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    pytest.importorskip("triton")
    result = tmp_path_factory.mktemp("triton") / "found.json"
    path = os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parent)])
    done = run_ranks(
        1, RANKS / "triton_kernels.py", str(result), TRITON_INTERPRET="1", PYTHONPATH=path
    )
    assert done.returncode == 0, done.stdout.partition('File "<frozen runpy>"')[0][-6000:]
    return json.loads(result.read_text())


@pytest.mark.torch
@pytest.mark.parametrize(
    "case",
    [
        "encoder, padding", "encoder, packed", "decoder, causal", "decoder, one token",
        "decoder, packed", "across, padding", "across, packed", "decoder, wide heads",
    ],
)  # fmt: skip
def test_output_and_all_gradients_are_those_of_attention_written_out(found, case):
    """Float32 against float64: 1e-5 of the largest number, where 1e-6 was seen."""
    distances = found["kernels"][case]
    assert len(distances) == (4 if case.startswith("across") else 5)
    assert distances == pytest.approx(dict.fromkeys(distances, 0), abs=1e-5)


@pytest.mark.torch
def test_what_a_stride_describes_is_read_where_it_lies(found):
    assert found["copies"] == {
        "parts of a product": 0,
        "own tensors": 0,
        "one row": 0,
        "one query of many": 1,  # from one sample to the next is not a multiple of one token
        "heads apart": 3,
        "k and v unlike": 1,
    }


@pytest.mark.torch
def test_the_tiles_of_a_gpu_change_nothing(found):
    assert found["own tiles"] == pytest.approx(dict.fromkeys(found["own tiles"], 0), abs=1e-5)


@pytest.mark.torch
def test_biases_that_are_promised_to_be_one_number_far_away_change_nothing(found):
    """For any share of far tiles, ahead and behind, and for any number of programs."""
    assert len(found["far"]) == 5
    for case, distances in found["far"].items():
        assert distances == pytest.approx(dict.fromkeys(distances, 0), abs=1e-5), case


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "bound"), [("torch.bfloat16", 0.02), ("torch.float16", 0.0025)])
def test_half_types_lose_what_their_rounding_loses(found, dtype, bound):
    """Weights and their gradients are rounded before each product: about five roundings in all
    (2⁻⁸ each in bfloat16, 2⁻¹¹ in float16)."""
    distances = found["half precision"][dtype]
    assert distances == pytest.approx(dict.fromkeys(distances, 0), abs=bound)


@pytest.mark.torch
def test_two_runs_have_the_same_bits_the_bias_s_gradient_among_them(found):
    assert found["repetition"] == {"same bits": True, "right": True}


@pytest.mark.torch
def test_dropout_drops_the_same_pairs_forward_and_backward_and_when_recomputed(found):
    dropout = found["dropout"]
    distances, share = dropout.pop("distances"), dropout.pop("share")
    assert distances == pytest.approx(dict.fromkeys(distances, 0), abs=1e-5)
    assert share == pytest.approx(0.25, abs=0.06)  # of 816 pairs: four standard deviations
    assert dropout == dict.fromkeys(dropout, True)


@pytest.mark.torch
@pytest.mark.parametrize("batch", ["padded", "packed"])
def test_a_t5_has_the_scores_loss_and_gradients_it_has_with_math(found, batch):
    """With every second block recomputed in backward."""
    assert found["T5"][batch] == pytest.approx([0, 0, 0], abs=1e-5)


@pytest.mark.torch
def test_a_table_of_biases_may_be_frozen_and_a_batch_empty(found):
    assert found["T5"]["frozen bias"]
    assert found["T5"]["finite where nothing is seen"]


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_a_sharded_t5_has_the_loss_and_gradient_norm_it_has_with_math(found, engine):
    """FSDP2's blocks are compiled whole and recomputed in backward."""
    assert found["sharded"][engine][0] == pytest.approx(found["sharded"]["unlike"][0], abs=1e-5)


@pytest.mark.torch
def test_a_compiled_block_hands_over_parts_of_its_products_uncopied(found):
    """q alone where others are looked at, k and v of these as halves, and all three as thirds."""
    assert found["sharded"]["fsdp2"][1] == [1, 2, 3]
    assert found["sharded"]["fsdp1"][1] == [1]


@pytest.mark.torch
def test_kernels_compile_for_hopper_without_spilling_and_fit_its_shared_memory(tmp_path):
    triton = pytest.importorskip("triton")
    result = tmp_path / "found.json"
    command = [sys.executable, str(RANKS / "triton_compiled.py"), str(result)]
    done = subprocess.run(
        command,
        env=environment(TRITON_CACHE_DIR=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(result.read_text())
    assert len(found) == 4
    # That of torch 2.13 spills nothing, that of 2.15 twelve bytes (benchmarks/README.md).
    most = 0 if triton.__version__.startswith("3.7.") else 16
    for kernel, row in found.items():
        assert row["shared_bytes"] <= 227 * 1024, kernel
        assert row["warpgroup_instructions"], kernel
        assert max(row["spilled_bytes"]) <= most, kernel


def test_a_cpu_is_refused_by_name(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="no kernels for a CPU"):
        attention_in_use(T5Config(**DIMENSIONS), "triton", CPU, torch.float32)
    with pytest.raises(ConfigError, match="no kernels for a CPU"):
        build("triton", **V1_1)(*batch_of(*SAMPLES))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ConfigError, match="bits of bfloat16"):
        attention_in_use(T5Config(**DIMENSIONS), "triton", CPU, torch.bfloat16)


def test_a_head_too_wide_is_refused_by_name():
    with pytest.raises(ConfigError, match="up to 128 numbers, not 256"):
        attention_in_use(T5Config(**{**DIMENSIONS, "d_kv": 256}), "triton", GPU, torch.bfloat16)


def test_without_triton_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "attention_triton", raising=False)
    with pytest.raises(ConfigError, match=r"fsdpkit\[kernels\]"):
        attention_in_use(T5Config(**DIMENSIONS), "triton", GPU, torch.bfloat16)


def test_the_kernel_in_use_is_described():
    pytest.importorskip("triton")
    line = attention_in_use(T5Config(**DIMENSIONS), "triton", GPU, torch.bfloat16)
    assert line == ("triton: own kernel, biases by distance, no scores in memory, deterministic")
