"""Results from a node's disk into the run's directory, file by file.

Each file gets its name when it is complete, so what Slurm interrupts leaves whole files.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.staging.stream import shown

_ON_THE_WAY = ".part"
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE
_MOST_SAID = 20


def bring_back(stage: Path, names: list[str], to: Path) -> Iterator[str]:
    """Copy what is below `stage` under these names. Yields sentences: of what could not be copied,
    and at last how much was."""
    files = size = failed = 0
    try:
        for name in names:
            for source, relative in _found(stage / name, Path(name)):
                try:
                    size += _copied(source, to / relative)
                    files += 1
                except OSError as error:
                    if error.errno in _FULL:
                        raise
                    failed += 1
                    if failed <= _MOST_SAID:
                        yield f"{shown(str(relative))} was not copied back: {error.strerror}"
    except OSError as error:
        yield f"nothing more is copied back to {to}: {error.strerror}"
    if failed > _MOST_SAID:
        yield f"{failed} files were not copied back"
    if files:
        yield f"copied back {files:,} file{'s' * (files != 1)}, {size / 1e6:.1f} MB, to {to}"


def _found(path: Path, relative: Path) -> Iterator[tuple[Path, Path]]:
    """Regular files and links at or below a path, which no link is followed to."""
    names: list[str] = []
    if not path.is_symlink() and path.is_dir():
        try:
            names = sorted(os.listdir(path))
        except OSError:
            yield path, relative  # whose copying says why
    elif os.path.lexists(path):
        yield path, relative
    for name in names:
        yield from _found(path / name, relative / name)


def _copied(source: Path, target: Path) -> int:
    """Bytes. Raises OSError."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(target.name + _ON_THE_WAY)
    if source.is_symlink():
        part.unlink(missing_ok=True)
        part.symlink_to(os.readlink(source))
        size = 0
    else:
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "it is no regular file")
            try:
                with open(part, "wb", opener=_private) as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    size = copy.tell()
            except OSError:
                part.unlink(missing_ok=True)
                raise
    part.replace(target)
    return size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
