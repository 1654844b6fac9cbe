"""Weights in files: what is written is read again bit for bit, what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launch import findings
from model import T5, T5Config
from safetensors.torch import load_file, save_file
from small_t5 import DIMENSIONS, V1_0, V1_1, build
from weights import check, export, load

from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError, StorageError

UNTIED, TIED = T5Config(**DIMENSIONS, **V1_1), T5Config(**DIMENSIONS, **V1_0)


def saved(folder: Path, config: T5Config = UNTIED, **changes: torch.Tensor | None) -> Path:
    """An export of a small model, some tensors replaced, added, or (None) left out."""
    model = build(**{k: getattr(config, k) for k in V1_1})
    export(folder, model, config)
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


def values_of(model: T5) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [n for n in one if not torch.equal(one[n], other[n])] == []


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("max_file_bytes", [10**9, 3000, 1], ids=["one file", "some", "each"])
def test_what_was_exported_is_read_again_bit_for_bit(tmp_path, config, max_file_bytes):
    model = build(**{k: getattr(config, k) for k in V1_1})
    export(tmp_path / "x", model, config, max_file_bytes=max_file_bytes)
    files = sorted(p.name for p in (tmp_path / "x").iterdir())
    assert ("model.safetensors.index.json" in files) == (max_file_bytes < 10**9)
    assert_same(values_of(load(tmp_path / "x")), values_of(model))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]  # nothing unfinished stays


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_become_float32(tmp_path, dtype):
    value = torch.randn(12).to(dtype)
    folder = saved(tmp_path / "x", **{"encoder.final_layer_norm.weight": value})
    found = load(folder).encoder.final_layer_norm.weight
    assert found.dtype == torch.float32
    assert torch.equal(found.detach(), value.float())


NORM = "decoder.block.1.layer.0.layer_norm.weight"
WRONG = {
    "missing": ({NORM: None}, [NORM, "missing", "[12]"]),
    "another shape": ({NORM: torch.ones(13)}, [NORM, "[13]", "[12]"]),
    "more blocks": (
        {"encoder.block.2.layer.0.layer_norm.weight": torch.ones(12)},
        ["encoder.block.2", "belongs to no T5"],
    ),
    "integers": ({NORM: torch.ones(12, dtype=torch.int8)}, [NORM, "I8", "F32"]),
    "vocabulary": (
        {"shared.weight": torch.zeros(50, 12), "lm_head.weight": torch.zeros(50, 12)},
        ["shared.weight", "[50, 12]", "[40, 12]"],
    ),
    "no head": ({"lm_head.weight": None}, ["lm_head.weight", "tie_word_embeddings = false"]),
    "two embeddings": (
        {"encoder.embed_tokens.weight": torch.zeros(40, 12)},
        ["encoder.embed_tokens.weight differs from shared.weight"],
    ),
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_file_that_does_not_fit_is_refused_by_file_and_tensor(tmp_path, changes, words):
    folder = saved(tmp_path / "x", **changes)
    with pytest.raises(ConfigError) as caught:
        check(folder, UNTIED)
    for word in [str(folder), *words]:
        assert word in str(caught.value)


def test_old_files_with_aliases_and_an_unused_table_are_read(tmp_path):
    whole = load_file(saved(tmp_path / "x") / "model.safetensors")
    shared = whole["shared.weight"]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    old = saved(
        tmp_path / "old",
        **{
            "shared.weight": None,
            "encoder.embed_tokens.weight": shared,
            "decoder.embed_tokens.weight": shared.clone(),
            unused: torch.zeros(32, 3),
        },
    )
    assert_same(values_of(load(old)), values_of(load(tmp_path / "x")))


def test_a_tied_head_that_is_not_scaled_is_written_apart_for_transformers_4(tmp_path):
    """There one key both ties and scales: false, and a head of its own with the same values."""
    config = replace(TIED, scale_decoder_outputs=False)
    export(tmp_path / "x", build(**V1_0), config)
    table = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (table["tie_word_embeddings"], table["scale_decoder_outputs"]) == (False, False)
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["shared.weight"])
    read = replace(TIED, tie_word_embeddings=False, scale_decoder_outputs=False)
    assert check(tmp_path / "x", read).tie_word_embeddings


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path):
    folder = tmp_path / "x"
    export(folder, build(**V1_1), UNTIED, max_file_bytes=3000)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    where = table["weight_map"]

    def refused(kind: type[FsdpkitError], match: str, **changes: str) -> None:
        index.write_text(json.dumps({"weight_map": {**where, **changes}}))
        with pytest.raises(kind, match=match):
            check(folder, UNTIED)

    refused(NotFoundError, "gone.safetensors: no such file", **{NORM: "gone.safetensors"})
    refused(ConfigError, f"{NORM} is missing, but", **{NORM: where["shared.weight"]})
    refused(ConfigError, "not the name of a file beside it", **{NORM: "../x.safetensors"})


@settings(max_examples=40, suppress_health_check=[*HealthCheck])
@given(content=st.binary(max_size=200), as_index=st.booleans())
def test_arbitrary_bytes_are_refused_and_never_crash(tmp_path, content, as_index):
    name = "model.safetensors.index.json" if as_index else "model.safetensors"
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigError, NotFoundError)):
        check(tmp_path, UNTIED)


def test_an_export_takes_the_place_of_an_earlier_one(tmp_path):
    export(tmp_path / "x", build(**V1_1), UNTIED, max_file_bytes=3000)
    export(tmp_path / "x", build(**V1_0), TIED)
    names = {p.name for p in (tmp_path / "x").iterdir()}
    said = {"config.json", "generation_config.json", "fsdpkit-export.json"}
    assert names == {*said, "model.safetensors"}


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path, monkeypatch):
    model = build(**V1_1)
    export(tmp_path / "x", model, UNTIED)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fsdpkit.training.export._save", full)
    with pytest.raises(StorageError, match=r"exported to .*x: .*No space left on device"):
        export(tmp_path / "x", build(**V1_0), TIED)
    assert_same(values_of(load(tmp_path / "x")), values_of(model))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("sharded")
    export(folder / "untied", build(**V1_1), UNTIED, max_file_bytes=3000)
    export(folder / "tied", build(**V1_0), TIED)
    return findings(2, "weights_io", folder)


ENGINES = [
    "fsdp2",
    "fsdp2 checkpointed",
    "fsdp2 no_shard",
    "fsdp2 evaluated in bfloat16",
    "fsdp1",
    "fsdp1 tied",
    "fsdp1 no_shard",
    "fsdp1 evaluated in bfloat16",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_sharded_models_read_files_and_export_the_same_bits(found, engine):
    assert found[engine] == []


def test_no_rank_reads_more_than_a_parameter_at_a_time(found):
    assert found["most read at once"] == 1
