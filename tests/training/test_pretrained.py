"""Models of `transformers`: from files into shards, trained, and back for `from_pretrained`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import findings
from safetensors import safe_open
from small_transformers import KINDS, made

from fsdpkit.training import pretrained

pytestmark = pytest.mark.torch
LIBRARIES = (
    *("transformers.modeling_utils", "transformers.models.auto.modeling_auto", "accelerate"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mixtral", "qwen2")),
    "transformers.models.t5.modeling_t5",
)
"""Seconds of each rank's time, if each imports them."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for kind in KINDS:
        made(kind, folder / kind, dtype=torch.bfloat16 if kind == "llama" else torch.float32)
    return folder


@pytest.fixture(scope="module", params=[1, 2, 4], ids=["1 rank", "2 ranks", "4 ranks"])
def found(request: pytest.FixtureRequest, sources: Path) -> dict[str, Any]:
    file = sources / f"found {request.param}.json"
    return findings(request.param, "pretrained.py", file, str(sources), libraries=LIBRARIES)


def tensors(directory: Path) -> dict[str, tuple[list[int], str]]:
    """Name → shape and type, of all files."""
    found = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                found[name] = (part.get_shape(), part.get_dtype())
    return found


@pytest.mark.parametrize("case", ["fsdp2", "fsdp2 checkpointed", "fsdp1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shards_compute_and_train_as_the_whole_model_does(
    found: dict, kind: str, case: str
) -> None:
    here = found[kind][case]
    assert here["before"] < 1e-5
    assert here["losses"] == pytest.approx(here["theirs"], rel=1e-5)
    assert here["losses"][1] < here["losses"][0]


@pytest.mark.parametrize("case", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_export_and_gives_the_same_scores(
    found: dict, sources: Path, kind: str, case: str
) -> None:
    here = found[kind][case]
    assert here["after"] < 1e-5
    exported = Path(here["export"])
    before, after = tensors(sources / kind), tensors(exported)
    assert {name: shape for name, (shape, _) in after.items()} == {
        name: shape for name, (shape, _) in before.items()
    }
    config = json.loads((exported / "config.json").read_text())
    assert {kind for _, kind in after.values()} == {"F32"}
    assert config["dtype"] == "float32"
    assert config["architectures"] == [KINDS[kind][1]]


def test_the_export_has_the_tokenizer_of_the_source(found: dict, sources: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(found["t5"]["fsdp2"]["export"])
    assert (
        theirs("Größe").input_ids
        == AutoTokenizer.from_pretrained(sources / "t5")("Größe")["input_ids"]
    )


def test_a_rank_reads_its_part_of_each_tensor_alone(found: dict, sources: Path) -> None:
    for kind in KINDS:
        size = {"F32": 4, "BF16": 2}
        of_file = [
            size[dtype] * torch.Size(shape).numel()
            for shape, dtype in tensors(sources / kind).values()
        ]
        assert sum(found[kind]["fsdp2"]["read"]) == sum(of_file)


def test_a_head_of_another_task_is_filled_and_exported(sources: Path) -> None:
    """A classifier of three labels on a language model, whose own head is left out."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    asked = []
    found = pretrained(
        sources / "llama",
        LlamaForSequenceClassification,
        config=LlamaConfig.from_pretrained(sources / "llama", num_labels=3, pad_token_id=0),
        otherwise=lambda name, tensor, generator: asked.append((name, [*tensor.shape])),
        leave_out=["lm_head.*"],
    )
    found.fill.check(found.model)
    found.fill("score.weight", torch.zeros(3, 32), torch.Generator())
    assert asked == [("score.weight", [3, 32])]
    exported = found.export.files["config.json"]
    assert len(exported["id2label"]) == 3
    assert exported["architectures"] == ["LlamaForSequenceClassification"]
    assert "score.weight" in found.export.layout
    assert "lm_head.weight" not in found.export.layout
