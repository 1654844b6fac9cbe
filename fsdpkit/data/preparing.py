"""Tokenise once, in parallel, into a directory that training maps into memory.

The inputs are cut into shards by their sizes alone, each shard is written by one process and is
whole when its record exists, and `index.json` comes last. So the result is the same for any number
of processes, and whatever ends a preparation, the next one goes on with the shards that are whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from fsdpkit.config.training import DataSettings
from fsdpkit.data import index as layout
from fsdpkit.data.index import DataIndex, InputRecord, Preparation, ShardRecord, TokenizerRecord
from fsdpkit.data.loading import fields_of, no_rows
from fsdpkit.data.pool import PreparationProgress, write_shards
from fsdpkit.data.readers import check_format, input_files, pieces
from fsdpkit.data.rows import BadRows, FilePiece
from fsdpkit.data.shards import lengths_file, record_file, whole_shard
from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.data.tokens import ids_dtype, starts_of
from fsdpkit.errors import ConfigError, StorageError, UsageError
from fsdpkit.runs.layout import write_atomically

SHARD_BYTES = 8 << 20
"""Input of the smallest shard: some tenths of a second, what a kill loses per process."""
MOST_SHARDS = 256
"""A rank keeps each shard open, and a process may open some 1,000 files."""


@dataclass(frozen=True)
class PreparedDirectory:
    """A complete directory; `found` when it was so before."""

    index: DataIndex
    found: bool


def prepare(
    inputs: Sequence[str],
    output: Path,
    settings: DataSettings,
    *,
    processes: int = 1,
    force: bool = False,
    report: Callable[[PreparationProgress], None] = lambda progress: None,
) -> PreparedDirectory:
    """Tokenise the files `inputs` (paths or patterns) into the directory `output`.

    `settings` gives task, tokenizer, fields and what becomes of bad rows; its source is not looked
    at. `report` is called a few times a second. Raises ConfigError for input that cannot be used
    (file and row are named), UsageError when `output` holds something else and `force` is false,
    StorageError when it cannot be written. KeyboardInterrupt leaves whole shards behind.
    """
    paths = [path for given in inputs for path in input_files(given)]
    asked = _describe(paths, settings)
    try:
        with _locked(output):
            if _take_over(output, asked, force):
                return PreparedDirectory(layout.read_index(output), found=True)
            shards = _plan(paths)
            if settings.tokenizer and asked.tokenizer.file != "bytes":
                shutil.copyfile(settings.tokenizer, output / asked.tokenizer.file)
            todo = [n for n in range(len(shards)) if whole_shard(output, n, asked) is None]
            try:
                write_shards(output, asked, shards, todo, processes, report)
            finally:
                _clear_strays(output)
            return PreparedDirectory(_complete(output, asked, len(shards)), found=False)
    except OSError as error:
        raise StorageError(
            f"{error.filename or output}: cannot be written: {error.strerror or error}."
        ) from error


def _describe(paths: Sequence[Path], settings: DataSettings) -> Preparation:
    task = settings.task
    if task == "docstring":
        raise ConfigError('task "docstring" reads Python\'s own sources, which need no preparing.')
    for path in paths:
        check_format(path, fields_of(settings))
    if task == "pairs" and settings.source_field == settings.target_field:
        raise ConfigError(
            f"source and target field are both {settings.source_field!r}: name two fields."
        )
    if task == "span-corruption" and settings.source_prefix:
        raise ConfigError(
            "a prefix tells T5 a task with source and target, and span-corruption has none: leave "
            "--source-prefix out."
        )
    spec = settings.tokenizer or "bytes"
    tokenizer = load_tokenizer(spec)
    if task == "span-corruption" and not tokenizer.sentinels:
        raise ConfigError(
            f"{spec}: has no <extra_id_0>, <extra_id_1>, … tokens, which span corruption marks "
            "gaps with: add them to the tokenizer, or use --task pairs."
        )
    record = TokenizerRecord(
        file="bytes" if spec == "bytes" else f"tokenizer{Path(spec).suffix}",
        sha256=layout.sha256_of(spec),
        vocab_size=tokenizer.vocab_size,
    )
    return Preparation(
        version=layout.VERSION,
        task=task,
        fields=tuple(fields_of(settings)),
        tokenizer=record,
        bad_rows=settings.bad_rows,
        inputs=tuple(_input_record(path) for path in paths),
        source_prefix=settings.source_prefix,
    )


def _input_record(path: Path) -> InputRecord:
    found = path.stat()
    return InputRecord(
        path=str(path.absolute()), bytes=found.st_size, modified_ns=found.st_mtime_ns
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps a second preparation out; one that is killed leaves no lock."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{directory}: another preparation is writing there.") from None
        except OSError:
            pass  # a file system without locks; shards are renamed into place all the same
        yield
    finally:
        os.close(handle)


def _take_over(output: Path, asked: Preparation, force: bool) -> bool:
    """Make `output` ready for what is asked; true when it is there already, complete."""
    marks = [output / name for name in (layout.INDEX, layout.PREPARATION)]
    begun = [path for path in marks if path.exists()]
    if not begun and any(output.iterdir()):
        raise UsageError(f"{output}: holds other files; give an --output of its own.")
    if begun and not force:
        earlier = _preparation_in(begun[0])
        if earlier is not None and _same(earlier, asked):
            if begun[0].name == layout.INDEX:
                _tidy(output)
                return True
        else:
            raise UsageError(
                f"{output}: was begun with {_difference(earlier, asked)}: give another --output, "
                "or start over with --force."
            )
    elif begun:
        _remove_all(output)
    _clear_strays(output)
    text = msgspec.json.format(msgspec.json.encode(asked)).decode()
    write_atomically(output / layout.PREPARATION, text + "\n")
    return False


def _same(earlier: Preparation, asked: Preparation) -> bool:
    """Shards in which no bad row was met are the same when bad rows are skipped from now on."""
    eased = earlier.bad_rows == "fail" and asked.bad_rows == "skip"
    return earlier == (msgspec.structs.replace(asked, bad_rows="fail") if eased else asked)


def _preparation_in(path: Path) -> Preparation | None:
    try:
        if path.name == layout.INDEX:
            return msgspec.json.decode(path.read_bytes(), type=DataIndex).preparation
        return msgspec.json.decode(path.read_bytes(), type=Preparation)
    except ValueError:
        return None


def _difference(earlier: Preparation | None, asked: Preparation) -> str:
    if earlier is None:
        return "something that cannot be read"
    old, new = msgspec.structs.asdict(earlier), msgspec.structs.asdict(asked)
    changed = next(key for key in old if old[key] != new[key])
    if changed == "inputs":
        before = {record.path: record for record in earlier.inputs}
        for record in asked.inputs:
            if record.path not in before:
                return f"other inputs, without {record.path}"
            if before[record.path] != record:
                return f"another content of {record.path}, which has changed since"
        return f"{len(earlier.inputs)} inputs, not {len(asked.inputs)}"
    if changed == "tokenizer":
        return f"another tokenizer ({earlier.tokenizer.vocab_size} ids)"
    old_value = ", ".join(old[changed]) if changed == "fields" else old[changed]
    return f"{changed.replace('_', ' ')} {old_value or 'none'}"


def _remove(output: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in output.glob(pattern):
            path.unlink(missing_ok=True)


def _clear_strays(output: Path) -> None:
    """Remove what a process that was killed had not finished."""
    _remove(output, ".*.tmp")


def _remove_all(output: Path) -> None:
    # The index first: what is left after a kill must not look complete.
    (output / layout.INDEX).unlink(missing_ok=True)
    _remove(output, "shard-*.ids", "shard-*.lengths", "shard-*.json", "tokenizer.*", "*.bin")


def _plan(paths: Sequence[Path]) -> list[list[FilePiece]]:
    """The pieces of each shard: a function of the files alone."""
    total = sum(path.stat().st_size for path in paths)
    target = max(SHARD_BYTES, -(-total // MOST_SHARDS))
    shards: list[list[FilePiece]] = []
    room = 0
    for path in paths:
        for piece in pieces(path, target):
            if room <= 0:
                shards.append([])
                room = target
            shards[-1].append(piece)
            room -= piece.bytes
    return shards


def _complete(output: Path, asked: Preparation, count: int) -> DataIndex:
    """Write the tables over all shards, then the index; clear away what only a restart needs."""
    records: list[ShardRecord] = []
    bad = BadRows()
    for number in range(count):
        record = whole_shard(output, number, asked)
        if record is None:
            raise StorageError(f"{record_file(output, number)}: has gone; run the command again.")
        records.append(record)
        bad = bad.and_also(BadRows(record.bad_rows, record.bad_examples))
    rows = sum(record.rows for record in records)
    if not rows:
        raise ConfigError(f"{asked.inputs[0].path}: {no_rows(bad)}")
    _write_tables(output, asked, count)
    index = DataIndex(
        preparation=asked,
        dtype=ids_dtype(asked.tokenizer.vocab_size).str,  # type: ignore[arg-type]  # <u2 or <i4
        shards=tuple(records),
        rows=rows,
        tokens=sum(record.tokens for record in records),
        bad_rows=bad.count,
        bad_examples=bad.examples,
        fingerprint=_fingerprint(asked, records),
    )
    text = msgspec.json.format(msgspec.json.encode(index)).decode()
    write_atomically(output / layout.INDEX, text + "\n")
    _tidy(output)
    return index


def _write_tables(output: Path, asked: Preparation, count: int) -> None:
    """`lengths.bin` and `starts.bin`, a shard at a time."""
    fields = len(asked.fields)

    def table(number: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        flat = np.fromfile(lengths_file(output, number), "<u4")
        return flat.reshape(-1, fields).astype(np.int64)

    with open(output / layout.LENGTHS, "wb") as file:
        for field in range(fields):
            for number in range(count):
                table(number)[:, field].astype("<i8").tofile(file)
        os.fsync(file.fileno())
    with open(output / layout.STARTS, "wb") as file:
        for number in range(count):
            starts_of(table(number)).astype("<i8").tofile(file)
        os.fsync(file.fileno())


def _fingerprint(asked: Preparation, records: Sequence[ShardRecord]) -> str:
    """Of the ids, through their checksums: equal for equal data, wherever it was prepared."""
    parts = [(record.rows, record.tokens, record.crc32) for record in records]
    said = repr((len(asked.fields), asked.tokenizer.sha256, parts))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _tidy(output: Path) -> None:
    _remove(output, "shard-*.lengths", "shard-*.json", layout.PREPARATION)
