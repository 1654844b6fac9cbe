"""What `[training.data]` names, as token ids: Python's own text, a file, or a prepared directory.

Every rank calls `load` and gets the same rows in the same order; which rank trains on which row is
the sampler's business. A file is tokenised into memory by each rank, which suits some hundred
megabytes; `fsdpkit data prepare` does it once for anything larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from fsdpkit.config.training import DataSettings
from fsdpkit.data import python_docs
from fsdpkit.data.prepared import open_prepared
from fsdpkit.data.readers import input_files, read, whole
from fsdpkit.data.rows import BadRows, Row, sift
from fsdpkit.data.tokenizers import Tokenizer, load_tokenizer
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.errors import ConfigError

__all__ = ["BadRows", "load"]

PYTHON_DOCS = "python-docs"


def load(data: DataSettings) -> tuple[Tokens, Tokenizer, BadRows]:
    """The token ids of all rows, what made them, and the rows that were left out.

    Two fields for the tasks with source and target, one for span corruption. Raises NotFoundError
    for a missing file, ConfigError, with file and row, for one that cannot be used.
    """
    fields = fields_of(data)
    if data.source != PYTHON_DOCS and Path(data.source).is_dir():
        return open_prepared(Path(data.source), len(fields), data.tokenizer)
    tokenizer = load_tokenizer(data.tokenizer or "bytes")
    bad = BadRows()

    def encoded() -> Iterator[Encoded]:
        nonlocal bad
        if data.source == PYTHON_DOCS:
            for rows in _in_batches(_python_docs(data)):
                yield encode_rows(tokenizer, rows, len(fields))
            return
        for path in input_files(data.source):
            for batch in read(whole(path), fields):
                bad = bad.and_also(sift(batch, data.bad_rows))
                yield encode_rows(tokenizer, batch.rows, len(fields))

    tokens = Tokens.from_batches(encoded(), len(fields), tokenizer.vocab_size)
    if not len(tokens):
        raise ConfigError(f"{data.source}: {no_rows(bad)}")
    return tokens, tokenizer, bad


def fields_of(data: DataSettings) -> list[str]:
    """Names of the fields that the task reads."""
    if data.task == "span-corruption":
        return [data.source_field]
    return [data.source_field, data.target_field]


def encode_rows(tokenizer: Tokenizer, rows: Sequence[Row], fields: int) -> Encoded:
    """The ids of all texts of `rows`, and their lengths [rows, fields]."""
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


def _in_batches(rows: Iterable[Row], size: int = 1024) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
