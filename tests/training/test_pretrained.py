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


WAYS = ("fsdp2", "fsdp2 checkpointed", "fsdp1")
CASES = [
    *((2, kind, way) for kind in KINDS for way in WAYS),
    # On one rank and on four.
    *((1, "llama", "fsdp2"), (4, "mixtral", "fsdp1"), (4, "t5", "fsdp2 checkpointed")),
]
Found = dict[tuple[int, str, str], dict[str, Any]]
of_each_case = pytest.mark.parametrize(("ranks", "kind", "way"), CASES)


@pytest.fixture(scope="module")
def found(sources: Path) -> Found:
    every = {}
    for ranks in (1, 2, 4):
        cases = json.dumps([(kind, way) for on, kind, way in CASES if on == ranks])
        answers = findings(ranks, "pretrained", sources, cases, libraries=LIBRARIES)
        every.update({(ranks, kind, way): answer for kind, way, answer in answers})
    return every


def tensors(directory: Path) -> dict[str, tuple[list[int], str]]:
    """Name → shape and type, of all files."""
    found = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                found[name] = (part.get_shape(), part.get_dtype())
    return found


@of_each_case
def test_the_shards_compute_and_train_as_the_whole_model_does(
    found: Found, ranks: int, kind: str, way: str
) -> None:
    here = found[ranks, kind, way]
    assert here["before"] < 1e-5
    assert here["losses"] == pytest.approx(here["theirs"], rel=1e-5)
    assert here["losses"][1] < here["losses"][0]


@of_each_case
def test_transformers_reads_the_export_and_gives_the_same_scores(
    found: Found, sources: Path, ranks: int, kind: str, way: str
) -> None:
    here = found[ranks, kind, way]
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


def test_the_export_has_the_tokenizer_of_the_source(found: Found, sources: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(found[2, "t5", "fsdp2"]["export"])
    assert (
        theirs("Größe").input_ids
        == AutoTokenizer.from_pretrained(sources / "t5")("Größe")["input_ids"]
    )


@pytest.mark.parametrize(
    ("ranks", "kind", "way"), [case for case in CASES if case[2].startswith("fsdp2")]
)
def test_a_rank_reads_its_part_of_each_tensor_alone(
    found: Found, sources: Path, ranks: int, kind: str, way: str
) -> None:
    size = {"F32": 4, "BF16": 2}
    of_file = [
        size[dtype] * torch.Size(shape).numel() for shape, dtype in tensors(sources / kind).values()
    ]
    assert sum(found[ranks, kind, way]["read"]) == sum(of_file)


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
