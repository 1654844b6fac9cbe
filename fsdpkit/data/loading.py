"""What `[training.data]` names, as token ids: Python's own text, a file, or a prepared directory.

Every rank calls `load` and gets the same rows in the same order; which rank trains on which row is
the sampler's business. A file is tokenised into memory by each rank, which suits some hundred
megabytes; `fsdpkit data prepare` does it once for anything larger.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from fsdpkit.config.training import DataSettings
from fsdpkit.data import python_docs
from fsdpkit.data.index import read_index
from fsdpkit.data.prepared import open_prepared
from fsdpkit.data.readers import input_files, read, whole
from fsdpkit.data.rows import BadRows, Row, sift
from fsdpkit.data.tokenizers import Tokenizer, load_tokenizer
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.errors import ConfigError

__all__ = ["BadRows", "load", "load_held_out"]

PYTHON_DOCS = "python-docs"


def load(data: DataSettings) -> tuple[Tokens, Tokenizer, BadRows]:
    """The token ids of the first `limit` rows, what made them, and the rows that were left out. Two
    fields for the tasks with source and target, one for span corruption. Raises NotFoundError for a
    missing file, ConfigError, with file and row, for one that cannot be used."""
    tokens, tokenizer, bad = _load(data, data.source, data.limit)
    check_prefix(data, tokenizer)
    return tokens, tokenizer, bad


def load_held_out(data: DataSettings, tokenizer: Tokenizer) -> tuple[Tokens, BadRows]:
    """All rows of `held_out_source`, made with the `tokenizer` of what is trained on. Raises as
    `load`, and ConfigError for data that was prepared with another tokenizer."""
    assert data.held_out_source is not None
    tokens, its_own, bad = _load(_with_tokenizer_of(data), data.held_out_source, 0)
    if (its_own.name, its_own.vocab_size) != (tokenizer.name, tokenizer.vocab_size):
        raise ConfigError(
            f"{data.held_out_source}: was made with the tokenizer {its_own.name}, and "
            f"{data.source} with {tokenizer.name}: prepare both with one tokenizer."
        )
    return tokens, bad


def _with_tokenizer_of(data: DataSettings) -> DataSettings:
    """`data` with the tokenizer named that its source was prepared with, if it was."""
    source = Path(data.source)
    if data.tokenizer is not None or data.source == PYTHON_DOCS or not source.is_dir():
        return data
    file = read_index(source).preparation.tokenizer.file
    name = file if file == "bytes" else str(source / file)
    return msgspec.structs.replace(data, tokenizer=name)


def _load(data: DataSettings, source: str, limit: int) -> tuple[Tokens, Tokenizer, BadRows]:
    fields = fields_of(data)
    if source != PYTHON_DOCS and Path(source).is_dir():
        directory = Path(source)
        tokens, tokenizer, bad = open_prepared(
            directory, len(fields), data.tokenizer, data.source_prefix
        )
        return tokens.first(limit) if limit else tokens, tokenizer, bad
    tokenizer = load_tokenizer(data.tokenizer or "bytes")
    bad = BadRows()

    def encoded() -> Iterator[Encoded]:
        nonlocal bad
        left = limit or sys.maxsize
        if source == PYTHON_DOCS:
            docs = islice(_python_docs(data), left)
            while rows := list(islice(docs, 1024)):
                yield encode_rows(tokenizer, rows, len(fields), data.source_prefix)
            return
        for path in input_files(source):
            for batch in read(whole(path), fields):
                bad = bad.and_also(sift(batch, data.bad_rows))
                yield encode_rows(tokenizer, batch.rows[:left], len(fields), data.source_prefix)
                left -= len(batch.rows)
                if left <= 0:
                    return

    tokens = Tokens.from_batches(encoded(), len(fields), tokenizer.vocab_size)
    if not len(tokens):
        raise ConfigError(f"{source}: {no_rows(bad)}")
    return tokens, tokenizer, bad


def check_prefix(data: DataSettings, tokenizer: Tokenizer) -> None:
    """Raises ConfigError for a prefix that leaves no room for a text of its row."""
    taken = len(tokenizer.encode(data.source_prefix)) if data.source_prefix else 0
    if taken and taken >= data.source_length - 1:  # the end of a text takes one
        raise ConfigError(
            f"training.data.source_prefix {data.source_prefix!r} takes {taken} tokens and the end "
            f"of a text one: nothing of it is left in source_length {data.source_length}. Shorten "
            "the prefix, or raise training.data.source_length."
        )


def fields_of(data: DataSettings) -> list[str]:
    """Names of the fields that the task reads."""
    if data.task == "span-corruption":
        return [data.source_field]
    return [data.source_field, data.target_field]


def encode_rows(
    tokenizer: Tokenizer, rows: Sequence[Row], fields: int, source_prefix: str = ""
) -> Encoded:
    """The ids of all texts of `rows`, and their lengths [rows, fields]. `source_prefix` comes
    before the first text of each row."""
    if source_prefix:
        rows = [(source_prefix + source, *others) for source, *others in rows]
    ids, lengths = tokenizer.encode_flat([text for row in rows for text in row])
    return Encoded(ids, lengths.reshape(-1, fields))


def no_rows(bad: BadRows) -> str:
    """The sentence for data in which no row can be used."""
    if not bad.count:
        return "holds no rows."
    return f"no usable rows: all {bad.count} are bad, the first is {bad.examples[0]}."


def _python_docs(data: DataSettings) -> Iterable[Row]:
    if data.task == "pairs":
        raise ConfigError(
            'task "pairs" needs a file: set training.data.source to the path of a .jsonl, .csv or '
            ".parquet file."
        )
    return python_docs.topics() if data.task == "span-corruption" else python_docs.docstrings()
