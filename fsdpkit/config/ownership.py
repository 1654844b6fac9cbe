"""Who can change a file, or put another in its place: the modes and owners of all that leads to it.

Access control lists are not read; where they widen the group's rights, the mode shows it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

_MAX_LINKS = 40


def only_owner_writes(path: Path, owners: Collection[int] | None = None) -> bool:
    """Whether nobody but root and `owners` (without any: this user) can change the file, or put
    another in its place."""
    return first_unsafe(path, owners) is None


def first_unsafe(path: Path, owners: Collection[int] | None = None) -> Path | None:
    """The first place on the way to the file, or the file, that others can change; None if none.

    What is gone, or leads round in circles, is unsafe itself.
    """
    trusted = {0, *((os.geteuid(),) if owners is None else owners)}
    try:
        whole = Path.cwd() / path
        return next((p for p in _places_on_the_way(whole) if not _is_safe(p, trusted)), None)
    except OSError:
        return path


def _places_on_the_way(path: Path) -> Iterator[Path]:
    """Every directory, link and file that the kernel passes on the way to `path`, itself last."""
    left, links = list(reversed(path.parts)), 0
    at = Path(left[-1])
    while left:
        part = left.pop()
        at = at.parent if part == ".." else at / part
        yield at
        if at.is_symlink():
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(at))
            left += reversed(Path(os.readlink(at)).parts)
            at = at.parent


def _is_safe(path: Path, trusted: Collection[int]) -> bool:
    found = path.lstat()
    if found.st_uid not in trusted:
        return False
    if stat.S_ISLNK(found.st_mode):
        return True  # its directory says who can change it
    private = any(_is_private(found.st_gid, user) for user in trusted)
    others = stat.S_IWOTH | (0 if private else stat.S_IWGRP)
    # In a directory like /tmp only a file's owner can rename or remove it.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return bool(sticky) or not found.st_mode & others


def _is_private(group: int, user: int) -> bool:
    """Whether the group is that user's alone, as many systems give everybody one."""
    import grp
    import pwd

    try:
        person, found = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    alone = set(found.gr_mem) <= {person.pw_name}
    return alone and found.gr_name == person.pw_name and person.pw_gid == group
