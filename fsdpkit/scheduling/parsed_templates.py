"""Templates as they were parsed, kept on this account: Jinja is a quarter of a dry run's time.

A kept one is named by what it was made of: the template's files, the code that read them, and
Jinja. What cannot be read, or is not this account's alone to write, is as good as none, and the
template is parsed as if nothing had been kept. What a script must not hold is checked in every
script that is rendered, whatever its statements came from.

A page of a catalogue has no account. It carries what the templates of its centre were parsed into
when it was built, so that its first script waits neither for Jinja nor for a long template.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.surroundings import stood_in
from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError, StorageError
from fsdpkit.rendering.environment import parsed
from fsdpkit.rendering.statements import Statement
from fsdpkit.runs.caches import cache_directory
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import open_own

_MOST_BYTES = 8 << 20
_MOST_KEPT = 50
_RENDERING = Path(fsdpkit.__file__).parent / "rendering"

Statements = tuple[Statement, ...]


def parsed_template(template: Template) -> Statements:
    """What the template consists of. Raises RenderError."""
    if stood_in() is not None:
        content = _carried.get(_carried_as(template))
        return parsed(template) if content is None else _unpacked(content)
    try:
        path = cache_directory() / "templates" / f"{_name_of(template)}.msgpack"
    except OSError:
        return parsed(template)
    if (kept := _kept(path)) is not None:
        return kept
    statements = parsed(template)
    _keep(path, statements)
    return statements


_carried: Mapping[str, bytes] = {}


def carry(found: Mapping[str, bytes]) -> None:
    """found: what `to_carry` gave where this page was built."""
    global _carried
    _carried = found


def to_carry(templates: Iterable[Template]) -> dict[str, bytes]:
    """What each was parsed into, by a name that says of which files. One that cannot be parsed is
    left out: whoever asks for it gets the reason."""
    found: dict[str, bytes] = {}
    for template in templates:
        name = _carried_as(template)
        with suppress(RenderError):
            if name not in found and (content := _packed(parsed(template))) is not None:
                found[name] = content
    return found


def _carried_as(template: Template) -> str:
    whole = hashlib.sha256()
    for name, part in sorted(template.parts.items()):
        whole.update(f"{name}\0{len(part)}\0".encode() + part)
    return whole.hexdigest()


def _name_of(template: Template) -> str:
    """The SHA-256 of all that decides how it is parsed, as hex. Raises OSError."""
    whole = hashlib.sha256(fsdpkit.__version__.encode())
    jinja = PathFinder.find_spec("jinja2")
    code = sorted(entry.path for entry in os.scandir(_RENDERING) if entry.name.endswith(".py"))
    for file in [*code, *([jinja.origin] if jinja and jinja.origin else [])]:
        found = os.stat(file)
        whole.update(f"{file}\0{found.st_mtime_ns}\0{found.st_size}\0".encode())
    whole.update(_carried_as(template).encode())
    return whole.hexdigest()


def _kept(path: Path) -> Statements | None:
    try:
        with open_own(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            return None
        return _unpacked(content)
    except (OSError, StorageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _keep(path: Path, statements: Statements) -> None:
    """If there is a place for it, and if it can be had again just as it is."""
    try:
        if (content := _packed(statements)) is None:
            return
        make_private_dir(path.parent)
        write_atomically(path, content, private=True)
        _forget_old(path.parent)
    except OSError:
        return  # a read-only home, a full disk


def _packed(statements: Statements) -> bytes | None:
    """None: they hold what no file can, such as a number."""
    try:
        content = msgspec.msgpack.encode(statements)
        return content if _unpacked(content) == statements else None
    except (OverflowError, TypeError, RecursionError, msgspec.MsgspecError):
        return None


@lru_cache(maxsize=4)
def _unpacked(content: bytes) -> Statements:
    return msgspec.msgpack.decode(content, type=Statements)


def _forget_old(directory: Path) -> None:
    kept = sorted(directory.glob("*.msgpack"), key=lambda path: path.stat().st_mtime)
    for path in kept[:-_MOST_KEPT]:
        with suppress(FileNotFoundError):
            path.unlink()
