"""The files on the shared file system that a job asked for, as a manifest.

Links that stay within what is copied stay links; others are followed, and each directory is walked
once, so that no cycle of links is walked for ever. Names are bytes: those that are no UTF-8 are
copied like others.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from fsdpkit.staging.manifest import MOST_ENTRIES, CopiedEntry, Manifest, StageError
from fsdpkit.staging.source import unreadable
from fsdpkit.staging.stream import in_bytes, shown

_MAGIC = re.compile(r"[*?[]")


def listed(
    items: Iterable[tuple[str, str]], share: tuple[int, int, int] | None = None
) -> tuple[Manifest, list[str]]:
    """What a job's items hold, and the path of each file in the manifest's order.

    items: (name, path or pattern). share: (node, ranks per node, world size); with it a node has
    the files that its ranks read, by their index among the item's sorted files, and links to the
    shared originals of others. Raises StageError.
    """
    walk = _Walk()
    roots: dict[str, str] = {}
    for name, pattern in items:
        if name in roots:
            raise StageError("settings", f"two things to be copied are named {name}")
        base, found = _matches(pattern)
        roots[name] = _text(base)
        walk.place(in_bytes(name), base, found)
    walk.run()
    entries, sources = _chosen(walk, share)
    return Manifest(tuple(entries), roots), sources


def _chosen(walk: _Walk, share: tuple[int, int, int] | None) -> tuple[list[CopiedEntry], list[str]]:
    entries, sources = [], []
    counts: dict[str, int] = {}
    for path in sorted(walk.entries):
        entry, source = walk.entries[path], walk.sources.get(path)
        if share and path in walk.counted:
            name = path.partition("/")[0]
            number = counts[name] = counts.get(name, -1) + 1
            if source and (number % share[2]) // share[1] != share[0]:
                entry, source = CopiedEntry(path, "link", target=source), None
        entries.append(entry)
        if source is not None:
            sources.append(source)
    return entries, sources


def _matches(pattern: str) -> tuple[bytes, list[bytes]]:
    """The directory that a pattern's names are below, and those names. A path without a wildcard
    is what it names itself, with no names below."""
    path = os.path.abspath(in_bytes(pattern))
    parts = _text(path).split("/")
    magic = [bool(_MAGIC.search(part)) for part in parts]
    if not any(magic) or os.path.lexists(path):
        return os.path.realpath(path), []
    first = magic.index(True)
    base = os.path.realpath(b"/" + in_bytes("/".join(parts[1:first])))
    try:
        found = list(dict.fromkeys(_matching(base, b"", parts[first:])))
    except OSError as error:
        raise unreadable(error.filename or base, error) from error
    if not found:
        raise StageError("data-missing", f"{shown(path)}: no file has such a name")
    return base, found


def _matching(base: bytes, below: bytes, parts: list[str]) -> Iterator[bytes]:
    """The names below `base/below` that fit, relative to base. `**` follows no links."""
    head, rest = parts[0], parts[1:]
    if head == "**" and rest:
        yield from _matching(base, below, rest)
    with os.scandir(os.path.join(base, below) if below else base) as entries:
        names = sorted(entries, key=lambda entry: entry.name)
    for entry in names:
        path, name = os.path.join(below, entry.name), _text(entry.name)
        if name.startswith(".") and not head.startswith("."):
            continue
        if head == "**" and rest:
            if entry.is_dir(follow_symlinks=False):
                yield from _matching(base, path, parts)
        elif fnmatchcase(name, head):
            if not rest:
                yield path
            elif entry.is_dir():
                yield from _matching(base, path, rest)


class _Walk:
    """What was found so far. Paths in the tree and on the shared file system are bytes."""

    def __init__(self) -> None:
        self.entries: dict[str, CopiedEntry] = {}
        self.sources: dict[str, str] = {}
        self.counted: set[str] = set()
        """Paths that are files for a script, links to files too."""
        self._placed: dict[bytes, bytes] = {}
        """Where in the tree a path of the shared file system is, by its real path; with all that
        lies below it."""
        self._todo: list[tuple[bytes, bytes]] = []

    def place(self, name: bytes, base: bytes, found: list[bytes]) -> None:
        """Take what a pattern found below `base`, or base itself."""
        pairs = [(name + b"/" + each, os.path.join(base, each)) for each in found]
        folders: dict[bytes, bytes] = {}
        for path, real in reversed(pairs or [(name, base)]):
            self._todo.append((path, real))
            folder, last = os.path.split(real)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            self._placed.setdefault(os.path.join(folders[folder], last), path)
        for path, _ in pairs:
            parent = path.rpartition(b"/")[0]
            while parent and self._directory(parent):
                parent = parent.rpartition(b"/")[0]

    def run(self) -> None:
        """Walk through all that was placed. Raises StageError."""
        while self._todo:
            path, real = self._todo.pop()
            try:
                self._add(path, real, os.lstat(real))
            except OSError as error:
                raise unreadable(error.filename or real, error) from error
            if len(self.entries) > MOST_ENTRIES:
                raise StageError("settings", f"more than {MOST_ENTRIES:,} files and directories")

    def _add(self, path: bytes, real: bytes, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            self._link(path, real)
        elif stat.S_ISREG(found.st_mode):
            self._file(path, real, found)
        elif not stat.S_ISDIR(found.st_mode):
            raise StageError("data-missing", f"{shown(real)} is no file: it cannot be copied")
        elif (place := self._placed.get(real, path)) != path:
            self._kept(path, place)
        else:
            self._directory(path)
            with os.scandir(real) as entries:
                names = sorted((entry.name for entry in entries), reverse=True)
            self._todo.extend((path + b"/" + name, real + b"/" + name) for name in names)

    def _directory(self, path: bytes) -> bool:
        """Whether it is new."""
        text = _text(path)
        new = text not in self.entries
        self.entries[text] = CopiedEntry(text, "dir")
        return new

    def _file(self, path: bytes, real: bytes, found: os.stat_result) -> None:
        bit = stat.S_IRUSR if found.st_uid == os.geteuid() else stat.S_IROTH
        if not found.st_mode & bit and not os.access(real, os.R_OK):
            raise StageError("data-missing", f"{shown(real)} may not be read")
        text = _text(path)
        mode = stat.S_IRUSR | found.st_mode & stat.S_IRWXU
        self.entries[text] = CopiedEntry(text, "file", found.st_size, mode, found.st_mtime_ns)
        self.sources[text] = _text(real)
        self.counted.add(text)

    def _link(self, path: bytes, real: bytes) -> None:
        found = os.stat(real)
        target = os.path.realpath(real)
        if (place := self._place_of(target)) is not None:
            if stat.S_ISREG(found.st_mode):
                self.counted.add(_text(path))
            self._kept(path, place)
        elif os.path.join(os.path.realpath(os.path.dirname(real)), b"").startswith(
            os.path.join(target, b"")
        ):
            raise StageError("data-missing", f"{shown(real)} leads to a directory that it is in")
        else:
            self._placed[target] = path
            self._add(path, target, found)

    def _place_of(self, real: bytes) -> bytes | None:
        """Where in the tree a real path is copied to, if it is."""
        below = b""
        while real not in self._placed:
            real, slash, name = real.rpartition(b"/")
            if not real or not slash:
                return None
            below = b"/" + name + below
        return self._placed[real] + below

    def _kept(self, path: bytes, place: bytes) -> None:
        target = os.path.relpath(b"/" + place, os.path.dirname(b"/" + path))
        self.entries[_text(path)] = CopiedEntry(_text(path), "link", target=_text(target))


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
