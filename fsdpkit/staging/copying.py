"""One tree on a node's disk, while it is filled and while it is read.

Blocks come one after another; each is recorded with its SHA-256 once it is written. Who goes on
with what another left, or finds a tree from before the node's last start, reads and compares.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from pathlib import Path

from fsdpkit.staging.directories import Directories, failing, make_directory, own_directory, removed
from fsdpkit.staging.manifest import CopiedEntry, Manifest, StageError
from fsdpkit.staging.stream import Piece, Pieces, in_bytes, joined, read_at, sha256_of

_DIGEST_BYTES = 32
_PLAIN = 0o600
_NAME_BYTES = 4096
"""Room that a name takes on the disk, beside a file's bytes."""
_SPARE = 1.02
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWN_WAY = ".pyc"
"""Such files Python writes anew where it wants to: only their names are looked at."""


def this_start() -> bytes:
    """Names the time since the node started: what was written before may not be on the disk."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return hashlib.sha256(file.read()).digest()
    except OSError:
        return bytes(_DIGEST_BYTES)


class StageCopy:
    """The blocks of a manifest, in files below a directory.

    `read` and `sha256` may be called from any thread, the others from one.
    """

    def __init__(self, trees: Path, directory: int, name: str, manifest: Manifest) -> None:
        """Open what is there, as a whole tree or one to be filled. directory: the descriptor of
        `trees`. Raises OSError."""
        self.manifest = manifest
        self.done = 0
        """Blocks that are there, from the first on."""
        self._trees, self._directory, self._name = trees, directory, name
        self._pieces = Pieces(manifest)
        self._paths = [in_bytes(entry.path) for entry in self._pieces.files]
        self._tree = own_directory(directory, name, make=False)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        record = name.partition(".")[0] + ".blocks"
        self._record = os.open(record, flags, _PLAIN, dir_fd=directory)
        self._writing: tuple[int, int] | None = None
        self._parents, self._readers = Directories(self._tree), Directories(self._tree)
        self._reading = threading.Lock()

    def write(self, index: int, data: bytes | memoryview, sha256: bytes) -> None:
        """The next block, of which the caller knows that it has this SHA-256; no bytes for one of
        zeros, which become a hole. Raises StageError, such as for a full disk."""
        if index != self.done or (data and len(data) != self.manifest.length(index)):
            raise ValueError(f"block {index} of {len(data)} bytes after {self.done} blocks")
        view = memoryview(data)
        with self._failing():
            for piece in self._pieces.of(index):
                self._put(piece, view[piece.at : piece.at + piece.length])
            os.pwrite(self._record, sha256, _DIGEST_BYTES * (index + 1))
        self.done = index + 1

    def _put(self, piece: Piece, data: memoryview) -> None:
        entry = self._pieces.files[piece.file]
        descriptor = self._opened(piece)
        end = piece.start + piece.length
        if data:
            _write_all(descriptor, data, piece.start)
        else:
            os.ftruncate(descriptor, end)
        if end == entry.size:
            _dress(descriptor, entry)
            self._close_file()

    def _opened(self, piece: Piece) -> int:
        if self._writing and self._writing[0] == piece.file:
            return self._writing[1]
        self._close_file()
        parent, name = self._parents.of(self._paths[piece.file])
        opened = _continued(parent, name, piece.start) if piece.start else _created(parent, name)
        self._writing = piece.file, opened
        return self._writing[1]

    def _close_file(self) -> None:
        if self._writing:
            descriptor, self._writing = self._writing[1], None
            os.close(descriptor)

    def read(self, index: int) -> bytes:
        """A block that is there; no bytes for one of zeros. Whoever gets it compares its SHA-256.
        Raises IndexError, StageError."""
        if index >= self.done:
            raise IndexError(f"block {index} is not there yet")
        return self._read(index)

    def _read(self, index: int, mend: bool = False) -> bytes:
        """mend: give files that are there their modes and times again."""
        pieces = list(self._pieces.of(index))
        with self._reading, self._failing():
            return joined([self._piece(piece, len(pieces) == 1, mend) for piece in pieces])

    def _piece(self, piece: Piece, whole: bool, mend: bool) -> bytes:
        entry = self._pieces.files[piece.file]
        parent, name = self._readers.of(self._paths[piece.file])
        descriptor = os.open(name, _OLD, dir_fd=parent)
        try:
            data = read_at(descriptor, piece, whole)
            if mend and piece.start + piece.length == entry.size:
                if os.fstat(descriptor).st_size != entry.size:
                    raise OSError(errno.ESTALE, "a copied file was changed")
                _dress(descriptor, entry)
            return data
        finally:
            os.close(descriptor)

    def sha256(self, index: int) -> bytes:
        """Of a block that is there, as it was written."""
        return os.pread(self._record, _DIGEST_BYTES, _DIGEST_BYTES * (index + 1))

    def check(self) -> None:
        """Count the blocks that are on the disk as they were recorded."""
        self.done = 0
        for index in range(self.manifest.block_count):
            try:
                found = sha256_of(self._read(index, mend=True), self.manifest.length(index))
            except StageError:
                break
            if found != self.sha256(index):
                break
            self.done = index + 1

    def is_whole(self) -> bool:
        """Whether all names are there as they were written, and since this start of the node; from
        an earlier one, whether all bytes are. Further names may be there. Raises OSError."""
        blocks = self.manifest.block_count
        if os.fstat(self._record).st_size != _DIGEST_BYTES * (blocks + 1):
            return False
        with self._reading:
            if not all(map(self._is_there, self.manifest.entries)):
                return False
        if os.pread(self._record, _DIGEST_BYTES, 0) == this_start():
            self.done = blocks
            return True
        self.check()
        if self.done == blocks:
            os.pwrite(self._record, this_start(), 0)
        return self.done == blocks

    def _is_there(self, entry: CopiedEntry) -> bool:
        try:
            parent, name = self._readers.of(in_bytes(entry.path))
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if entry.kind == "dir":
                return stat.S_ISDIR(found.st_mode)
            if entry.kind == "link":
                return os.readlink(name, dir_fd=parent) == in_bytes(entry.target)
        except OSError:
            return False
        same = (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns)
        return stat.S_ISREG(found.st_mode) and (same or entry.path.endswith(_OWN_WAY))

    def make_directories(self) -> None:
        """Raises StageError."""
        with self._failing():
            for entry in self.manifest.entries:
                if entry.kind == "dir":
                    make_directory(*self._parents.of(in_bytes(entry.path)))

    def look_for_room(self) -> None:
        """Raises StageError where there is not enough for what is not there yet."""
        with self._failing():
            free = os.fstatvfs(self._tree)
            if free.f_bavail * free.f_frsize < self._needed():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _failing(self) -> contextlib.AbstractContextManager[None]:
        return failing(self._trees, self._needed())

    def _needed(self) -> float:
        """Bytes of room for what is not there yet."""
        whole = self.manifest.size * _SPARE + _NAME_BYTES * len(self.manifest.entries)
        return whole * (1 - self.done / max(1, self.manifest.block_count))

    def finish(self) -> Path:
        """Add what has no bytes, and give the tree its name. Raises StageError."""
        if self.done != self.manifest.block_count:
            raise ValueError(f"{self.done} of {self.manifest.block_count} blocks are there")
        final = self._name.partition(".")[0]
        with self._failing():
            for entry in self.manifest.entries:
                if entry.kind == "link" or (entry.kind == "file" and not entry.size):
                    _add(entry, *self._parents.of(in_bytes(entry.path)))
            os.pwrite(self._record, this_start(), 0)
            os.rename(self._name, final, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._name = final
            return self.path

    @property
    def path(self) -> Path:
        """Where the tree is. Raises OSError where that path leads elsewhere."""
        path = self._trees / self._name
        if not os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._tree)):
            raise OSError(errno.ESTALE, "a copied tree was replaced")
        return path

    def close(self) -> None:
        """Reads and writes no more."""
        self.done = 0
        self._close_file()
        self._parents.close()
        with self._reading:
            self._readers.close()
        os.close(self._record)
        os.close(self._tree)


def _write_all(descriptor: int, data: memoryview, start: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, start)
        data, start = data[written:], start + written


def _created(parent: int, name: bytes) -> int:
    """A new file, in place of what an earlier try left."""
    try:
        return os.open(name, _NEW, _PLAIN, dir_fd=parent)
    except FileExistsError:
        removed(parent, name)
        return os.open(name, _NEW, _PLAIN, dir_fd=parent)


def _continued(parent: int, name: bytes, start: int) -> int:
    """A file whose first bytes are there, without those after them."""
    descriptor = os.open(name, _OLD, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ESTALE, "a copied file was replaced")
        os.fchmod(descriptor, _PLAIN)
        writing = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
    os.ftruncate(writing, start)
    return writing


def _dress(descriptor: int, entry: CopiedEntry) -> None:
    """Give a file its mode and time. Its owner may always read it: to hand it on."""
    if (mode := entry.mode | stat.S_IRUSR) != _PLAIN:
        os.fchmod(descriptor, mode)
    os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))


def _add(entry: CopiedEntry, parent: int, name: bytes) -> None:
    """A link or an empty file, in place of what an earlier try left."""
    if entry.kind == "file":
        descriptor = _created(parent, name)
        _dress(descriptor, entry)
        os.close(descriptor)
        return
    try:
        os.symlink(in_bytes(entry.target), name, dir_fd=parent)
    except FileExistsError:
        removed(parent, name)
        os.symlink(in_bytes(entry.target), name, dir_fd=parent)
