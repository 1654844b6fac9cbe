"""`plan --tune --model`: for a model of one's own, of what its script can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpkit.cli.plan import command
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.tune import BATCH, MICRO, SHARDING, allowed_by
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


def test_a_script_that_reads_no_training_is_told_what_to_write_and_no_set_that_submit_refuses():
    status, found = tuned(OWN, MODEL, "--gpu", "h100-80", "--nodes", "1,2")
    assert (status, found["fits"], found["sets"]) == (0, True, [])
    # So small a model is best kept gathered, or whole.
    assert any(each.startswith("training.sharding.strategy=") for each in found["in_script"])
    assert found["nodes"] == 2
    assert any("train.py's own and stays" in note for note in found["notes"])
    why = {choice["key"]: choice["why"] for choice in found["choices"]}
    assert "training.sharding.strategy" in why
    assert not {MICRO, BATCH, "training.loss"} & why.keys()
    told = ["resources.nodes=2", "resources.gpus=2"]
    plan(SubmitRequest(job=str(OWN), cluster="local", sets=[*told, *found["sets"]]))
    with pytest.raises(ConfigError, match="does not read them"):
        plan(SubmitRequest(job=str(OWN), cluster="local", sets=[*told, *found["in_script"]]))


def test_a_model_of_transformers_is_tuned_within_what_the_script_takes(tmp_path: Path):
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


def test_a_step_that_cannot_be_followed_is_not_tuned():
    models = Path(__file__).parent / "ranks" / "models.py"
    with pytest.raises(UsageError, match="not all of its step could be followed"):
        tuned(OWN, f"{models}:own_kernel", "--gpu", "h100-80", "--nodes", "1")
