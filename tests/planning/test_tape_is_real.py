"""What the tape says of pretended tensors is what real ranks hold: within a hundredth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.launch import REPOSITORY, run_ranks

pytestmark = pytest.mark.torch

SCRIPT = REPOSITORY / "tests" / "planning" / "ranks" / "peaks.py"
MODELS = SCRIPT.with_name("models.py")
OWN = REPOSITORY / "examples" / "own-model" / "train.py"
SMALL = [
    "model.preset=tiny-byt5", "model.num_layers=1", "model.num_decoder_layers=1",
    "model.dropout_rate=0.0", "model.attention=math",
    "precision.param=bfloat16", "batch_size=4", "data.multiple=1",
    "data.source_length=48", "data.target_length=32", "compile=false",
]  # fmt: skip

LIBRARIES = (
    *("transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    *("transformers.models.llama.modeling_llama", "transformers.models.t5.modeling_t5"),
)
"""Seconds of each rank's time, if each imports them."""

DEEPER = ["model.num_layers=2", "model.num_decoder_layers=2"]


def sharding(**values: str) -> list[str]:
    return [f"sharding.{key}={value}" for key, value in values.items()]


# Each value of each setting at least once, and those together that share code.
CASES = {
    "hybrid, recomputed, accumulated": [
        *sharding(strategy="hybrid_shard", activation_checkpointing="full"),
        "micro_batch=2",
    ],
    "gathered, selective, adafactor": [
        *sharding(strategy="shard_grad_op", activation_checkpointing="selective"),
        "optimizer.name=adafactor",
    ],
    "replicated, chunked, sgd": [
        *sharding(strategy="no_shard"),
        *("loss=chunked", "optimizer.name=sgd"),
    ],
    "resharded to a node, prefetched": [*sharding(reshard_to="node", prefetch="2"), *DEEPER],
    "fsdp1, replicated": sharding(engine="fsdp1", strategy="no_shard"),
    "fsdp1, gathered, recomputed, accumulated": [
        *sharding(engine="fsdp1", strategy="shard_grad_op", activation_checkpointing="full"),
        "micro_batch=2",
    ],
    "fsdp1, hybrid, fused sgd": [
        *sharding(engine="fsdp1", strategy="hybrid_shard"),
        "optimizer.name=sgd",
    ],
    "zero2 in groups, accumulated, adamw-scaled": [
        *sharding(strategy="hybrid_shard_zero2"),
        *("micro_batch=1", "optimizer.name=adamw-scaled"),
    ],
    "lower masters, rounded": [
        *sharding(activation_checkpointing="full", checkpoint_every="2"),
        *DEEPER,
        *("precision.master=bfloat16", "optimizer.rounding=stochastic"),
    ],
    "the example of one's own model": [f"model={OWN}:planned", "precision.param=bfloat16"],
    **{
        f"own model, {name}": [f"model={MODELS}:{name}", "precision.param=bfloat16"]
        for name in ("frozen", "distilled", "tied")
    },
    "a model of transformers": [f"model={MODELS}:llama", "precision.param=bfloat16"],
    "a loss of each pixel": [
        f"model={MODELS.with_name('kinds.py')}:unet",
        *sharding(activation_checkpointing="full"),
        "precision.param=bfloat16",
    ],
}


def peaks(how: str, cases: list[list[str]], world: int = 4) -> list[int]:
    ran = run_ranks(
        world if how == "real" else 1,
        SCRIPT,
        how,
        str(world),
        json.dumps(cases),
        libraries=LIBRARIES,
        status=0,
    )
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("PEAKS")]
    found: list[int] = json.loads(line.removeprefix("PEAKS"))
    return found


def test_what_real_ranks_hold(tmp_path: Path):
    config = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 264,
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
        "is_encoder_decoder": True, "decoder_start_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    directory = [f"model={tmp_path}", "batch_size=4", "data.source_length=48"]
    directory += ["data.target_length=32", "precision.param=bfloat16"]
    found = compared({**CASES, "a directory of transformers": directory})
    off = {name: share for name, share in found.items() if abs(share) > 0.01}
    assert not off


def compared(cases: dict[str, list[str]]) -> dict[str, float]:
    """By how large a share the tape is above what ranks hold, or below it."""
    texts = [case if case[0].startswith("model=") else [*SMALL, *case] for case in cases.values()]
    pairs = zip(cases, peaks("real", texts), peaks("pretended", texts), strict=True)
    return {name: said / held - 1 for name, held, said in pairs}


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_a_step_of_8192_ranks_takes_as_much_to_plan_as_one_of_16(engine):
    case = json.dumps([*SMALL, *sharding(engine=engine)])
    script = SCRIPT.with_name("calls.py")
    ran = run_ranks(1, script, case, "16", "8192", libraries=LIBRARIES)
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("CALLS")]
    few, many = json.loads(line.removeprefix("CALLS"))
    assert many < 1.25 * few
