"""The work tree that a submission sends: which files, named by what is in them, as one stream.

`tree_of` lists what git knows or does not ignore (without git, what is not hidden), `write_stream`
sends a manifest and then the files' bytes, `receive` makes them a directory on the other side. A
tree is sent once: its name is the digest of its manifest. Nothing that arrives is believed before
its digest was compared, and links are made last, so that nothing is written through one.
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
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from fsdpkit.errors import DamagedError, StorageError, UsageError

MOST_FILES = 50_000
_CHUNK_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 32 << 20
_STALE_S = 86400
"""After which what an interrupted transfer left is removed."""


@dataclass(frozen=True)
class Entry:
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
    entries: tuple[Entry, ...]

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
    """The tree around `directory`. Raises UsageError for a large one, StorageError."""
    top = _git_top(directory) or directory
    paths = _files(top)
    if len(paths) > MOST_FILES:
        raise UsageError(
            f"{top} has {len(paths):,} files, more than the {MOST_FILES:,} that are "
            f"sent; {_what_to_leave_out(top)}"
        )
    try:
        _refuse_large(top, paths, most_mb)
        return Tree(top, tuple(entry for path in paths if (entry := _entry(top, path))))
    except OSError as error:
        raise StorageError(f"{error.filename or top} cannot be read: {error.strerror}") from error


def _git(top: Path, *words: str) -> bytes:
    """What git answers. A repository's configuration may name a program for git to run
    (core.fsmonitor), which nobody asked for. Raises StorageError."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(top), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise StorageError(
            f"{top} is in a git repository, and there is no git here to tell what it ignores"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise StorageError(f"git cannot tell what belongs to {top}: {said}")
    return done.stdout


def _git_top(directory: Path) -> Path | None:
    """The work tree that git has around the directory; None outside of any. Where git does not
    answer nothing is sent: what it ignores may be secret."""
    if not any((place / ".git").exists() for place in (directory, *directory.parents)):
        return None
    said = _git(directory, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(said.removesuffix(b"\n")))


def _files(top: Path) -> list[str]:
    """Paths below `top` of what belongs to the tree, sorted."""
    if not (top / ".git").exists():
        return sorted(_walk(top))
    tracked = _git(top, "ls-files", "-z", "--cached", "--recurse-submodules")
    others = _git(top, "ls-files", "-z", "--others", "--exclude-standard")
    found: set[str] = set()  # a conflict lists a file several times
    for path in map(os.fsdecode, [*tracked.split(b"\0"), *others.split(b"\0")]):
        if path.endswith("/"):  # another repository, which is not this one's submodule
            found |= {path + below for below in _files(top / path)}
        elif path:
            found.add(path)
    return sorted(found)


def _walk(top: Path) -> Iterator[str]:
    """Without git: all but hidden directories, caches, virtual environments and runs."""
    for directory, below, names in os.walk(top):
        here = Path(directory)
        below[:] = [
            name
            for name in below
            if not name.startswith(".")
            and name != "__pycache__"
            and not any((here / name / mark).exists() for mark in ("pyvenv.cfg", "run.json"))
        ]
        links = [name for name in below if (here / name).is_symlink()]
        yield from (os.path.relpath(here / name, top) for name in [*names, *links])


def _refuse_large(top: Path, paths: list[str], most_mb: int) -> None:
    by_part: dict[str, int] = {}
    for path in paths:
        try:
            found = os.lstat(top / path)
        except FileNotFoundError:
            continue
        first = path.split("/")[0]
        by_part[first] = by_part.get(first, 0) + found.st_size
    if (total := sum(by_part.values())) <= most_mb * 1_000_000:
        return
    largest = sorted(by_part, key=lambda name: -by_part[name])[:3]
    named = ", ".join(f"{name} ({by_part[name] / 1e6:,.0f} MB)" for name in largest)
    raise UsageError(
        f"the work tree {top} has {total / 1e6:,.0f} MB, more than the {most_mb} MB that are sent; "
        f"its largest parts: {named}; {_what_to_leave_out(top)}"
    )


def _what_to_leave_out(top: Path) -> str:
    return (
        "name in .gitignore what the job does not need, and keep data on the cluster; or raise "
        "tree_mb of the host in hosts.toml"
    )


def _entry(top: Path, path: str) -> Entry | None:
    """None for what git knows and somebody deleted, and for what is neither file nor link."""
    place = top / path
    try:
        found = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return Entry(path, "l", os.readlink(place), 0)
    if not stat.S_ISREG(found.st_mode):
        return None
    digest, size = hashlib.sha256(), 0
    with open(place, "rb") as file:
        while part := file.read(_CHUNK_BYTES):
            digest.update(part)
            size += len(part)
    kind = "x" if found.st_mode & stat.S_IXUSR else "f"
    return Entry(path, kind, digest.hexdigest(), size)


def write_stream(tree: Tree, to: IO[bytes]) -> None:
    """Manifest and contents, compressed. Raises StorageError for a file that is another by now, and
    OSError."""
    manifest = tree.manifest
    with gzip.GzipFile(fileobj=to, mode="wb", compresslevel=3, mtime=0) as out:
        out.write(len(manifest).to_bytes(8, "big") + manifest)
        for entry in tree.entries:
            if entry.kind != "l":
                _copy_unchanged(tree.top / entry.path, entry, out)


def _copy_unchanged(place: Path, entry: Entry, out: gzip.GzipFile) -> None:
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
    """The directory of the tree if it is there as it was sent; what a job added beside its files
    does not matter."""
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
    """Make the tree that `write_stream` sends, whole or not at all; its directory.

    Raises DamagedError for a stream that is none or is another tree's, StorageError.
    """
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
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
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


def _checked(manifest: bytes, digest: str) -> list[Entry]:
    """The entries of a manifest, none of which leads out of the tree. Raises DamagedError."""
    if hashlib.sha256(manifest).hexdigest()[:32] != digest:
        raise DamagedError("the list of files is another tree's")
    try:
        entries = [Entry(str(p), str(k), str(c), int(n)) for p, k, c, n in json.loads(manifest)]
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


def _write_all(part: Path, entries: list[Entry], sent: gzip.GzipFile) -> None:
    for entry in entries:
        place = part / entry.path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entry.kind != "l":
            _write_file(place, entry, sent)
    for entry in entries:
        if entry.kind == "l":
            os.symlink(entry.content, part / entry.path)


def _write_file(place: Path, entry: Entry, sent: gzip.GzipFile) -> None:
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
