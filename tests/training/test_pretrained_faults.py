"""Directories that no model can be made of: named with the file, before anything is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_transformers import made

from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError
from fsdpkit.training import pretrained

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for kind in ("llama", "mixtral", "qwen2 tied"):
        made(kind, folder / kind)
    return folder


@pytest.fixture
def copy(sources: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: Path(shutil.copytree(sources / kind, tmp_path / "model"))


def tried(directory: Path) -> None:
    """As `shard` does: the model, then what the files have for it."""
    found = pretrained(directory)
    found.fill.check(found.model)


def config(**changes: Any) -> Damage:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        table = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({k: v for k, v in table.items() if v is not ...}))

    return change


def tensors(change: Callable[[Tensors], object]) -> Damage:
    """`change` made in each file, and the index, if there is one, made again."""

    def rewrite(directory: Path) -> None:
        where = {}
        for file in directory.glob("*.safetensors"):
            content = load_file(file)
            change(content)
            save_file(content, file, metadata={"format": "pt"})
            where |= dict.fromkeys(content, file.name)
        if (directory / INDEX).exists():
            (directory / INDEX).write_text(json.dumps({"weight_map": where}))

    return rewrite


def put(name: str, value: Any) -> Damage:
    return tensors(lambda content: content.update({name: value}))


def renamed(old: str, new: str) -> Damage:
    def change(content: Tensors) -> None:
        for name in [name for name in content if old in name]:
            content[name.replace(old, new)] = content.pop(name)

    return tensors(change)


def without(part: str) -> Damage:
    def change(content: Tensors) -> None:
        for name in [name for name in content if part in name]:
            del content[name]

    return tensors(change)


def text(file: str, content: str) -> Damage:
    return lambda directory: (directory / file).write_text(content)


def only_bin(name: str) -> Damage:
    return lambda directory: (directory / WEIGHTS).rename(directory / name)


def torn(directory: Path) -> None:
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: len(content) // 2])


CASES: dict[str, tuple[str, Damage, type[FsdpkitError], str]] = {
    "pickled weights": ("llama", only_bin("pytorch_model.bin"), NotFoundError, "pytorch_model.bin"),
    "a torn file": ("llama", torn, ConfigError, WEIGHTS),
    "a file of the index is missing": (
        *("mixtral", lambda d: (d / "model-00003-of-00006.safetensors").unlink()),
        *(NotFoundError, "model-00003-of-00006"),
    ),
    "a torn index": ("mixtral", text(INDEX, '{"weight_map": {"a"'), ConfigError, INDEX),
    "an expert is missing": ("mixtral", without("experts.2."), ConfigError, "0, 1, 3"),
    "half of the experts' tensors": ("mixtral", without(".w3."), ConfigError, "w1.weight with 3"),
    "an unknown tensor": ("llama", put("extra", torch.ones(2)), ConfigError, "extra is not"),
    "a missing tensor": ("llama", without("model.norm"), ConfigError, "model.norm.weight"),
    "a prefix of a wrapper": ("llama", renamed("model.", "module.model."), ConfigError, "module"),
    "more layers than files have": (
        *("llama", config(num_hidden_layers=4), ConfigError, "layers.2.self_attn"),
    ),
    "integers": (
        *("llama", put("model.norm.weight", torch.ones(32, dtype=torch.int8))),
        *(ConfigError, "I8"),
    ),
    "another head than the tied one": (
        *("qwen2 tied", put("lm_head.weight", torch.ones(264, 32))),
        *(ConfigError, "lm_head.weight differs"),
    ),
    "no config": ("llama", lambda d: (d / "config.json").unlink(), NotFoundError, "config.json"),
    "a deep config": ("llama", text("config.json", "[" * 200_000), ConfigError, "too deep"),
    "a million layers": (
        "llama",
        config(num_hidden_layers=10**6),
        ConfigError,
        "num_hidden_layers",
    ),
    "quantized": (
        *("llama", config(quantization_config={"quant_method": "gptq"})),
        *(ConfigError, "gptq"),
    ),
    "no class": ("llama", config(architectures=...), ConfigError, "model_class"),
    "a class of another model": (
        *("llama", config(architectures=["T5ForConditionalGeneration"])),
        *(ConfigError, "T5ForConditionalGeneration"),
    ),
    "heads that do not divide": ("llama", config(num_attention_heads=5), ConfigError, "heads"),
    "key heads that do not": ("llama", config(num_key_value_heads=3), ConfigError, "key_value"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(copy: Callable[[str], Path], case: str) -> None:
    kind, damage, error, noun = CASES[case]
    directory = copy(kind)
    damage(directory)
    with pytest.raises(error) as raised:
        tried(directory)
    assert noun in str(raised.value)
    assert str(directory) in str(raised.value)


def test_no_code_of_the_directory_runs(copy: Callable[[str], Path], tmp_path: Path) -> None:
    directory, trace = copy("llama"), tmp_path / "it ran"
    (directory / "theirs.py").write_text(f"open({str(trace)!r}, 'w')\n")
    config(model_type="foo", auto_map={"AutoConfig": "theirs.Config"})(directory)
    with pytest.raises(ConfigError, match="custom code"):
        tried(directory)
    assert not trace.exists()
