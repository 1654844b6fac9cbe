"""Small data of every format, and small tokenizers trained on it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.data import python_docs

Rows = Sequence[dict[str, Any]]
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
"""Options that train a SentencePiece model with T5's special ids."""


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, rows: Rows) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Rows, **options: Any) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, **options)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    ".jsonl": write_jsonl,
    ".csv": write_csv,
    ".parquet": write_parquet,
}


def pairs(count: int) -> list[dict[str, Any]]:
    """`count` rows of text with line breaks, quotes, commas and letters beyond ASCII."""
    return [
        {
            "id": i,
            "source": f'What is "{i}" + {i},\nin Größe ☃?' * (1 + i % 7),
            "target": f"{2 * i}, and {'é' * (i % 5)}.",
        }
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Text to train a tokenizer on."""
    texts = (text for (text,) in python_docs.topics())
    return [line for text in texts for line in text.splitlines() if len(line) > 20][:1500]


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """A byte-level BPE with T5's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(10))]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sentences, trainer)
    # What a released file may carry and nobody wants here.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def train_sentencepiece(path: Path, sentences: Sequence[str], **options: Any) -> Path:
    import sentencepiece

    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=300,
            minloglevel=2,
            **options,
        )
    return path


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """A SentencePiece model with T5's ids and no sentinels, as T5's own."""
    path = tmp_path_factory.mktemp("tokenizer") / "spiece.model"
    return train_sentencepiece(path, sentences, **T5_IDS)
