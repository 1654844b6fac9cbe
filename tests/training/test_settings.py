"""What `[training]` accepts, and what is refused before a job is queued."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import msgspec
import pytest
from launch import REPOSITORY, environment
from model import T5, T5Config

from fsdpkit.config.loading import read_toml
from fsdpkit.config.training import (
    PRESETS,
    PresetName,
    TrainingSettings,
    load_settings,
    problems,
)
from fsdpkit.errors import ConfigError


def test_importing_the_settings_does_not_import_torch():
    code = "import fsdpkit.config.training, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_the_shipped_job_is_the_default_configuration():
    table = read_toml(REPOSITORY / "jobs" / "t5.toml")["training"]
    assert load_settings(table) == TrainingSettings()
    assert problems(TrainingSettings(), 8, 4) == []


def test_every_field_has_one_plain_sentence():
    sections = [TrainingSettings]
    for section in sections:
        schema = msgspec.json.schema(section)["$defs"][section.__name__]["properties"]
        for field in msgspec.structs.fields(section):
            section_type = get_args(field.type)[0]
            if isinstance(section_type, type) and issubclass(section_type, msgspec.Struct):
                sections.append(section_type)
            sentence = schema[field.name].get("description", "")
            assert sentence.endswith("."), f"{section.__name__}.{field.name}: {sentence!r}"
    assert len(sections) == 7


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
        ("steps=0", "at least 1"),
        ("model.d_model=-4", "d_model"),
        ("sharding.engine=fsdp3", "engine"),
        ("precision.param=float16", "param"),  # no loss scaler yet: refused rather than diverging
        ("optimizer.lr=nan", "lr"),
        ("data.target_length=1", "target_length"),
        ("model=tiny", "model"),
        ("steps", "KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_refused_by_name(item, expected):
    with pytest.raises(ConfigError, match=expected):
        load_settings({}, [item])


@pytest.mark.parametrize(
    ("sets", "world_size", "sentence"),
    [
        (["sharding.shard_size=2"], 8, "only for hybrid_shard"),
        (["sharding.strategy=hybrid_shard", "sharding.shard_size=3"], 8, "one of 1, 2, 4, 8"),
        (["sharding.limit_all_gathers=false"], 8, 'engine = "fsdp1"'),
        (["sharding.strategy=no_shard", "sharding.cpu_offload=true"], 8, "needs sharded weights"),
        (
            ["sharding.engine=fsdp1", "sharding.cpu_offload=true", "accumulate=2"],
            8,
            "raise batch_size",
        ),
        (["data.task=pairs"], 8, "needs a file"),
        (["data.source=x.parquet", "data.task=pairs"], 8, "end in .jsonl or .csv"),
        (["data.source=x.csv"], 8, "Python's own sources only"),
        (["data.source=x.csv", "data.task=pairs", "data.target_field=source"], 8, "two fields"),
        (["model.vocab_size=100"], None, "bytes need 259 ids"),
        (["optimizer.warmup_steps=500"], None, "never be reached"),
    ],
)
def test_a_wrong_combination_is_told_with_its_remedy(sets, world_size, sentence):
    (found,) = problems(load_settings({}, sets), world_size)
    assert sentence in found


def test_hybrid_groups_default_to_one_node():
    settings = load_settings({}, ["sharding.strategy=hybrid_shard"])
    assert problems(settings, 8, 4) == []
    assert "groups of 3" in problems(settings, 8, 3)[0]


def test_presets_and_their_names_agree():
    assert set(PRESETS) == set(PresetName.__args__)


@pytest.mark.parametrize(
    ("preset", "millions"),  # parameters as published: Raffel 2020 §3.1 and 3.7, Xue 2022 table 1
    [
        ("t5-small", 60.5), ("t5-base", 222.9), ("t5-large", 737.7), ("t5-3b", 2851.6),
        ("t5-11b", 11307.3), ("t5-v1.1-small", 77), ("t5-v1.1-base", 247.6),
        ("t5-v1.1-large", 783.2), ("t5-v1.1-xl", 2849.8), ("t5-v1.1-xxl", 11135.4),
        ("byt5-small", 299.6), ("byt5-base", 581.7), ("byt5-large", 1228.0), ("byt5-xl", 3743.0),
        ("byt5-xxl", 12921),
    ],
)  # fmt: skip
def test_published_sizes_have_the_published_number_of_parameters(preset, millions):
    import torch

    with torch.device("meta"):
        model = T5(T5Config(**load_settings({}, [f"model.preset={preset}"]).model.dimensions()))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=2e-3)
