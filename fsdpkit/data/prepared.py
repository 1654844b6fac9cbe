"""Opening a prepared directory: its arrays stay on disk, mapped into memory and shared by ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fsdpkit.data.index import (
    LENGTHS,
    STARTS,
    DataIndex,
    TokenizerRecord,
    check_fits,
    ids_file,
    read_index,
)
from fsdpkit.data.rows import BadRows
from fsdpkit.data.tokenizers import Tokenizer, load_tokenizer
from fsdpkit.data.tokens import Tokens
from fsdpkit.errors import StorageError


def open_prepared(
    directory: Path, fields: int, tokenizer: str | None = None, source_prefix: str = ""
) -> tuple[Tokens, Tokenizer, BadRows]:
    """What `fsdpkit data prepare` wrote; `tokenizer` None takes the one it was made with. Raises
    NotFoundError for an incomplete directory, ConfigError for one that is damaged, for another
    task, by another tokenizer or with another prefix."""
    index = read_index(directory)
    check_fits(directory, index, fields, tokenizer, source_prefix=source_prefix)
    tokens = _map(directory, index)
    made_with = tokenizer_of(directory, index.preparation.tokenizer)
    return tokens, made_with, BadRows(index.bad_rows, index.bad_examples)


def open_tokens(directory: Path) -> Tokens:
    """The tokens of a complete prepared directory. Raises as `open_prepared`."""
    return _map(directory, read_index(directory))


def tokenizer_of(directory: Path, record: TokenizerRecord) -> Tokenizer:
    """The tokenizer that the directory is made with, from the copy in it."""
    return load_tokenizer("bytes" if record.file == "bytes" else str(directory / record.file))


def _map(directory: Path, index: DataIndex) -> Tokens:
    dtype = np.dtype(index.dtype)
    try:
        shards = [
            _array(ids_file(directory, number), dtype, (shard.tokens,))
            for number, shard in enumerate(index.shards)
        ]
        lengths = _array(directory / LENGTHS, np.dtype("<i8"), (index.fields, index.rows))
        starts = _array(directory / STARTS, np.dtype("<i8"), (index.rows,))
    except OSError as error:
        raise StorageError(f"{directory}: cannot be mapped: {error}.") from None
    rows = [shard.rows for shard in index.shards]
    # An absolute path, for a loader worker may have another current directory.
    reopen = (open_tokens, (directory.absolute(),))
    return Tokens(shards, rows, lengths, starts, index.fingerprint, reopen)


def _array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """A read-only view of a file; plain numpy arrays, whose slices cost less than memmap's."""
    if 0 in shape:  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape).view(np.ndarray)
