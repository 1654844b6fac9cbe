"""A directory that was made beside another takes its place at once."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from pathlib import Path

_EXCHANGE = 2  # RENAME_EXCHANGE, renameat2(2)
_AT_FDCWD = -100


def put_in_place(fresh: Path, output: Path) -> None:
    """Exchange the two, so that a reader sees one or the other; where a file system cannot, move
    the old one away first."""
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
