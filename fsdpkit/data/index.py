"""The record of a prepared directory: what `fsdpkit data prepare` made, from what, with what.

    <directory>/
        preparation.json     what is being prepared, and from what; held locked meanwhile
        shard-00000.ids      token ids, row after row, uint16 or int32, little-endian
        shard-00000.lengths  uint32, tokens of each text; gone when all is done
        shard-00000.json     the shard's record, written when it is whole; gone when all is done
        lengths.bin          int64 [fields, rows]
        starts.bin           int64 [rows], where a row begins in its shard
        tokenizer.json       a copy of the tokenizer (or tokenizer.model; none for bytes)
        index.json           written last: the directory is complete

Reading it takes the standard library and msgspec only, since a submission looks at it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.errors import ConfigError, NotFoundError

VERSION = 1
INDEX, PREPARATION, LENGTHS, STARTS = "index.json", "preparation.json", "lengths.bin", "starts.bin"
Task = Literal["pairs", "span-corruption"]


class InputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An input file as it was when it was read."""

    path: str
    bytes: int
    modified_ns: int


class TokenizerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What made the ids: "bytes", or the copied file and the hash of its content."""

    file: str
    sha256: str
    vocab_size: int


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One whole shard; `crc32` is of its ids file and its lengths, in this order."""

    rows: int
    tokens: int
    crc32: int
    bad_rows: int
    bad_examples: tuple[str, ...]


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what a preparation writes."""

    version: int
    task: Task
    fields: tuple[str, ...]
    tokenizer: TokenizerRecord
    bad_rows: str
    inputs: tuple[InputRecord, ...]
    source_prefix: str = ""


class DataIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A complete prepared directory."""

    preparation: Preparation
    dtype: Literal["<u2", "<i4"]
    shards: tuple[ShardRecord, ...]
    rows: int
    tokens: int
    bad_rows: int
    bad_examples: tuple[str, ...]
    fingerprint: str

    @property
    def fields(self) -> int:
        return len(self.preparation.fields)

    @property
    def bytes(self) -> int:
        """Of the tokens, and of where each row begins."""
        return self.tokens * int(self.dtype[2]) + 8 * self.rows * (self.fields + 1)


def ids_file(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}.ids"


def read_index(directory: Path) -> DataIndex:
    """The index of a complete directory, the sizes of whose files fit it. Raises NotFoundError for
    a directory that is not prepared or not complete, ConfigError for one that is damaged or of
    another version."""
    try:
        index = msgspec.json.decode((directory / INDEX).read_bytes(), type=DataIndex)
    except FileNotFoundError:
        begun = (directory / PREPARATION).exists()
        raise NotFoundError(
            f"{directory}: the preparation is not complete: run the same `fsdpkit data prepare` "
            f"again; it continues where it stopped."
            if begun
            else f"{directory}: holds no {INDEX}; make prepared data with `fsdpkit data prepare`."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / INDEX}: cannot be read: {error}.") from None
    if index.preparation.version != VERSION:
        raise ConfigError(
            f"{directory / INDEX}: is of version {index.preparation.version}, but this is "
            f"{VERSION}: prepare the data again."
        )
    _check_sizes(directory, index)
    return index


def _check_sizes(directory: Path, index: DataIndex) -> None:
    width = int(index.dtype[2])
    expected = {ids_file(directory, i): s.tokens * width for i, s in enumerate(index.shards)}
    expected[directory / LENGTHS] = 8 * index.rows * index.fields
    expected[directory / STARTS] = 8 * index.rows
    for path, size in expected.items():
        found = path.stat().st_size if path.exists() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes, not {size}"
            raise ConfigError(
                f"{path}: {what}: the directory was not copied whole; copy or prepare it again."
            )


def check_fits(
    directory: Path,
    index: DataIndex,
    fields: int,
    tokenizer: str | None,
    workdir: Path = Path(),
    *,
    source_prefix: str = "",
) -> None:
    """Raises ConfigError when `index` has another task, tokenizer or prefix."""
    if index.fields != fields:
        other = "span-corruption" if fields == 1 else "pairs"
        raise ConfigError(
            f"{directory}: was prepared for the task {index.preparation.task}, not {other}: set "
            f'training.data.task = "{index.preparation.task}", or prepare it with --task {other}.'
        )
    record = index.preparation.tokenizer
    if tokenizer is not None and sha256_of(tokenizer, workdir) != record.sha256:
        raise ConfigError(
            f"{directory}: was prepared with the tokenizer {record.file}, which is not "
            f"{tokenizer}: leave training.data.tokenizer unset, or prepare the data again."
        )
    if (prepared := index.preparation.source_prefix) != source_prefix:
        raise ConfigError(
            f"{directory}: was prepared with the source prefix {prepared!r}, not "
            f"{source_prefix!r}: set training.data.source_prefix to that, or prepare it again with "
            "--source-prefix."
        )


def sha256_of(tokenizer: str, workdir: Path = Path()) -> str:
    """The hash that stands for a tokenizer: of its file's content, or of nothing for bytes. Raises
    NotFoundError when there is no such file."""
    if tokenizer == "bytes":
        return hashlib.sha256(b"bytes").hexdigest()
    try:
        return hashlib.sha256((workdir / tokenizer).read_bytes()).hexdigest()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise NotFoundError(f"{tokenizer}: {reason} (training.data.tokenizer).") from None
