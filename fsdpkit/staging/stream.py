"""Which bytes of which files a block holds, and how they are read without reading holes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from fsdpkit.staging.manifest import BLOCK, Manifest

_ZEROS = bytes(BLOCK)


class Piece(NamedTuple):
    """A part of one file in a block."""

    file: int
    """Index among the manifest's files."""
    start: int
    """Of the part, in the file; in bytes, as all here."""
    length: int
    at: int
    """Where in the block it begins."""


class Pieces:
    """Where a manifest's blocks lie in its files."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.files = [entry for entry in manifest.entries if entry.kind == "file"]
        self._ends = list(accumulate(entry.size for entry in self.files))

    def of(self, index: int) -> Iterator[Piece]:
        """The parts of files that block `index` consists of. Raises IndexError."""
        if not 0 <= index < self._manifest.block_count:
            raise IndexError(f"there is no block {index}")
        first = now = index * BLOCK
        end = first + self._manifest.length(index)
        number = bisect_right(self._ends, first)
        while now < end:
            until = self._ends[number]
            length = min(until, end) - now
            if length:
                yield Piece(number, now - until + self.files[number].size, length, now - first)
            now += length
            number += 1


def joined(parts: list[bytes]) -> bytes:
    """A block of these parts; no bytes if all are zeros."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return b"" if data == (_ZEROS if len(data) == BLOCK else _ZEROS[: len(data)]) else data


def sha256_of(data: bytes, length: int) -> bytes:
    """The SHA-256 of a block, as `joined` gives it: of zeros where there are no bytes."""
    return hashlib.sha256(data).digest() if data else _sha256_of_zeros(length)


@lru_cache(maxsize=8)
def _sha256_of_zeros(length: int) -> bytes:
    return hashlib.sha256(_ZEROS[:length]).digest()


def read_at(descriptor: int, piece: Piece, whole: bool) -> bytes:
    """A piece of an open file. whole: the piece is all of its block, so that none of its bytes
    need to be read, nor returned, where it lies in a hole. Raises OSError, ESTALE for a file that
    ends before."""
    end = piece.start + piece.length
    if whole and sparse(os.fstat(descriptor)) and next_data(descriptor, piece.start) >= end:
        return b""
    data = os.pread(descriptor, piece.length, piece.start)
    while len(data) < piece.length:
        more = os.pread(descriptor, piece.length - len(data), piece.start + len(data))
        if not more:
            raise OSError(errno.ESTALE, "ends before its time: it was changed")
        data += more
    return data


def sparse(found: os.stat_result) -> bool:
    """Whether a file has fewer bytes on its disk than it is long."""
    return stat.S_ISREG(found.st_mode) and found.st_blocks * 512 < found.st_size


def next_data(descriptor: int, start: int) -> int:
    """Where the next bytes of a file begin that are in no hole; its end where there are none."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError:
        return os.fstat(descriptor).st_size


def in_bytes(path: str) -> bytes:
    """As the file system has it."""
    return path.encode("utf-8", "surrogateescape")


def shown(path: bytes | str) -> str:
    """A path for people: one line, whatever bytes it has."""
    text = path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
    return text if text.isprintable() else repr(text)
