"""What `[training]` accepts, and what is refused before a job is queued."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from launch import REPOSITORY
from model import T5, T5Config

from fsdpkit.config.loading import read_toml
from fsdpkit.config.training import (
    TrainingSettings,
    load_settings,
    problems,
)
from fsdpkit.errors import ConfigError
from tests.rows import pairs


def test_the_shipped_job_is_the_default_configuration():
    table = read_toml(REPOSITORY / "jobs" / "t5.toml")["training"]
    assert load_settings(table) == TrainingSettings()
    assert problems(TrainingSettings(), 8, 4) == []


def test_gradients_are_summed_in_float32_unless_told_otherwise():
    assert TrainingSettings().precision.reduce == "float32"


@pytest.mark.parametrize("prefix", ["", "training."])
def test_overrides_are_typed_and_may_carry_the_table_s_name(prefix):
    settings = load_settings(
        {"steps": 7}, [f"{prefix}model.d_model=64", f"{prefix}sharding.cpu_offload=true"]
    )
    assert (settings.steps, settings.model.d_model, settings.sharding.cpu_offload) == (7, 64, True)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("stepz=3", "steps"),
        ("steps=abc", "steps"),
        ("steps=-1", "at least 0"),
        ("model.d_model=-4", "d_model"),
        ("sharding.engine=fsdp3", "engine"),
        ("precision.param=float8", "param"),
        ("micro_batch=half", "micro_batch"),
        ("micro_batch=0", "micro_batch"),
        ("sharding.wrap_names=encoder", "wrap_names"),
        ("optimizer.groups=[{weight_decay=0.0}]", "match"),
        ("optimizer.lr=nan", "lr"),
        ("data.target_length=1", "target_length"),
        ("model=tiny", "model"),
        ("steps", "KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_refused_by_name(item, expected):
    with pytest.raises(ConfigError, match=expected):
        load_settings({}, [item])


FILE = Path(__file__).with_name("settings_together.txt")
TOGETHER = [
    *(
        (shlex.split(sets), told)
        for sets, told in pairs(Path(__file__).with_name("settings_together.txt"))
    ),
    (["data.source_prefix=" + "x" * 95], "nothing of a text is left"),
    (["data.source_prefix=" + "x" * 94], ""),
    (["data.task=span-corruption", "data.source_prefix=fill: "], "leave it unset"),
    (["data.source=prepared", "data.task=pairs", "data.source_prefix=" + "x" * 200], ""),
]


@pytest.mark.parametrize(("sets", "told"), TOGETHER)
def test_what_does_not_fit_together_is_told_with_its_remedy_and_the_rest_left_alone(sets, told):
    found = problems(load_settings({}, sets), 8, 4)
    assert len(found) == bool(told), found
    assert told in "".join(found)


def config_json(path: Path, **changes: object) -> Path:
    table = {
        "model_type": "t5", "vocab_size": 300, "d_model": 16, "d_ff": 32, "d_kv": 8,
        "num_heads": 2, "num_layers": 3, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False, "architectures": ["T5ForConditionalGeneration"],
        "n_positions": 512, **changes,
    }  # fmt: skip
    path.write_text(json.dumps({k: v for k, v in table.items() if v is not ...}))
    return path


def test_a_config_json_takes_the_preset_s_place_and_single_dimensions_its(tmp_path):
    path = config_json(tmp_path / "config.json")
    settings = load_settings({}, [f"model.config={path}", "model.num_layers=1"])
    dimensions = settings.model.dimensions()
    assert (dimensions["d_model"], dimensions["num_layers"]) == (16, 1)
    assert dimensions["num_decoder_layers"] == 3, "as many as the encoder has, unless said"
    assert "n_positions" not in dimensions
    assert T5Config(**dimensions).feed_forward_proj == "gated-gelu"
    assert load_settings({}, [f"model.pretrained={tmp_path}"]).model.dimensions()["d_ff"] == 32


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"d_modle": 4}, "'d_modle' is no key of a T5 configuration. Did you mean 'd_model'?"),
        ({"d_model": 0}, "d_model is 0, but must be a whole number above zero"),
        ({"num_heads": 2.5}, "num_heads is 2.5"),
        ({"dropout_rate": 1.5}, "dropout_rate is 1.5, but must be a number from 0 to below 1"),
        ({"feed_forward_proj": "swish"}, "feed_forward_proj is 'swish'"),
        ({"tie_word_embeddings": "no"}, "must be true or false"),
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"d_ff": ...}, "d_ff missing"),
    ],
)
def test_a_config_json_of_no_t5_is_refused_by_file_and_key(tmp_path, changes, sentence):
    path = config_json(tmp_path / "config.json", **changes)
    with pytest.raises(ConfigError, match=re.escape(sentence)) as raised:
        load_settings({}, [f"model.config={path}"]).model.dimensions()
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("preset", "millions"),  # parameters as published: Raffel 2020 §3.1 and 3.7, Xue 2022 table 1
    [
        ("t5-small", 60.5), ("t5-base", 222.9), ("t5-large", 737.7), ("t5-3b", 2851.6),
        ("t5-11b", 11307.3), ("t5-v1.1-small", 77), ("t5-v1.1-base", 247.6),
        ("t5-v1.1-large", 783.2), ("t5-v1.1-xl", 2849.8), ("t5-v1.1-xxl", 11135.4),
        ("byt5-small", 299.6), ("byt5-base", 581.7), ("byt5-large", 1228.0), ("byt5-xl", 3743.0),
        ("byt5-xxl", 12921), ("mt5-small", 300), ("mt5-xxl", 12900),
    ],
)  # fmt: skip
def test_published_sizes_have_the_published_number_of_parameters(preset, millions):
    import torch

    with torch.device("meta"):
        model = T5(T5Config(**load_settings({}, [f"model.preset={preset}"]).model.dimensions()))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=2e-3)
