"""Files that a job names are looked at before it is queued; what is wrong is told, and where."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.data.inputs import input_problems
from fsdpkit.data.preparing import prepare
from tests.data.conftest import (
    T5_IDS,
    WRITERS,
    pairs,
    train_sentencepiece,
    write_jsonl,
    write_parquet,
)
from tests.programs import ran


def job(**keys: Any) -> TrainingSettings:
    """Settings, in which `data__task` stands for data.task."""
    table: dict[str, Any] = {}
    for key, value in keys.items():
        section, name = key.split("__")
        table.setdefault(section, {})[name] = value
    return load_settings(table)


def told(workdir: Path, ranks: int | None = 2, **keys: Any) -> list[str]:
    settings = job(**{"data__task": "pairs", **keys})
    return input_problems(settings, ranks, workdir)


def test_the_default_and_good_files_of_every_format_have_no_problems(tmp_path: Path) -> None:
    assert input_problems(job(), 8) == []
    for suffix, write in WRITERS.items():
        write(tmp_path / f"a{suffix}", pairs(20))
        assert told(tmp_path, data__source=f"a{suffix}") == []
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    assert told(tmp_path, data__source="a.txt", data__task="span-corruption") == []
    assert told(tmp_path, data__source="*.jsonl") == []


BAD_FILES = [
    ("none.jsonl", None, r"none\.jsonl: no such file"),
    ("a.jsonl", b"", r"a\.jsonl: is empty"),
    ("a.jsonl", b"\n\n", r"a\.jsonl: holds no rows"),
    ("a.jsonl", b'{"source": "a"}', r"a\.jsonl, line 1: no field 'target'; the row has source"),
    ("a.jsonl", b'{"source": "a", "target": NaN}', r"a\.jsonl, line 1: .* float nan"),
    ("a.jsonl", b'{"source": "caf\xe9", "target": "b"}', r"a\.jsonl, line 1: not UTF-8"),
    ("a.csv", b"text,target\na,b\n", r"a\.csv: no column 'source'; the header is text, target"),
    ("a.csv", b"source,target\na,b\nc\n", r"a\.csv, line 3: has 1 fields, the header 2"),
    ("a.parquet", b"PAR1 and then no more", r"a\.parquet: not a Parquet file, or .*cut short"),
    ("a.csv", b"source,target\na,b\n", r"a\.csv: 1 row for 2 ranks"),
]


@pytest.mark.parametrize(("name", "content", "expected"), BAD_FILES)
def test_a_bad_file_is_one_sentence_with_its_place(
    name: str, content: bytes | None, expected: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (problem,) = told(tmp_path, data__source=name)
    assert re.search(expected, problem), problem


def test_fewer_rows_than_ranks_are_told_where_all_rows_were_seen(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(7))
    assert told(tmp_path, 7, data__source="a.jsonl") == []
    assert told(tmp_path, None, data__source="a.jsonl") == []
    assert "7 rows for 8 ranks" in told(tmp_path, 8, data__source="a.jsonl")[0]
    write_jsonl(tmp_path / "large.jsonl", [{"source": "x" * 600_000, "target": "y"}] * 3)
    assert told(tmp_path, 8, data__source="large.jsonl") == []


def test_prepared_data_must_be_complete_and_for_this_job(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", pairs(5))
    prepare([str(source)], tmp_path / "out", job(data__task="pairs").data)
    named = {"data__source": "out"}
    assert told(tmp_path, **named) == []
    assert told(tmp_path, **named, data__tokenizer="bytes") == []
    assert "5 rows for 6 ranks" in told(tmp_path, 6, **named)[0]
    (problem,) = told(tmp_path, **named, data__task="span-corruption")
    assert "was prepared for the task pairs, not span-corruption" in problem
    problem = told(tmp_path, **named, data__tokenizer=str(tokenizer_json))[0]
    assert f"was prepared with the tokenizer bytes, which is not {tokenizer_json}" in problem
    (tmp_path / "out" / "index.json").rename(tmp_path / "out" / "preparation.json")
    assert "the preparation is not complete" in told(tmp_path, **named)[0]
    (tmp_path / "empty").mkdir()
    assert "holds no index.json" in told(tmp_path, data__source="empty")[0]


def test_ids_beyond_the_models_vocabulary_are_told(
    tmp_path: Path, tokenizer_json: Path, sentencepiece_model: Path, sentences: list[str]
) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(5))
    settings = {"data__source": "a.jsonl", "data__tokenizer": str(tokenizer_json)}
    (problem,) = told(tmp_path, **settings)
    assert "tokenizer.json: has ids up to 499" in problem
    assert "vocab_size of the model (tiny-byt5) is 384" in problem
    assert "training.model.vocab_size to 500" in problem
    assert told(tmp_path, **settings, model__vocab_size=500) == []
    # T5's sentinels lie above a SentencePiece model's own 300 ids, where they are used.
    settings["data__tokenizer"] = str(sentencepiece_model)
    assert told(tmp_path, **settings) == []
    settings |= {"data__task": "span-corruption"}
    assert "ids up to 399" in told(tmp_path, **settings)[0]
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", job(**settings).data)
    settings = {"data__task": "span-corruption", "data__source": "out"}
    assert "out/tokenizer.model: has ids up to 399" in told(tmp_path, **settings)[0]


TINY = {
    "vocab_size": 384, "d_model": 16, "d_ff": 32, "d_kv": 4, "num_heads": 2, "num_layers": 2,
    "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip


def t5_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Hugging Face T5 v1.1 with the dimensions TINY."""
    attention = {"q": (8, 16), "k": (8, 16), "v": (8, 16), "o": (16, 8)}
    dense = {"wi_0": (32, 16), "wi_1": (32, 16), "wo": (16, 32)}
    found: dict[str, tuple[int, ...]] = {"shared.weight": (384, 16), "lm_head.weight": (384, 16)}
    for stack, blocks in (("encoder", 2), ("decoder", 3)):
        layers = ["SelfAttention", "EncDecAttention", "DenseReluDense"]
        layers = [name for name in layers if stack == "decoder" or name != "EncDecAttention"]
        for block in range(blocks):
            for layer, name in enumerate(layers):
                at = f"{stack}.block.{block}.layer.{layer}"
                parts = dense if name == "DenseReluDense" else attention
                found |= {f"{at}.{name}.{part}.weight": shape for part, shape in parts.items()}
                found[f"{at}.layer_norm.weight"] = (16,)
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found |= {bias: (32, 2), f"{stack}.final_layer_norm.weight": (16,)}
    return found


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in two files with an index, as transformers names them."""
    path = tmp_path_factory.mktemp("t5")
    (path / "config.json").write_text(json.dumps({**TINY, "model_type": "t5"}))
    files: dict[str, dict[str, Any]] = {}
    for number, (name, shape) in enumerate(t5_shapes().items()):
        file = f"model-0000{1 + number % 2}-of-00002.safetensors"
        files.setdefault(file, {})[name] = np.zeros(shape, np.float32)
    for file, tensors in files.items():
        save_file(tensors, path / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def changed(pretrained: Path, directory: Path, **config: Any) -> Path:
    """A copy with another config.json."""
    directory.mkdir()
    for path in pretrained.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    table = json.loads((pretrained / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**table, **config}))
    return directory


def of_model(directory: Path, **keys: Any) -> list[str]:
    return input_problems(job(model__pretrained=directory.name, **keys), 2, directory.parent)


def test_weights_that_fit_their_config_have_no_problems(pretrained: Path) -> None:
    assert of_model(pretrained) == []


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("vocab_size", 400, r"tensor shared\.weight is \[384, 16\].*\[400, 16\]"),
        ("d_model", 24, r"tensor shared\.weight is \[384, 16\]"),
        ("d_ff", 40, r"DenseReluDense\.wi_0\.weight is \[32, 16\]"),
        ("d_kv", 8, r"SelfAttention\.q\.weight is \[8, 16\]"),
        ("num_layers", 4, "holds 2 encoder blocks, but num_layers is 4"),
        ("num_decoder_layers", 2, "holds 3 decoder blocks, but num_decoder_layers is 2"),
        ("feed_forward_proj", "relu", r"has no tensor encoder.*DenseReluDense\.wi\.weight"),
    ],
)
def test_weights_of_other_dimensions_are_told_by_file_and_tensor(
    key: str, value: Any, tensor: str, pretrained: Path, tmp_path: Path
) -> None:
    problems = of_model(changed(pretrained, tmp_path / "t5", **{key: value}))
    assert re.search(tensor, problems[0]), problems
    if "tensor" in tensor and "no tensor" not in tensor:
        assert re.search(r"t5/model-0000\d-of-0000\d\.safetensors: ", problems[0])


def test_looking_needs_neither_numpy_nor_any_reader_package(
    tmp_path: Path, tokenizer_json: Path, sentences: list[str]
) -> None:
    write_parquet(tmp_path / "a.parquet", pairs(5))
    train_sentencepiece(tmp_path / "a.model", sentences[:500], **T5_IDS)
    program = (
        "import sys\n"
        "from fsdpkit.config.training import load_settings\n"
        "from fsdpkit.data.inputs import input_problems\n"
        "for tokenizer in ('a.model', sys.argv[1]):\n"
        "    sets = ['data.source=a.parquet', 'data.task=pairs', f'data.tokenizer={tokenizer}']\n"
        "    print(input_problems(load_settings({}, [*sets, 'model.vocab_size=500']), 2))\n"
        "heavy = {'numpy', 'torch', 'pyarrow', 'tokenizers', 'sentencepiece', 'safetensors'}\n"
        "print(heavy & {name.partition('.')[0] for name in sys.modules})\n"
    )
    done = ran(
        [sys.executable, "-c", program, str(tokenizer_json)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines() == ["[]", "[]", "set()"], done.stderr


@pytest.mark.parametrize("name", ["google/flan-t5-small", "t5-small"])
@pytest.mark.parametrize("key", ["model__pretrained", "model__config", "data__tokenizer"])
def test_a_name_on_the_hub_where_a_path_is_wanted_is_told_how_to_get_it(
    key: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = input_problems(job(**{key: name}), 2)
    directory = name.rpartition("/")[2]
    assert f"hf download {name} --local-dir {directory} (pip install" in problem
