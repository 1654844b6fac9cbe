"""Files and directories that one person writes: as open as is said here, whatever the umask, and
whatever access control list they would get from the directory above."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


def replace_private(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, whole or not at all, for its owner alone; makes the directory.
    Raises OSError; the old content then stands."""
    import tempfile

    make_private_dir(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_private_dir(directory: Path) -> None:
    """Make it and what is missing above it, for its owner alone, if need be. Raises OSError."""
    if directory.is_dir():
        return
    make_private_dir(directory.parent)
    with contextlib.suppress(FileExistsError):
        # Without rights for the group, an inherited access control list lets nobody in either.
        directory.mkdir(mode=0o700)


def make_dir(directory: Path, mode: int) -> None:
    """Make it with exactly this mode. Raises FileExistsError, or OSError."""
    directory.mkdir(mode=0o700)
    set_mode(directory, mode)


def set_mode(directory: Path, mode: int) -> None:
    """Give a directory exactly this mode: no access control list, and none for what will be made
    in it. Raises OSError, also where it is a link."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if hasattr(os, "removexattr"):  # Linux
            _drop(number, "system.posix_acl_default")
            _drop(number, "system.posix_acl_access")
        os.fchmod(number, mode)
    finally:
        os.close(number)


def _drop(number: int, attribute: str) -> None:
    try:
        os.removexattr(number, attribute)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
