"""A copied environment on a node: what must name the place that it lies in.

Console scripts, `pyvenv.cfg`, `.pth` files and the finders of editable installs hold absolute
paths. They are not among the files of a pack; their texts travel in its facts, with a mark for the
tree's path, and are written once that is known. What else holds the old path still finds the
shared original.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from fsdpkit.staging.manifest import Manifest, StageError

WRITTEN = "written"
"""The fact that holds the texts: JSON of {path: [mode, text]}."""
HERE = "\0"
"""Stands in a text for the tree's path."""
_LONGEST = 127
"""Bytes of a script's first line that all kernels read."""
_PLAIN = re.compile(r"/[\w./+@:=,-]+", re.ASCII)
_START_S = 120.0
_SHOWN = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"


class LocalPython(NamedTuple):
    """The environment's copy on this node."""

    prefix: Path
    bin: Path
    """To be put first on PATH."""


def relocate(tree: Path, manifest: Manifest) -> LocalPython:
    """Write the files that name the tree's place, and start its Python once.

    Is idempotent. Raises StageError; the shared environment then still works.
    """
    if not _PLAIN.fullmatch(str(tree)):
        raise StageError("settings", f"no script can name a Python in {str(tree)!r}")
    directories = {entry.path for entry in manifest.entries if entry.kind == "dir"}
    names = {entry.path for entry in manifest.entries}
    for path, mode, text in _texts(manifest):
        parent, _, name = path.rpartition("/")
        if parent not in directories or path in names or name in ("", ".", ".."):
            raise StageError("storage", f"an environment's text has no place: {path!r}")
        _write(tree / path, 0o600 | mode & 0o100, _placed(text, str(tree)))
    local = LocalPython(tree / "prefix", tree / "prefix" / "bin")
    _start(local, "base" in manifest.roots)
    return local


def _texts(manifest: Manifest) -> list[tuple[str, int, str]]:
    try:
        told = json.loads(manifest.facts.get(WRITTEN, "{}"))
        return [(str(path), int(mode), str(text)) for path, (mode, text) in told.items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StageError("storage", f"an environment's texts cannot be read: {error}") from error


def _placed(text: str, tree: str) -> str:
    """The text for a tree that lies there."""
    text = text.replace(HERE, tree)
    first = text.partition("\n")[0]
    if first.startswith("#!") and len(os.fsencode(first)) > _LONGEST and tree in first:
        raise StageError("settings", f"{tree} is too long for the first line of a script")
    return text


def _write(path: Path, mode: int, text: str) -> None:
    """Whole or not at all, unless it is there."""
    content = text.encode("utf-8", "surrogateescape")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if not path.is_symlink() and path.is_file() and path.read_bytes() == content:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = "disk-full" if full else "storage"
        raise StageError(cause, f"{path}: {error.strerror}") from error


def _start(local: LocalPython, based: bool) -> None:
    """Raises StageError unless its Python says that it lies there, and so does its base."""
    found = [str(local.bin / name) for name in ("python", "python3") if (local.bin / name).exists()]
    if not found:
        raise StageError("environment-missing", f"there is no Python in {local.bin}")
    try:
        done = subprocess.run(
            [found[0], "-I", "-c", _SHOWN],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=True,
        )
        shown = os.fsdecode(done.stdout).splitlines()[-2:]
        wanted = [local.prefix, local.prefix.parent / "base"][: 1 + based]
        if not all(map(os.path.samefile, shown, wanted)) or len(shown) < len(wanted):
            raise StageError("environment-missing", f"{found[0]} is still a Python of {shown}")
    except (OSError, subprocess.SubprocessError) as error:
        raise StageError("environment-missing", f"{found[0]} does not start: {error}") from error
