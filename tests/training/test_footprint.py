"""What a T5 takes at the very least, against the GPU of a profile, before a job is queued."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model import T5, T5Config

from fsdpkit.config.training import PRESETS, TrainingSettings, load_settings
from fsdpkit.config.training.footprint import least_gpu_bytes, memory_problem, parameter_count

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
PITZER = ("--cluster", "osc-pitzer", "--account", "PAS2136", "--dry-run")


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_as_the_model_has_them(preset):
    with torch.device("meta"):
        model = T5(T5Config(**PRESETS[preset]))
    assert parameter_count(PRESETS[preset]) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("sets", "ranks", "bytes_a_parameter"),
    [
        (["sharding.strategy=no_shard"], 8, 16),
        (["sharding.strategy=full_shard"], 8, 16 / 8),
        (["sharding.strategy=hybrid_shard"], 8, 16 / 4),
        (["sharding.strategy=hybrid_shard", "sharding.shard_size=2"], 8, 16 / 2),
        (["sharding.strategy=shard_grad_op"], 2, 16 / 2),
        (["sharding.strategy=shard_grad_op"], 8, 12 / 8 + 2),  # bfloat16 copies, from forward on
        (["sharding.strategy=shard_grad_op", "precision.param=float32"], 8, 12 / 8 + 4),
        (["sharding.strategy=hybrid_shard_zero2"], 8, 12 / 4 + 2),
        (["sharding.reshard_to=2"], 8, 12 / 8 + 2 / 2),
        (["optimizer.name=sgd"], 8, 12 / 8),
        (["precision.master=bfloat16", "optimizer.rounding=stochastic"], 8, 8 / 8),
        (["precision.master=bfloat16", "optimizer.rounding=compensated"], 8, 10 / 8),
        (["optimizer.name=sgd", "optimizer.beta1=0"], 8, 8 / 8),
        (["optimizer.name=adafactor"], 8, 8 / 8),
        (['optimizer.groups=[{match="*", lr_scale=0.0}]'], 8, 4 / 8),  # how many is not known
        (["sharding.cpu_offload=true"], 8, 0),
    ],
)
def test_each_strategy_and_rule_takes_its_share(sets, ranks, bytes_a_parameter):
    found = least_gpu_bytes(load_settings({}, sets), 1_000_000, ranks, ranks_per_node=4)
    assert found == round(1_000_000 * bytes_a_parameter)


def t5(preset: str, **sharding: str) -> TrainingSettings:
    sets = [f"model.preset={preset}", *(f"sharding.{k}={v}" for k, v in sharding.items())]
    return load_settings({}, sets)


def test_a_refusal_has_the_numbers_and_the_strategy_that_would_do():
    said = memory_problem(t5("t5-3b", strategy="no_shard"), 4, 2, "NVIDIA V100 16 GB", 16)
    assert said is not None
    assert "46 GB of each, which has 16 GB (NVIDIA V100 16 GB)" in said
    assert 'strategy = "full_shard" on these 4 GPUs (11 GB each)' in said


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    strategy=st.sampled_from(STRATEGIES),
    nodes=st.integers(1, 16),
    gpus=st.integers(1, 8),
    memory_gb=st.sampled_from([16, 40, 80, 141]),
)
def test_what_is_refused_is_more_than_the_memory_and_what_is_advised_is_not(
    preset, strategy, nodes, gpus, memory_gb
):
    settings, ranks = t5(preset, strategy=strategy), nodes * gpus
    parameters = parameter_count(settings.model.dimensions())
    said = memory_problem(settings, ranks, gpus, None, memory_gb)
    needed = least_gpu_bytes(settings, parameters, ranks, gpus)
    assert (said is not None) == (needed > memory_gb * 2**30)
    if said and "on these" in said:
        assert memory_problem(t5(preset), ranks, gpus, None, memory_gb) is None


def test_a_dry_run_refuses_t5_11b_on_one_v100(fsdpkit):
    words = ["--nodes", "1", "--gpus", "1", "--set", "training.model.preset=t5-11b"]
    done = fsdpkit(
        "submit", *PITZER, *words, "--set", "training.sharding.strategy=no_shard", status=65
    )
    assert "181 GB" in done.stderr
