"""A directory that is made beside an older one and takes its place at once: readers see either."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fsdpkit.errors import StorageError, UsageError

_EXCHANGE = 2  # RENAME_EXCHANGE, renameat2(2)
_AT_FDCWD = -100


def present_in(output: Path) -> dict[str, Path]:
    """All files and links in a directory, by path in it; none if it is not there. Raises UsageError
    for what is no directory, StorageError if it cannot be read."""
    if output.is_symlink():
        raise UsageError(f"--output {output}: is a symbolic link; name the directory itself")
    if not output.exists():
        return {}
    if not output.is_dir():
        raise UsageError(f"--output {output}: is no directory")
    try:
        return {
            path.relative_to(output).as_posix(): path
            for path in output.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
    except OSError as error:
        raise StorageError(f"{output}: cannot be read: {error.strerror}") from error


def make_anew(output: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory hold these files and nothing else. Raises StorageError, and then it is as it
    was."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            _fill(fresh, files)
            _put_in_place(fresh, output)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{output}: cannot be written: {error.strerror}") from error


def _fill(directory: Path, files: Mapping[str, bytes]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for name, content in sorted(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if content.startswith(b"#!"):
            path.chmod(0o777 & ~umask)
    directory.chmod(0o777 & ~umask)  # mkdtemp makes it its owner's alone


def _put_in_place(fresh: Path, output: Path) -> None:
    """Exchange the two; where a file system cannot, move the old one away first."""
    if not output.exists():
        os.rename(fresh, output)
        return
    if _exchange(fresh, output):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{output.name}.old.", dir=output.parent))
    os.rename(output, old)
    try:
        os.rename(fresh, output)
    except OSError:
        os.rename(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:  # glibc before 2.28
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0)
