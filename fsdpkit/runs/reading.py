"""Reads files in a run directory safely, whoever wrote them.

Others may be able to write to the directory, and the run may be somebody else's. So only regular
files are opened, never a link, a pipe or a device; no open blocks; and no more is read than a file
of its kind can contain. Any problem is an OSError with a sentence, or a ValueError.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any, BinaryIO

from fsdpkit.config.ownership import group_or_others_write
from fsdpkit.errors import StorageError

MOST_BYTES = 64 << 20
"""Of a record; that of an array of 100,000 tasks has 30 MiB."""
MOST_BYTES_OF_LINES = 1 << 30
"""Of a file that grows by lines and is read whole."""


LARGEST = 1e100
"""Number that is computed with: what is made of a few of them still fits into a float."""


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, to be read. Raises OSError."""
    return open(_descriptor(path), "rb")


def open_own(path: Path) -> BinaryIO:
    """The file if it is this user's (or root's) and no other user can change or replace it:
    unpickling can do whatever the reader can. Raises StorageError, or OSError if it is missing."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_of_others(path.parent, os.fstat(directory))
        number = _descriptor(path.name, directory)
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


def _descriptor(path: str | os.PathLike[str], directory: int | None = None) -> int:
    try:
        # Opening a pipe without a writer would block.
        number = os.open(path, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", os.fspath(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path)) from None
        raise
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise kind(code, "it is not a regular file", os.fspath(path))
    return number


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES, *, own: bool = False) -> bytes:
    """All of the file. Raises OSError, also for more than `most` bytes, and PermissionError for
    another user's (not root's) if it must be one's `own`.

    Ten thousand records are read in a row: a Python file object would cost more than the reading.
    """
    number = _descriptor(path)
    try:
        found = os.fstat(number)
        if own and found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it belongs to another user", os.fspath(path))
        size = found.st_size
        parts, left = [b""], most + 1
        # One call reads most records completely; a file that grows meanwhile is read to its end.
        while size <= most and (part := os.read(number, min(left, max(size + 1, 1 << 15)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(number)
    if size > most or left <= 0:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", os.fspath(path))
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES) -> str:
    """All of the file, undecodable bytes as `\ufffd`. Raises OSError."""
    return read_bytes(path, most).decode("utf-8", errors="replace")


def read_json(path: Path) -> Any:
    """The content of the JSON file. Raises OSError, or ValueError if it is not JSON."""
    return parsed(read_bytes(path))


def parsed(text: str | bytes) -> Any:
    """The content of a JSON text. Raises ValueError, also for excessive nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
