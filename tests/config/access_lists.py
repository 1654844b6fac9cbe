"""POSIX access control lists for tests, which have no setfacl."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
Entry = tuple[int, int, int]
"""Tag, id (0 where the tag has none), rights."""


def set_list(path: Path, entries: Sequence[Entry], *, default: bool = False) -> None:
    """Skips the test where the file system knows no such lists."""
    named = (USER, GROUP)
    body = [struct.pack("<HHI", t, r, i if t in named else 0xFFFFFFFF) for t, i, r in entries]
    try:
        kind = "default" if default else "access"
        os.setxattr(path, f"system.posix_acl_{kind}", struct.pack("<I", 2) + b"".join(body))
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("the file system has no access control lists")
