"""Compiled templates, kept on this account: compiling takes a tenth of a dry run's time.

A kept one is code, as Python's own are in `__pycache__`, so it counts only if it is this account's
alone to write. It is named by all that decided how it was compiled. What cannot be read or kept is
compiled anew; what a script must not hold is checked in every script that is rendered.
"""

from __future__ import annotations

import hashlib
import marshal
import os
from contextlib import suppress
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

import fsdpkit
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.surroundings import stood_in
from fsdpkit.errors import StorageError
from fsdpkit.rendering import sandbox
from fsdpkit.runs.caches import cache_directory
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import open_own

_MOST_BYTES = 8 << 20
_MOST_KEPT = 50


def compiled_templates() -> BytecodeCache | None:
    """None where there is no account, as in a page of a catalogue, or no place for it."""
    if stood_in() is not None:
        return None
    try:
        return _kept_in(cache_directory() / "templates")
    except OSError:
        return None


class CompiledTemplates(BytecodeCache):
    """Files of a checksum and the code that it is of."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._compiler = hashlib.sha256(fsdpkit.__version__.encode() + MAGIC_NUMBER)
        for file in (jinja2.__file__, sandbox.__file__):
            found = os.stat(file)
            self._compiler.update(f"{file}\0{found.st_mtime_ns}\0{found.st_size}\0".encode())

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError, StorageError):
            with open_own(self._path(bucket)) as file:
                content = file.read(_MOST_BYTES)
            if hashlib.sha256(content[32:]).digest() == content[:32]:
                code = marshal.loads(content[32:])
                bucket.code = code if isinstance(code, CodeType) else None

    def dump_bytecode(self, bucket: Bucket) -> None:
        content = marshal.dumps(bucket.code)
        with suppress(OSError):  # a read-only home, a full disk
            make_private_dir(self._directory)
            whole = hashlib.sha256(content).digest() + content
            write_atomically(self._path(bucket), whole, private=True)
            self._forget_old()

    def _path(self, bucket: Bucket) -> Path:
        """key: of the file's name, checksum: of its text."""
        name = self._compiler.copy()
        name.update(f"{bucket.key}\0{bucket.checksum}".encode())
        return self._directory / f"{name.hexdigest()}.code"

    def _forget_old(self) -> None:
        kept = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-_MOST_KEPT]:
            path.unlink(missing_ok=True)


_kept_in = cache(CompiledTemplates)
