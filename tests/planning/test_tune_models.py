"""`plan --tune --model`: for a model of one's own, of what its script can be told."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fsdpkit.cli.plan import asked as asked_on_command_line
from fsdpkit.cli.plan import command
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.speed_tape import work_of
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.tune_recorded import Recorded, allowed_by, recorded, to_record
from fsdpkit.planning.tune_space import BATCH, MICRO, SHARDING
from fsdpkit.planning.work import StepWork
from fsdpkit.scheduling.submission import SubmitRequest, plan
from tests.training.launch import REPOSITORY

pytestmark = pytest.mark.torch

OWN = REPOSITORY / "examples" / "own-model" / "train.py"
MODEL = f"{OWN}:planned"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 264,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
READS = """
from fsdpkit import training
settings = training.read_settings("x")
model = training.shard(None, settings.sharding, settings.precision, None)
"""


def tuned(job: Path, model: str, *words: str) -> tuple[int, dict[str, Any]]:
    given = [str(job), "--tune", "--model", model, "--gpus", "2", "--json", *words]
    result = CliRunner().invoke(command, given, standalone_mode=False, catch_exceptions=False)
    return result.return_value, json.loads(result.stdout)["tuned"]


def test_a_script_that_reads_no_training_is_told_what_to_write_and_no_set_that_submit_refuses(
    isolated_user: Path,
):
    status, found = tuned(OWN, MODEL, "--gpu", "h100-80", "--nodes", "1,2")
    assert (status, found["fits"], found["sets"]) == (0, True, [])
    # So small a model is best held whole on each rank.
    assert "training.sharding.strategy=no_shard" in found["in_script"]
    assert found["nodes"] == 2
    assert any("train.py's own and stays" in note for note in found["notes"])
    why = {choice["key"]: choice["why"] for choice in found["choices"]}
    assert "full_shard: " in why["training.sharding.strategy"]
    assert not {MICRO, BATCH, "training.loss"} & why.keys()
    told = ["resources.nodes=2", "resources.gpus=2"]
    plan(SubmitRequest(job=str(OWN), cluster="local", sets=[*told, *found["sets"]]))
    with pytest.raises(ConfigError, match="does not read them"):
        plan(SubmitRequest(job=str(OWN), cluster="local", sets=[*told, *found["in_script"]]))


def test_a_model_of_transformers_is_tuned_within_what_the_script_takes(
    tmp_path: Path, isolated_user: Path
):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    script = tmp_path / "train.py"
    script.write_text(READS)
    asked = ["--set", "training.batch_size=4", "--set", "training.data.source_length=32"]
    asked += ["--set", "training.sharding.activation_checkpointing=full", "--nodes", "1"]
    status, found = tuned(script, str(tmp_path), "--gpu", "h100-80", *asked)
    assert (status, found["fits"], found["in_script"]) == (0, True, [])
    # There is room, so nothing is computed twice.
    assert "training.sharding.activation_checkpointing=none" in found["sets"]
    assert not any(each.startswith((MICRO, BATCH)) for each in found["sets"])
    sets = [*asked[1:6:2], *found["sets"], "resources.nodes=1", "resources.gpus=2"]
    plan(SubmitRequest(job=str(script), cluster="local", sets=sets))


def test_what_a_script_names_of_its_settings_is_what_is_chosen(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(READS)
    assert allowed_by(script).keys == {*SHARDING}
    script.write_text(READS + "rows = settings.micro_batch or settings.batch_size\n")
    assert allowed_by(script).keys == {*SHARDING, MICRO, BATCH}
    script.write_text("import loop\n")
    (tmp_path / "loop.py").write_text(READS)
    assert allowed_by(script).keys == {*SHARDING}
    script.write_text("import importlib\nprint(settings.sharding)\n")  # runs who knows what
    assert allowed_by(script).keys == {*SHARDING, MICRO, BATCH}


# ---- The layers of a recorded step


def asked(model: str = MODEL) -> AskedStep:
    words = {"nodes": 2, "gpus": 2, "time": None, "account": None, "partition": None}
    options = {**words, "spare": None}
    return asked_on_command_line(str(OWN), None, "h100-80", model, (), options, (), Consent())


def taped(rows: int, model: str = MODEL, **sharding: Any) -> Tape:
    from fsdpkit.planning.taping import tape_of

    one = asked(model)
    settings = to_record(one.settings)
    how = msgspec.structs.replace(settings.sharding, **sharding)
    settings = msgspec.structs.replace(settings, sharding=how, batch_size=rows)
    return tape_of(replace(one, settings=settings, rows=rows))[0]


@cache
def layers() -> Recorded:
    return recorded(taped(1), taped(2), taped(1, activation_checkpointing="selective"), 4, 2)


def flops(work: StepWork, phase: str) -> int:
    return sum(one.flops for one in work.computations() if one.phase == phase)


def sent(work: StepWork, kind: str) -> int:
    """Bytes but for those of numbers such as a norm."""
    return sum(one.bytes for one in work.collectives() if one.kind == kind and one.bytes > 1000)


@pytest.mark.parametrize(
    "sharding",
    [
        {},
        {"strategy": "shard_grad_op", "activation_checkpointing": "full"},
        {"strategy": "hybrid_shard", "activation_checkpointing": "selective"},
    ],
    ids=["as recorded", "zero2, full", "hybrid, selective"],
)
def test_a_step_that_is_put_together_is_the_one_that_is_recorded(sharding: dict[str, Any]):
    """Of four samples, from recordings of one and two."""
    tape = taped(4, **sharding)
    shape = {"ranks": 4, "ranks_per_node": 2, "parameters": tape.parameters}
    real = work_of(tape, tokens=tape.tokens, samples=tape.samples, **shape)
    settings = to_record(asked().settings)
    how = msgspec.structs.replace(settings.sharding, **sharding)
    settings = msgspec.structs.replace(settings, sharding=how, batch_size=4)
    made = layers().work(settings, 2, 2)
    assert (made.tokens, made.samples, made.parameters) == (
        real.tokens,
        real.samples,
        real.parameters,
    )
    assert flops(made, "forward") == flops(real, "forward")
    assert flops(made, "backward") == flops(real, "backward")
    assert flops(made, "recompute") == flops(real, "recompute")
    assert bool(flops(made, "recompute")) is ("activation_checkpointing" in sharding)
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert sent(made, kind) == sent(real, kind), kind


def test_what_is_made_again_is_recorded_whatever_a_block_computes():
    """Of every second block, with products of batches, which are never kept, and an attention with
    dropout, which is not kept either."""
    model = f"{Path(__file__).parent / 'ranks' / 'models.py'}:mixing"
    every = {"checkpoint_every": 2}
    selective = every | {"activation_checkpointing": "selective"}
    ones = [taped(rows, model, **every) for rows in (1, 2)]
    found = recorded(*ones, taped(1, model, **selective), 4, 2)
    assert [layer.unit for layer in found.one if layer.block] == ["layers.0", "layers.2"]
    for sharding in (selective, every | {"activation_checkpointing": "full"}):
        tape = taped(4, model, **sharding)
        shape = {"ranks": 4, "ranks_per_node": 2, "parameters": tape.parameters}
        real = work_of(tape, tokens=tape.tokens, samples=tape.samples, **shape)
        settings = to_record(asked(model).settings)
        how = msgspec.structs.replace(settings.sharding, **sharding)
        made = found.work(msgspec.structs.replace(settings, sharding=how, batch_size=4), 2, 2)
        assert 0 < flops(made, "recompute") == flops(real, "recompute")


def test_a_step_that_cannot_be_followed_is_not_tuned(isolated_user: Path):
    models = Path(__file__).parent / "ranks" / "models.py"
    with pytest.raises(UsageError, match="not all of this one could be followed"):
        tuned(OWN, f"{models}:own_kernel", "--gpu", "h100-80", "--nodes", "1")
