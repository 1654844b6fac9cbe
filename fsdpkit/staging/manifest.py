"""What is copied: a list of files, and their contents as one stream that is cut into blocks.

The contents of all files, one after another in the list's order, are the stream. Files of a byte
and files of a terabyte travel alike: block by block, each of them checked by its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

BLOCK = 4 << 20
"""Bytes of a block; the last of a stream may have fewer."""
MOST_ENTRIES = 5_000_000
MOST_LEVELS = 256
MOST_BYTES = 1 << 30
"""Of an encoded manifest when it is no longer compressed."""
_MODE = 0o700
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class StageError(Exception):
    """Why files cannot be copied. cause: as in fsdpkit.failures.causes."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause


class CopiedEntry(NamedTuple):
    """One name in a tree. Its directories stand before it."""

    path: str
    """Relative, parts separated by "/"; bytes that are no UTF-8 as os.fsdecode has them."""
    kind: str
    """`file`, `dir` or `link`."""
    size: int = 0
    """Bytes, of a file."""
    mode: int = _MODE
    """What the owner may do with it."""
    mtime_ns: int = 0
    target: str = ""
    """Of a link."""


class BlockSource(Protocol):
    """Where blocks come from: the shared file system, or a copy on this node's disk."""

    def read(self, index: int) -> bytes:
        """Block `index`; no bytes for one that is all zeros. Raises StageError."""
        ...


@dataclass(frozen=True)
class Manifest:
    """What a tree has."""

    entries: tuple[CopiedEntry, ...]
    roots: dict[str, str] = field(default_factory=dict)
    """Where what has this first name came from."""
    blocks: tuple[str, ...] = ()
    """SHA-256 of each block, where they are known before anything is read."""
    facts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        """Bytes of the stream."""
        return sum(entry.size for entry in self.entries)

    @property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.entries)

    @property
    def block_count(self) -> int:
        return -(-self.size // BLOCK)

    def length(self, index: int) -> int:
        """Bytes of block `index`."""
        return min(BLOCK, self.size - index * BLOCK)

    @cached_property
    def digest(self) -> str:
        """Names the tree: SHA-256 over its names, sizes, modes and times."""
        told = json.dumps([self.entries, self.roots, self.facts], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def encode(self) -> bytes:
        told = {name: getattr(self, name) for name in ("entries", "roots", "blocks", "facts")}
        return zlib.compress(json.dumps(told).encode(), 1)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises StageError for whatever is none, or leads out of its tree."""
        unpacked = zlib.decompressobj()
        try:
            text = unpacked.decompress(data, MOST_BYTES)
            if not unpacked.eof:
                raise ValueError("too long")
            told = json.loads(text)
            found = cls(
                tuple(_entry(each) for each in told["entries"]),
                _texts(told["roots"]),
                tuple(map(_digest, told["blocks"])),
                _texts(told["facts"]),
            )
        except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
            raise StageError("storage", f"a list of files cannot be read: {error}") from error
        _check(found)
        return found


def _entry(told: Any) -> CopiedEntry:
    path, kind, size, mode, mtime_ns, target = told
    if not (isinstance(path, str) and isinstance(target, str)):
        raise ValueError("a name is no text")
    (path + target).encode("utf-8", "surrogateescape")  # ValueError for what is no name's bytes
    if not all(type(each) is int and abs(each) < 1 << 63 for each in (size, mode, mtime_ns)):
        raise ValueError(f"{path!r}: a number is none")
    return CopiedEntry(path, kind, size, mode, mtime_ns, target)


def _texts(told: Any) -> dict[str, str]:
    if type(told) is not dict or not all(isinstance(each, str) for each in told.values()):
        raise ValueError("a text is none")
    return dict(told)


def _digest(told: Any) -> str:
    if not (isinstance(told, str) and _DIGEST.fullmatch(told)):
        raise ValueError("a block's SHA-256 is none")
    return told


def _check(manifest: Manifest) -> None:
    if len(manifest.entries) > MOST_ENTRIES:
        raise StageError("settings", f"more than {MOST_ENTRIES:,} files and directories")
    if manifest.blocks and len(manifest.blocks) != manifest.block_count:
        raise StageError("storage", "a list of files does not have as many blocks as it says")
    seen: dict[str, str] = {"": "dir"}
    for entry in manifest.entries:
        if why := _why_not(entry, seen):
            raise StageError("storage", f"a list of files names {entry.path!r}, which {why}")
        seen[entry.path] = entry.kind


def _why_not(entry: CopiedEntry, seen: dict[str, str]) -> str | None:
    """What is wrong with it, after those before it."""
    parts = entry.path.split("/")
    if "\0" in entry.path + entry.target or not all(parts) or {".", ".."} & {*parts}:
        return "is no name below a directory"
    if len(parts) > MOST_LEVELS:
        return "is too deep"
    if entry.path in seen:
        return "stands there twice"
    if seen.get("/".join(parts[:-1])) != "dir":
        return "is in no directory of the list"
    if entry.kind not in ("file", "dir", "link") or (entry.kind == "link") != bool(entry.target):
        return "is of no kind"
    if entry.size < 0 or (entry.size and entry.kind != "file") or entry.mode & ~_MODE:
        return "has no size or mode"
    return None
