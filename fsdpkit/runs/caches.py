"""Data that can be regenerated, cached for this account.

What cannot be read, or is not what it should be, is as good as none. What there is no place for, as
with a read-only home or a full disk, is made again when it is wanted.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from fsdpkit.config.private_files import make_private_dir
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_bytes

T = TypeVar("T")


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/fsdpkit`, or that in the home directory. Raises OSError without one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "fsdpkit"
    try:
        return Path.home() / ".cache" / "fsdpkit"
    except RuntimeError as error:  # an account without an entry, and no HOME
        raise FileNotFoundError(str(error)) from error


def cached(name: str, kind: type[T], most_bytes: int = 1 << 20) -> T | None:
    """What is cached as `name`, a path in the cache; None if there is none of that kind."""
    try:
        path = cache_directory() / name
        return msgspec.json.decode(read_bytes(path, most_bytes, own=True), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def cache(name: str, what: object) -> None:
    """Keep it as `name`, if there is a place for it."""
    with contextlib.suppress(OSError):
        path = cache_directory() / name
        make_private_dir(path.parent)
        write_atomically(path, msgspec.json.encode(what), private=True)
