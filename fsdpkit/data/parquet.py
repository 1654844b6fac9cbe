"""Rows out of Parquet files by record batches; the `parquet` extra (pyarrow) is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.data.rows import NAME_THE_FIELDS, FilePiece, RowBatch, text_problem
from fsdpkit.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow.parquet

BATCH_ROWS = 1024


def row_groups(path: Path) -> list[int]:
    """Bytes of the file that each row group takes, about. Raises ConfigError for another file."""
    metadata = _open(path).metadata
    weights = [metadata.row_group(i).total_byte_size or 1 for i in range(metadata.num_row_groups)]
    size, total = path.stat().st_size, sum(weights)
    edges = [size * sum(weights[:i]) // total for i in range(len(weights) + 1)] if total else []
    return [b - a for a, b in pairwise(edges)]


def read_parquet(piece: FilePiece, fields: Sequence[str]) -> Iterator[RowBatch]:
    """The rows of some row groups; raises ConfigError when a field is missing or holds no text."""
    file = _open(piece.path)
    _check_columns(piece.path, file, fields)
    rows_of = [file.metadata.row_group(i).num_rows for i in range(piece.end)]
    first = sum(rows_of[: piece.start]) + 1
    total, done = max(1, sum(rows_of[piece.start :])), 0
    groups = list(range(piece.start, piece.end))
    batches = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(fields))
    for table in batches:
        columns = [_texts(table.column(field)) for field in fields]
        before, done = done, done + table.num_rows
        batch = RowBatch([], [], piece.bytes * done // total - piece.bytes * before // total)
        for number, texts in enumerate(zip(*columns, strict=True), first + before):
            problem = next(filter(None, map(text_problem, fields, texts)), None)
            if problem:
                batch.refuse(f"{piece.path}, row {number}", problem)
            else:
                batch.rows.append(texts)
        yield batch


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{path}: reading Parquet needs the package pyarrow, which is not installed: "
            'pip install "fsdpkit[parquet]".'
        ) from None
    try:
        return parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: not a Parquet file: {error}") from None


def _check_columns(path: Path, file: Any, fields: Sequence[str]) -> None:
    schema = file.schema_arrow
    for field in fields:
        if schema.names.count(field) != 1:
            has = ", ".join(schema.names)
            raise ConfigError(f"{path}: no column {field!r}; it has {has}. {NAME_THE_FIELDS}")
        kind = str(getattr(schema.field(field).type, "value_type", schema.field(field).type))
        if kind not in ("string", "large_string", "string_view"):
            raise ConfigError(f"{path}: column {field!r} must hold strings, but holds {kind}.")


def _texts(column: Any) -> list[str | None]:
    """Python strings; bytes that are not UTF-8 come through as surrogates, for the row's sake."""
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:
        import pyarrow

        raw = column.cast(pyarrow.string()).cast(pyarrow.binary()).to_pylist()
        return [r if r is None else r.decode(errors="surrogateescape") for r in raw]
    return texts
