"""The work tree that a submission sends: which files, named by what is in them, as one stream.

`tree_of` reads the files of the tree (fsdpkit/worktree/files.py says which), `write_stream` sends a
manifest and then the files' bytes, `receive` makes them a directory on the other side. A tree is
sent once: its name is the digest of its manifest. Nothing that arrives is believed before its
digest was compared, and links are made last, so that nothing is written through one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from fsdpkit.config.ownership import group_or_others_write
from fsdpkit.errors import DamagedError, StorageError
from fsdpkit.worktree.files import Limit, files_of, top_of

MOST_FILES = 50_000
_CHUNK_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 32 << 20
_STALE_S = 86400
"""After which what an interrupted transfer left is removed."""


@dataclass(frozen=True)
class TreeEntry:
    """One file or link of a tree."""

    path: str
    kind: str
    """`f`: a file, `x`: one that can be executed, `l`: a symbolic link."""
    content: str
    """SHA-256 of a file, target of a link."""
    size_bytes: int


@dataclass(frozen=True)
class Tree:
    """The files of one moment."""

    top: Path
    entries: tuple[TreeEntry, ...]

    @property
    def manifest(self) -> bytes:
        rows = [[e.path, e.kind, e.content, e.size_bytes] for e in self.entries]
        return json.dumps(rows, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()[:32]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


# ---- The laptop's side


def tree_of(directory: Path, most_mb: int) -> Tree:
    """The tree around `directory`. Raises UsageError: too large, or git is silent; StorageError."""
    limit = Limit(most_mb * 1_000_000, MOST_FILES, "raise tree_mb of the host in hosts.toml")
    found = files_of(top_of(directory), limit)
    top = found.top
    try:
        return Tree(top, tuple(made for name in sorted(found.sizes) if (made := _entry(top, name))))
    except OSError as error:
        raise StorageError(f"{error.filename or top} cannot be read: {error.strerror}") from error


def _entry(top: Path, path: str) -> TreeEntry | None:
    """None for what git knows and somebody deleted, and for what is neither file nor link."""
    place = top / path
    try:
        found = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return TreeEntry(path, "l", os.readlink(place), 0)
    if not stat.S_ISREG(found.st_mode):
        return None
    digest, size = hashlib.sha256(), 0
    with open(place, "rb") as file:
        while part := file.read(_CHUNK_BYTES):
            digest.update(part)
            size += len(part)
    kind = "x" if found.st_mode & stat.S_IXUSR else "f"
    return TreeEntry(path, kind, digest.hexdigest(), size)


def write_stream(tree: Tree, to: IO[bytes]) -> None:
    """Manifest and contents, compressed. Raises StorageError for a changed file, OSError."""
    manifest = tree.manifest
    with gzip.GzipFile(fileobj=to, mode="wb", compresslevel=3, mtime=0) as out:
        out.write(len(manifest).to_bytes(8, "big") + manifest)
        for entry in tree.entries:
            if entry.kind != "l":
                _copy_unchanged(tree.top / entry.path, entry, out)


def _copy_unchanged(place: Path, entry: TreeEntry, out: gzip.GzipFile) -> None:
    left = entry.size_bytes
    with open(place, "rb") as file:
        while left and (part := file.read(min(left, _CHUNK_BYTES))):
            out.write(part)
            left -= len(part)
        if left or file.read(1):
            raise StorageError(f"{place} changed while it was sent; submit again")


# ---- The login node's side


def trees_dir() -> Path:
    return Path(os.path.expanduser("~")) / ".fsdpkit" / "trees"


def find_tree(digest: str) -> Path | None:
    """The directory of the tree if it is there as sent; what a job adds beside is no matter."""
    _check_digest(digest)
    return next((place for place in _places(digest) if is_intact(place)), None)


def _check_digest(digest: str) -> None:
    if not re.fullmatch("[0-9a-f]{32}", digest):
        raise DamagedError(f"{digest[:80]!r} is no tree's digest")


def _places(digest: str) -> list[Path]:
    """Directories of the tree's name: another is made where somebody changed the first."""
    found = trees_dir().glob(f"{digest}*")
    return sorted(place for place in found if re.fullmatch(r"\w+(-[0-9]+)?", place.name))


def _manifest_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.json")


def is_intact(place: Path) -> bool:
    try:
        entries = _checked(_manifest_of(place).read_bytes(), place.name.partition("-")[0])
        return all(_entry(place, entry.path) == entry for entry in entries)
    except (OSError, DamagedError):
        return False


def receive(stream: BinaryIO, digest: str) -> Path:
    """Make the tree that `write_stream` sends, whole or not at all; its directory. Raises
    DamagedError for a stream that is none or is another tree's, StorageError."""
    _check_digest(digest)
    top = trees_dir()
    try:
        for place in (top.parent, top):
            place.mkdir(mode=0o700, exist_ok=True)
            _refuse_of_others(place)
        _remove_stale(top)
        part = top / f".{digest}.{os.urandom(6).hex()}.part"
        part.mkdir(mode=0o700)
        try:
            with gzip.GzipFile(fileobj=stream, mode="rb") as sent:
                manifest = _manifest_in(sent)
                entries = _checked(manifest, digest)
                _write_all(part, entries, sent)
            return _publish(part, digest, manifest)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    except (EOFError, gzip.BadGzipFile) as error:
        raise DamagedError("the work tree did not arrive whole; submit again") from error
    except OSError as error:
        raise StorageError(f"{top} cannot be written: {error.strerror or error}") from error


def _refuse_of_others(place: Path) -> None:
    """Who can write there decides what jobs run. Raises StorageError."""
    found = place.stat()
    if found.st_uid != os.geteuid() or group_or_others_write(found):
        raise StorageError(
            f"{place} is another user's, or others can write to it, and so change what your jobs "
            f"run: chmod go-w {shlex.quote(str(place))}"
        )


def _remove_stale(top: Path) -> None:
    for place in top.glob(".*.part"):
        if time.time() - place.lstat().st_mtime > _STALE_S:
            shutil.rmtree(place, ignore_errors=True)


def _manifest_in(sent: gzip.GzipFile) -> bytes:
    size = int.from_bytes(_exactly(sent, 8), "big")
    if size > _MOST_MANIFEST_BYTES:
        raise DamagedError(f"a work tree's list of files has {size} bytes: that is none")
    return _exactly(sent, size)


def _exactly(sent: gzip.GzipFile, size: int) -> bytes:
    parts = []
    while size:
        part = sent.read(min(size, _CHUNK_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _checked(manifest: bytes, digest: str) -> list[TreeEntry]:
    """The entries of a manifest, none of which leads out of the tree. Raises DamagedError."""
    if hashlib.sha256(manifest).hexdigest()[:32] != digest:
        raise DamagedError("the list of files is another tree's")
    try:
        entries = [TreeEntry(str(p), str(k), str(c), int(n)) for p, k, c, n in json.loads(manifest)]
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"the list of files is none: {error}") from None
    for entry in entries:
        parts = PurePosixPath(entry.path).parts
        sound = (
            entry.kind in ("f", "x", "l")
            and entry.path == "/".join(parts)
            and "\0" not in entry.path + entry.content
            and not {"", "..", ".git"} & {*parts}
            and not entry.path.startswith("/")
            and parts
        )
        if not sound:
            raise DamagedError(f"{entry.path[:200]!r} is no path within a work tree")
    return entries


def _write_all(part: Path, entries: list[TreeEntry], sent: gzip.GzipFile) -> None:
    for entry in entries:
        place = part / entry.path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entry.kind != "l":
            _write_file(place, entry, sent)
    for entry in entries:
        if entry.kind == "l":
            os.symlink(entry.content, part / entry.path)


def _write_file(place: Path, entry: TreeEntry, sent: gzip.GzipFile) -> None:
    """Not writable: what a job changes there would be what the next one runs."""
    digest, left = hashlib.sha256(), entry.size_bytes
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o500 if entry.kind == "x" else 0o400
    with open(os.open(place, flags, mode), "wb") as file:
        while left:
            content = _exactly(sent, min(left, _CHUNK_BYTES))
            digest.update(content)
            file.write(content)
            left -= len(content)
    if digest.hexdigest() != entry.content:
        raise DamagedError(f"{entry.path} changed while it was sent; submit again")


def _publish(part: Path, digest: str, manifest: bytes) -> Path:
    from fsdpkit.runs.layout import write_atomically

    for number in range(1, 1000):
        place = part.with_name(digest if number == 1 else f"{digest}-{number}")
        if is_intact(place):  # somebody sent the same at the same time
            shutil.rmtree(part, ignore_errors=True)
            return place
        if place.exists():
            continue
        write_atomically(_manifest_of(place), manifest)
        try:
            os.rename(part, place)
        except OSError:
            if place.exists():
                continue
            raise
        return place
    raise StorageError(f"{place.parent} holds a thousand changed copies of one tree: remove them")
