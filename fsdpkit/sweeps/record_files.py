"""The one JSON file that a sweep is known by: found by name, read, written, locked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from fsdpkit.config.loading import FileTables
from fsdpkit.config.spelling import nearest
from fsdpkit.config.trust import vouch
from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.lock import locked
from fsdpkit.runs.reading import read_bytes

T = TypeVar("T")

_PATIENCE_S = 30.0
"""How long one waits for who changes a record at this moment."""


def directory_of(name: str, top: Path) -> Path:
    """The sweep in `top` of this name, or that this is the path of. Raises NotFoundError with the
    nearest name and where it looked."""
    record = "sweep.json"
    if "/" in name:
        found = Path(name).absolute()
    else:
        found = top / name if name not in ("", ".", "..") else top
    if (found / record).exists():
        return found
    names = [p.parent.name for p in top.glob(f"*/{record}")] if top.is_dir() else []
    raise NotFoundError(
        f"there is no sweep {name!r} in {top}.{nearest(name, names)} Give --runs DIR, the "
        "directory of runs that it was started in."
    )


def read_record(path: Path, kind: type[T]) -> T:
    """Raises NotFoundError, or StorageError for a file not to be believed."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path.parent} is not a sweep: it has no {path.name}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error


def as_file_of(path: Path, value: msgspec.Struct) -> FileTables:
    """The record as the file that it stands in: a job takes settings from it."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    return FileTables({}, path, text, kind="sweep")


def write_record(path: Path, value: msgspec.Struct) -> None:
    """Complete or not at all. Raises StorageError."""
    file = as_file_of(path, value)
    try:
        write_atomically(path, file.content)
        vouch(file)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """While nobody else changes it. Raises BusyError, StorageError."""
    with locked(path.with_name(f"{path.name}.lock"), _PATIENCE_S):
        yield
