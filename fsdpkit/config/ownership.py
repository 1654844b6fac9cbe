"""Who can change a file, or put another in its place: owners, modes and access control lists.

Where a file has a POSIX access control list, the group's bits of its mode are that list's mask. So
a mode that lets the group write nothing lets nobody of the list write either, and one that does
says only that somebody may: the list is then read. Not seen are lists that the kernel does not
enforce itself (NFSv4's, GPFS's own): whom they let write, the file server's modes may not show.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

_MAX_LINKS = 40
_ACCESS = "system.posix_acl_access"
_HEADER, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
"""As <linux/posix_acl_xattr.h> has them: a version; tag, rights, id."""
_VERSION = 2
_USER, _GROUP_OBJ, _GROUP, _MASK = 0x02, 0x04, 0x08, 0x10
_WRITE = 2


def only_owner_writes(path: Path, owners: Collection[int] | None = None) -> bool:
    """Whether only root and `owners` (none: this user) can change or replace the file."""
    return first_unsafe(path, owners) is None


def first_unsafe(path: Path, owners: Collection[int] | None = None) -> Path | None:
    """The first place on the way to the file, or the file, that others can change; None if none.
    What is gone, or leads round in circles, is unsafe itself."""
    trusted = {0, *((os.geteuid(),) if owners is None else owners)}
    try:
        return next((p for p in _places_on_the_way(path) if not _is_safe(p, trusted)), None)
    except OSError:
        return path


def only_owner_makes(directory: Path) -> bool:
    """Whether nobody but root and this user can make a file in it, as everybody can in /tmp."""
    try:
        found = directory.stat()
    except OSError:
        return False
    trusted = {0, os.geteuid()}
    writes = group_or_others_write(found)
    return found.st_uid in trusted and not (
        writes and (found.st_mode & stat.S_IWOTH or _group_writes(directory, found.st_gid, trusted))
    )


def anybody_writes(path: Path, top: Path) -> bool:
    """Whether every user may change or exchange the file, or make others from `top` down to it."""

    def is_open(place: Path) -> bool:
        mode = place.lstat().st_mode
        as_tmp = mode & stat.S_ISVTX and place in top.parents
        return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode) and not as_tmp

    try:
        return any(map(is_open, _places_on_the_way(path)))
    except OSError:
        return True


def first_open_to_all(path: Path) -> Path | None:
    """The first directory on the way to `path`, or that, in which every user may put something
    else in the place of what lies there; None if none. Raises OSError."""
    return next((p for p in _places_on_the_way(path) if _anybody_replaces(p.lstat())), None)


def group_or_others_write(found: os.stat_result) -> bool:
    """Whether anybody but its owner may write to a file, be it a group of one."""
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _anybody_replaces(found: os.stat_result) -> bool:
    others = found.st_mode & (stat.S_IWOTH | stat.S_ISVTX)
    return stat.S_ISDIR(found.st_mode) and others == stat.S_IWOTH


def _places_on_the_way(path: Path) -> Iterator[Path]:
    """Every directory, link and file that the kernel passes on the way to `path`, itself last."""
    left, links = list(reversed((Path.cwd() / path).parts)), 0
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
    # In a directory like /tmp only a file's owner can rename or remove it.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if sticky or not group_or_others_write(found):
        return True
    return not found.st_mode & stat.S_IWOTH and not _group_writes(path, found.st_gid, trusted)


def _group_writes(path: Path, group: int, trusted: Collection[int]) -> bool:
    """Whether a group with another member may write, or somebody whom a list names."""
    entries = _access_list(path) or [(_GROUP_OBJ, _WRITE, 0)]
    mask = next((rights for tag, rights, _ in entries if tag == _MASK), _WRITE)
    for tag, rights, number in entries:
        if not rights & mask & _WRITE:
            continue
        if tag == _USER and number not in trusted:
            return True
        own = group if tag == _GROUP_OBJ else number
        if tag in (_GROUP_OBJ, _GROUP) and not any(_is_private(own, user) for user in trusted):
            return True
    return False


def _access_list(path: Path) -> list[tuple[int, int, int]]:
    """Tag, rights and id of each entry; empty where the mode says all. Raises OSError."""
    if not hasattr(os, "getxattr"):  # not Linux
        return []
    try:
        found = os.getxattr(path, _ACCESS)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return []
        raise
    try:
        (version,) = _HEADER.unpack_from(found)
        entries = list(_ENTRY.iter_unpack(found[_HEADER.size :]))
    except struct.error:
        version, entries = 0, []
    if version != _VERSION or not entries:
        raise OSError(errno.EINVAL, "its access control list is of an unknown kind", str(path))
    return entries


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


@functools.cache
def name_of(user: int) -> str:
    """A user's name; the number if that has none."""
    import pwd  # only Unix has it

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
