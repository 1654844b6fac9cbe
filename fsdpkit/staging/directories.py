"""Directories of ours on a node's disk: opened once, by descriptor, following no link.

Somebody else on the node may have made our names before us, or may change a name between two looks
at it. What a descriptor shows stays what it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.staging.manifest import StageError

NODE = os.uname().nodename
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OPEN = 64


@contextlib.contextmanager
def failing(place: str | Path, needed: float = 0.0) -> Iterator[None]:
    """Make an error of the node's disk one for a person. needed: bytes that are still to come."""
    try:
        yield
    except OSError as error:
        words = f"{NODE}'s {place}: {error.strerror}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StageError("storage", words) from error
        with contextlib.suppress(OSError):
            room = os.statvfs(place)
            words += (
                f", {needed / 1e9:.3g} GB needed, {room.f_bavail * room.f_frsize / 1e9:.3g} free"
            )
        raise StageError("disk-full", words) from error


def make_directory(parent: int, name: bytes | str) -> None:
    """A directory that its owner may write in, in place of whatever else has its name. For a
    parent that is ours. Raises OSError."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)


def own_directory(parent: int, name: str, make: bool = True) -> int:
    """The descriptor of a directory that is ours alone. make: if there is none.

    Raises OSError where the name is a link or a file, or a directory that others own or may enter.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = os.open(name, _FLAGS, dir_fd=parent)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "belongs to somebody else, or others may enter it")
    return descriptor


class Directories:
    """Open directories below one, by their path from it; for one thread at a time."""

    def __init__(self, root: int) -> None:
        """root: its descriptor; stays open."""
        self._root = root
        self._open: dict[bytes, int] = {}

    def of(self, path: bytes) -> tuple[int, bytes]:
        """The descriptor of the directory that a path is in, and its name there. Raises OSError
        where one of the directories is none, or a link."""
        parent, _, name = path.rpartition(b"/")
        if not parent:
            return self._root, name
        found = self._open.get(parent)
        return (self._walk(parent) if found is None else found), name

    def _walk(self, path: bytes) -> int:
        """Opens what is not open yet on the way; each directory is opened from the one above."""
        now, way = self._root, b""
        for name in path.split(b"/"):
            way = way + b"/" + name if way else name
            found = self._open.pop(way, None)
            now = os.open(name, _FLAGS, dir_fd=now) if found is None else found
            self._open[way] = now
        while len(self._open) > _MOST_OPEN:
            os.close(self._open.pop(next(iter(self._open))))
        return now

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def removed(parent: int, name: bytes) -> bool:
    """Remove what has this name, whatever it is, with all below it; whether there was something.

    Follows no link. Raises OSError.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return True
    except FileNotFoundError:
        return False
    try:
        _remove_tree(parent, name)
    except PermissionError:
        _open_up(parent, name)
        _remove_tree(parent, name)
    return True


def _remove_tree(parent: int, name: bytes) -> None:
    for _, directories, files, descriptor in os.fwalk(name, topdown=False, dir_fd=parent):
        for each in files:
            os.unlink(each, dir_fd=descriptor)
        for each in directories:
            try:
                os.rmdir(each, dir_fd=descriptor)
            except NotADirectoryError:  # a link to one
                os.unlink(each, dir_fd=descriptor)
    os.rmdir(name, dir_fd=parent)


def _open_up(parent: int, name: bytes) -> None:
    """Let the owner into all directories again: a script may have closed some."""
    os.chmod(name, 0o700, dir_fd=parent)
    for _, directories, _, descriptor in os.fwalk(name, dir_fd=parent):
        for each in directories:
            if stat.S_ISDIR(os.stat(each, dir_fd=descriptor, follow_symlinks=False).st_mode):
                os.chmod(each, 0o700, dir_fd=descriptor)
