"""Rows of text out of JSONL, CSV, Parquet and plain text files, a batch at a time.

A row that cannot be used is an answer, not an exception: who reads decides whether it is fatal. A
file that is no such file at all (a missing column, a binary) always is. Memory stays bounded by
the longest row, whatever the size of a file.

A file is read in pieces, so that several processes can share it: byte ranges that begin and end
between rows (JSONL, text), row groups (Parquet). A CSV file is one piece, since only reading from
its start can tell a line break between rows from one inside quotes.
"""

from __future__ import annotations

import csv
import glob
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from fsdpkit.config.training.hub import hub_hint
from fsdpkit.data.rows import (
    BATCH_BYTES,
    MAX_ROW_BYTES,
    NAME_THE_FIELDS,
    NO_FIELD,
    FilePiece,
    Row,
    RowBatch,
    text_problem,
)
from fsdpkit.errors import ConfigError, NotFoundError, StorageError

if TYPE_CHECKING:
    import pyarrow.parquet


BOM = b"\xef\xbb\xbf"
PARAGRAPH_BYTES = 1 << 20
"""A longer paragraph of a text file becomes several rows, cut at a line's end."""

FORMATS = (".jsonl", ".csv", ".parquet", ".txt")


def input_files(source: str) -> list[Path]:
    """The files that `source` names: one path, or a pattern such as `data/*.jsonl`, sorted. Raises
    NotFoundError when there is none, ConfigError for an empty file or another format."""
    paths = [Path(source)]
    if not paths[0].exists() and glob.has_magic(source):
        paths = [Path(found) for found in sorted(glob.glob(source, recursive=True))]
    if not paths or not paths[0].exists():
        raise NotFoundError(f"{source}: no such file.{hub_hint(source, dataset=True)}")
    for path in paths:
        if path.suffix not in FORMATS:
            raise ConfigError(f"{path}: the name must end in {', '.join(FORMATS)}.")
        if path.is_dir():
            raise ConfigError(f"{path}: is a directory, not a file.")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: is empty.")
    return paths


def check_format(path: Path, fields: Sequence[str]) -> None:
    """Raises ConfigError for a file that by its format cannot have as many fields."""
    if path.suffix == ".txt" and len(fields) > 1:
        raise ConfigError(
            f"{path}: plain text has no pairs ({', '.join(fields)}): give a .jsonl, .csv or "
            '.parquet file, or train on it with task "span-corruption".'
        )


def read(piece: FilePiece, fields: Sequence[str]) -> Iterator[RowBatch]:
    """The rows of `piece`: the text of each of `fields`, or of a text file its one text.

    Raises ConfigError for a file that lacks a field in its header or schema, for plain text of
    which two are asked, and for an endless row; NotFoundError or StorageError for one that cannot
    be opened.
    """
    path = piece.path
    check_format(path, fields)
    try:
        if path.suffix == ".parquet":
            yield from _read_parquet(piece, fields)
        elif path.suffix == ".csv":
            yield from _csv(path, fields)
        else:
            parse = _paragraphs if path.suffix == ".txt" else _jsonl
            with open(path, "rb") as file:
                yield from parse(file, piece, fields)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file.") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}.") from None


def whole(path: Path) -> FilePiece:
    """The piece that is all of `path`."""
    if path.suffix == ".parquet":
        groups = _row_groups(path)
        return FilePiece(path, 0, len(groups), sum(groups))
    size = path.stat().st_size
    return FilePiece(path, 0, size, size)


def pieces(path: Path, target_bytes: int) -> Iterator[FilePiece]:
    """`path` cut between rows into pieces of about `target_bytes`, in order; deterministic."""
    if path.suffix == ".csv":
        yield whole(path)
    elif path.suffix == ".parquet":
        yield from _grouped(path, _row_groups(path), target_bytes)
    else:
        size = path.stat().st_size
        skip = _skip_paragraph if path.suffix == ".txt" else _skip_line
        with open(path, "rb") as file:
            start = 0
            while start < size:
                file.seek(min(start + target_bytes, size))
                skip(file)
                end = min(file.tell(), size)
                yield FilePiece(path, start, end, end - start)
                start = end


def _grouped(path: Path, groups: Sequence[int], target_bytes: int) -> Iterator[FilePiece]:
    start = held = 0
    for number, size in enumerate(groups, 1):
        held += size
        if held >= target_bytes or number == len(groups):
            yield FilePiece(path, start, number, held)
            start, held = number, 0


def _skip_line(file: BinaryIO) -> bytes:
    """Go on to the start of the next line."""
    line = file.readline(MAX_ROW_BYTES)
    if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
        raise ConfigError(
            f"{file.name}: no line break in {MAX_ROW_BYTES >> 20} MiB near byte {file.tell()}: "
            "rows are lines, each of them shorter."
        )
    return line


def _skip_paragraph(file: BinaryIO) -> None:
    """Go on to behind the next blank line."""
    if _skip_line(file):  # the rest of a line, which may look blank and not be
        while _skip_line(file).strip():
            pass


def _blocks(file: BinaryIO, piece: FilePiece) -> Iterator[tuple[int, Iterator[tuple[int, bytes]]]]:
    """A piece's lines, numbered from 1, without ends, and their bytes; some BATCH_BYTES a time."""
    file.seek(piece.start)
    number = 1
    while (at := file.tell()) < piece.end:
        block = file.read(min(BATCH_BYTES, piece.end - at))
        if at + len(block) < piece.end and not block.endswith(b"\n"):
            block += _skip_line(file)
        elif not block:  # the file has become shorter
            return
        if at == 0:
            block = block.removeprefix(BOM)
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        yield file.tell() - at, enumerate(lines, number)
        number += len(lines)


class _Numbers:
    """Line numbers in the file from those in the piece; counts what lies before when asked."""

    def __init__(self, piece: FilePiece) -> None:
        self._piece = piece
        self._before: int | None = None

    def where(self, line: int) -> str:
        if self._before is None:
            self._before = 0
            with open(self._piece.path, "rb") as file:
                left = self._piece.start
                while left and (block := file.read(min(left, BATCH_BYTES))):
                    self._before += block.count(b"\n")
                    left -= len(block)
        return f"{self._piece.path}, line {self._before + line}"


def _jsonl(file: BinaryIO, piece: FilePiece, fields: Sequence[str]) -> Iterator[RowBatch]:
    decode = _json_decoder(fields)
    numbers = _Numbers(piece)
    for size, lines in _blocks(file, piece):
        batch = RowBatch([], [], size)
        for number, line in lines:
            try:
                row: Row = msgspec.structs.astuple(decode(line))
            except (ValueError, RecursionError):
                if not line.strip():
                    continue
                found = _json_row(line, fields)
                if isinstance(found, str):
                    batch.refuse(numbers.where(number), found)
                    continue
                row = found
            if not all(row) or any(map(str.isspace, row)):
                reason = next(filter(None, map(text_problem, fields, row)))
                batch.refuse(numbers.where(number), reason)
            else:
                batch.rows.append(row)
        yield batch


def _json_decoder(fields: Sequence[str]) -> Callable[[bytes], msgspec.Struct]:
    """Reads the wanted strings of a row and steps over the rest without building it."""
    wanted = [(f"f{i}", str, msgspec.field(name=name)) for i, name in enumerate(fields)]
    return msgspec.json.Decoder(msgspec.defstruct("JsonRow", wanted)).decode


def _json_row(line: bytes, fields: Sequence[str]) -> Row | str:
    """A row that the fast decoder refused, or what is wrong with it. The standard library's decoder
    says where, and takes NaN in fields that nobody wants."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return _not_utf8(error)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f'must be an object like {{"{fields[0]}": "…"}}'
    texts = tuple(row.get(field) for field in fields)
    for field, text in zip(fields, texts, strict=True):
        if problem := text_problem(field, text):
            has = ", ".join(row) or "no fields"
            return problem if field in row else f"{NO_FIELD}{field!r}; the row has {has}"
    return texts  # type: ignore[return-value]  # text_problem has seen that all are strings


def _not_utf8(error: UnicodeDecodeError) -> str:
    wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in error.object
    hint = "; it looks like UTF-16: convert the file with iconv -f UTF-16 -t UTF-8" if wide else ""
    return f"not UTF-8: byte {error.object[error.start]:#04x}, {error.reason}{hint}"


def _csv(path: Path, fields: Sequence[str]) -> Iterator[RowBatch]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    # A byte that is not UTF-8 must cost its row only: it is let through here and found below.
    with open(path, "rb") as file:
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, strict=True)
        header = next(reader, [])
        columns = [_column(path, header, field) for field in fields]
        at = 0
        batch = RowBatch([], [], 0)
        for where, row in _csv_rows(path, reader):
            if isinstance(row, str):
                batch.refuse(where, row)
            elif len(row) != len(header):
                batch.refuse(where, f"has {len(row)} fields, the header {len(header)}")
            else:
                texts = tuple(row[column] for column in columns)
                problems = filter(None, map(text_problem, fields, texts))
                if problem := next(problems, None):
                    batch.refuse(where, problem)
                else:
                    batch.rows.append(texts)
            if (now := file.tell()) - at >= BATCH_BYTES:
                yield batch._replace(bytes=now - at)
                at, batch = now, RowBatch([], [], 0)
        yield batch._replace(bytes=file.tell() - at)


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[str, list[str] | str]]:
    """Each record with the line it begins on, or what the parser says of it."""
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield where, f"not CSV: {error}"
            continue
        if row:
            yield where, row


def _column(path: Path, header: Sequence[str], field: str) -> int:
    if header.count(field) != 1:
        what = "two columns" if field in header else "no column"
        has = ", ".join(header)
        raise ConfigError(f"{path}: {what} {field!r}; the header is {has}. {NAME_THE_FIELDS}")
    return header.index(field)


def _paragraphs(file: BinaryIO, piece: FilePiece, fields: Sequence[str]) -> Iterator[RowBatch]:
    """Texts between blank lines, their lines kept apart."""
    numbers = _Numbers(piece)
    held: list[bytes] = []
    held_bytes = first = 0

    def finish(batch: RowBatch) -> None:
        nonlocal held, held_bytes
        if held:
            try:
                batch.rows.append((b"\n".join(held).decode(),))
            except UnicodeDecodeError as error:
                line = first + error.object.count(b"\n", 0, error.start)
                batch.refuse(numbers.where(line), _not_utf8(error))
        held, held_bytes = [], 0

    batch = RowBatch([], [], 0)
    for size, lines in _blocks(file, piece):
        yield batch
        batch = RowBatch([], [], size)
        for number, line in lines:
            if not line.strip() or held_bytes > PARAGRAPH_BYTES:
                finish(batch)
            if line.strip():
                first = first if held else number
                held.append(line.rstrip(b"\r"))
                held_bytes += len(line) + 1
    finish(batch)
    yield batch


_BATCH_ROWS = 1024


def _row_groups(path: Path) -> list[int]:
    """Bytes of the file that each row group takes, about. Raises ConfigError for another file."""
    metadata = _open(path).metadata
    weights = [metadata.row_group(i).total_byte_size or 1 for i in range(metadata.num_row_groups)]
    size, total = path.stat().st_size, sum(weights)
    edges = [size * sum(weights[:i]) // total for i in range(len(weights) + 1)] if total else []
    return [b - a for a, b in pairwise(edges)]


def _read_parquet(piece: FilePiece, fields: Sequence[str]) -> Iterator[RowBatch]:
    """The rows of some row groups; raises ConfigError when a field is missing or holds no text."""
    file = _open(piece.path)
    _check_columns(piece.path, file, fields)
    rows_of = [file.metadata.row_group(i).num_rows for i in range(piece.end)]
    first = sum(rows_of[: piece.start]) + 1
    total, done = max(1, sum(rows_of[piece.start :])), 0
    groups = list(range(piece.start, piece.end))
    batches = file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(fields))
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
