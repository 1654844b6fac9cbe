"""Where blocks come from in the first place: files on the shared file system, or one pack of them.

Only one node reads them, each file once and in order. What changes meanwhile is an error: half an
old file and half a new one would train without a word.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence

from fsdpkit.staging.manifest import BLOCK, MOST_BYTES, Manifest, StageError
from fsdpkit.staging.stream import Piece, Pieces, in_bytes, joined, read_at, shown

PACK_MAGIC = b"fsdpkpk1"
# A FIFO or a device that took a file's name is neither waited for nor made a terminal.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MISSING = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ESTALE,
        errno.ENXIO,
        errno.ESPIPE,
    )
)


def unreadable(path: bytes | str, error: OSError) -> StageError:
    """What an error of the shared file system is for a person."""
    cause = "data-missing" if error.errno in _MISSING else "storage"
    return StageError(cause, f"{shown(path)}: {error.strerror}")


class SharedFiles:
    """Blocks of files as they were listed."""

    def __init__(self, manifest: Manifest, sources: Sequence[str]) -> None:
        """sources: where each of the manifest's files lies, in its order."""
        self._pieces = Pieces(manifest)
        if len(sources) != len(self._pieces.files):
            raise ValueError(f"{len(sources)} paths for {len(self._pieces.files)} files")
        self._sources = sources
        self._open: tuple[int, int] | None = None

    def read(self, index: int) -> bytes:
        """Block `index`; no bytes for one of zeros. Raises StageError if a file has changed."""
        pieces = list(self._pieces.of(index))
        return joined([self._read(piece, len(pieces) == 1) for piece in pieces])

    def _read(self, piece: Piece, whole: bool) -> bytes:
        entry, path = self._pieces.files[piece.file], self._sources[piece.file]
        try:
            descriptor = self._opened(piece.file)
            data = read_at(descriptor, piece, whole)
            # Looked at after reading: a file that is as it was listed now was so all the time.
            now = os.fstat(descriptor)
            if piece.start + piece.length == entry.size:
                self.close()
        except OSError as error:
            raise unreadable(path, error) from error
        if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (
            entry.size,
            entry.mtime_ns,
        ):
            raise StageError("data-missing", f"{shown(path)} changed while it was copied")
        return data

    def _opened(self, number: int) -> int:
        """The descriptor of a file; that of a long one stays open from block to block."""
        if self._open and self._open[0] == number:
            return self._open[1]
        self.close()
        path = in_bytes(self._sources[number])
        self._open = number, os.open(path, _FLAGS)
        return self._open[1]

    def close(self) -> None:
        if self._open:
            descriptor, self._open = self._open[1], None
            os.close(descriptor)


class PackFile:
    """Blocks of one file that holds many: a magic, its manifest's length, that, the stream."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises StageError where it is missing or no pack."""
        self._path = os.fspath(path)
        try:
            self._descriptor = os.open(self._path, _FLAGS)
        except OSError as error:
            raise StageError(
                "environment-missing", f"{shown(self._path)}: {error.strerror}"
            ) from error
        try:
            self.manifest = self._manifest()
        except BaseException:
            self.close()
            raise

    def _manifest(self) -> Manifest:
        try:
            head = os.pread(self._descriptor, 16, 0)
            length = int.from_bytes(head[8:], "big")
            if head[:8] != PACK_MAGIC or length > MOST_BYTES:
                raise self._broken("is no pack")
            self._begin = 16 + length
            manifest = Manifest.decode(os.pread(self._descriptor, length, 16))
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise unreadable(self._path, error) from error
        if size != self._begin + manifest.size or len(manifest.blocks) != manifest.block_count:
            raise self._broken("is no whole pack")
        return manifest

    def _broken(self, what: str) -> StageError:
        return StageError("storage", f"{shown(self._path)} {what}")

    def read(self, index: int) -> bytes:
        """Block `index`, of the SHA-256 that the pack says; no bytes for one of zeros. Raises
        StageError."""
        length = self.manifest.length(index)
        piece = Piece(0, self._begin + index * BLOCK, length, 0)
        try:
            data = read_at(self._descriptor, piece, whole=False)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if hashlib.sha256(data).hexdigest() != self.manifest.blocks[index]:
            raise self._broken(f"is damaged in block {index}")
        return joined([data])

    def close(self) -> None:
        os.close(self._descriptor)
