"""One shard of a prepared directory: written under other names, whole when its record exists."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from fsdpkit.data.index import Preparation, ShardRecord, ids_file
from fsdpkit.data.loading import encode_rows
from fsdpkit.data.readers import read
from fsdpkit.data.rows import BadRows, FilePiece, sift
from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.data.tokens import ids_dtype
from fsdpkit.runs.layout import write_atomically


def lengths_file(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}.lengths"


def record_file(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}.json"


def whole_shard(directory: Path, shard: int, asked: Preparation) -> ShardRecord | None:
    """The record of a shard whose files are all there, as long as it says; None otherwise."""
    width = ids_dtype(asked.tokenizer.vocab_size).itemsize
    try:
        record = msgspec.json.decode(record_file(directory, shard).read_bytes(), type=ShardRecord)
        ids_bytes = ids_file(directory, shard).stat().st_size
        lengths_bytes = lengths_file(directory, shard).stat().st_size
    except (FileNotFoundError, ValueError):
        return None
    expected = (record.tokens * width, record.rows * len(asked.fields) * 4)
    return record if (ids_bytes, lengths_bytes) == expected else None


def write_shard(
    directory: Path,
    shard: int,
    pieces: Sequence[FilePiece],
    asked: Preparation,
    tokenizer: Tokenizer,
    report: Callable[[int, int], None],
) -> None:
    """Tokenise `pieces` into one shard, a batch of rows in memory at a time. `report` gets the
    bytes read and rows written since it was last called. Raises as `read`, and ConfigError for the
    first bad row when bad rows are fatal."""
    rows = tokens = ids_crc = lengths_crc = 0
    bad = BadRows()
    fields = len(asked.fields)
    with (
        _renamed(ids_file(directory, shard)) as ids_out,
        _renamed(lengths_file(directory, shard)) as lengths_out,
    ):
        for piece in pieces:
            for batch in read(piece, asked.fields):
                bad = bad.and_also(sift(batch, asked.bad_rows))
                encoded = encode_rows(tokenizer, batch.rows, fields, asked.source_prefix)
                ids = encoded.ids.tobytes()
                lengths = encoded.lengths.astype(np.dtype("<u4")).tobytes()
                ids_out.write(ids)
                lengths_out.write(lengths)
                ids_crc = zlib.crc32(ids, ids_crc)
                lengths_crc = zlib.crc32(lengths, lengths_crc)
                rows += len(batch.rows)
                tokens += len(encoded.ids)
                report(batch.bytes, len(batch.rows))
    record = ShardRecord(
        rows=rows,
        tokens=tokens,
        crc32=zlib.crc32(f"{ids_crc} {lengths_crc}".encode()),
        bad_rows=bad.count,
        bad_examples=bad.examples,
    )
    write_atomically(record_file(directory, shard), msgspec.json.encode(record).decode())


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when it is whole and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
