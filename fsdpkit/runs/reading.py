"""Reads files in a run directory safely, whoever wrote them.

Others may be able to write to the directory, and the run may be somebody else's. So only regular
files are opened, never a link, a pipe or a device; no open blocks; and no more is read than a file
of its kind can contain (bounded.py). Any problem is an OSError with a sentence, or a ValueError.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fsdpkit.bounded import RECORD_BYTES, descriptor
from fsdpkit.bounded import open_regular as open_regular
from fsdpkit.bounded import parsed as parsed
from fsdpkit.bounded import read_bytes as read_bytes
from fsdpkit.config.ownership import first_open_to_all, group_or_others_write
from fsdpkit.errors import StorageError

Record = TypeVar("Record")
LARGEST = 1e100
"""Number that is computed with: what is made of a few of them still fits into a float."""


def open_own(path: Path) -> BinaryIO:
    """The file if it is this user's (or root's) and no other user can change or replace it:
    unpickling can do whatever the reader can. Raises StorageError, or OSError if it is missing."""
    if (unsafe := first_open_to_all(path)) is not None:
        raise StorageError(
            f"everybody can exchange what lies in {unsafe}: {path.name} is not unpickled, which "
            "could run their code"
        )
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_of_others(path.parent, os.fstat(directory))
        number = descriptor(path.name, directory)
    finally:
        os.close(directory)
    file = open(number, "rb")  # noqa: SIM115 - the caller closes it
    try:
        _refuse_of_others(path, os.fstat(number))
    except BaseException:
        file.close()
        raise
    return file


def _refuse_of_others(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise StorageError(
            f"{path} belongs to user {found.st_uid}: it is not unpickled, which would run their "
            "code; let them read it"
        )
    if group_or_others_write(found):
        raise StorageError(
            f"{path} can be written by others: it is not unpickled, which could run their code; "
            f"if nobody changed it: chmod go-w {shlex.quote(str(path))}"
        )


def read_text(path: str | os.PathLike[str], most: int = RECORD_BYTES) -> str:
    """All of the file, undecodable bytes as `\ufffd`. Raises OSError."""
    return read_bytes(path, most).decode("utf-8", errors="replace")


def read_json(path: Path) -> Any:
    """The content of the JSON file. Raises OSError, or ValueError if it is not JSON."""
    return parsed(read_bytes(path))


def record_in(
    path: Path, kind: type[Record], most: int = RECORD_BYTES, *, own: bool = False
) -> Record | None:
    """The record in the JSON file; None if there is none. own: also None for another user's."""
    import msgspec  # a rank that only logs needs none of it

    try:
        return msgspec.json.decode(read_bytes(path, most, own=own), type=kind)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def build_types() -> None:
    """Call it before threads read records. msgspec builds what it needs of a struct when that is
    first read, and crashes where two threads do so at once (0.22)."""
    import msgspec

    kinds = msgspec.Struct.__subclasses__()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        with contextlib.suppress(TypeError, NameError):  # of a module that is just being imported
            msgspec.json.Decoder(kind)


def table_in(path: Path) -> dict[str, Any]:
    """The JSON object in the file; empty if it cannot be read, or is none."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def number_in(value: object) -> float | None:
    """What a script logged as a number; None for what is none, not finite or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value)
