"""A node's own disk: trees of files that are filled block by block, found again, and removed.

`<local>/fsdpkit-<uid>/` is ours alone. Below `trees/`, `<name>` is a whole tree and
`<name>.part` one that is being filled, with the SHA-256 of each of its blocks in
`<name>.blocks`. Below `jobs/` a job has its directory. Each has a lock, `<name>.lock`: exclusive
for whoever fills or removes it, shared for whoever uses it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path

from fsdpkit.staging.copying import StageCopy
from fsdpkit.staging.directories import NODE, failing, make_directory, own_directory, removed
from fsdpkit.staging.manifest import Manifest, StageError

_OTHERS_WRITE, _STICKY = 0o002, 0o1000
_SYSTEM_UIDS = 1000
_FRESH_S = 60.0
"""What was used just now is not pruned: who changes from one lock to another has none meanwhile."""
_POLL_S = 0.1
_TRIES = 10
_SUFFIX = re.compile(r"\.(part|blocks|lock)$")
_TREE = re.compile(r"[0-9a-f]{16}", re.ASCII)


class TreeLock:
    """The lock of one tree, of this process and those that it forks."""

    def __init__(self, directory: int, name: str) -> None:
        self._directory, self._name = directory, f"{name}.lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self, exclusive: bool, wait_s: float = 0.0) -> bool:
        """Whether it was to be had within that time. What was held before is given up, for a
        moment also where the new lock is given. Raises OSError."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        until = time.monotonic() + wait_s
        while True:
            if self._descriptor is None:
                self._descriptor = os.open(self._name, flags, 0o600, dir_fd=self._directory)
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                if os.fstat(self._descriptor).st_nlink:
                    return True
                self.release()  # somebody removed the tree with its lock
            except BlockingIOError:
                if time.monotonic() >= until:
                    self.release()
                    return False
                time.sleep(_POLL_S)

    def touch(self) -> None:
        """The tree is used now."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class _Shelf:
    """A directory of trees or of jobs' directories, with their locks."""

    def __init__(self, base: int, name: str) -> None:
        self.directory = own_directory(base, name)
        self._locks: dict[str, TreeLock] = {}

    def lock(self, name: str) -> TreeLock:
        return self._locks.setdefault(name, TreeLock(self.directory, name))

    def demote(self, name: str) -> None:
        """Let nothing stand under a final name while it is filled or removed."""
        try:
            os.rename(name, f"{name}.part", src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except FileNotFoundError:
            return
        except OSError:  # there is such a part: that of a tree that was whole is no better
            if not removed(self.directory, os.fsencode(f"{name}.part")):
                raise
            self.demote(name)

    def remove(self, name: str, unless: float | None = None) -> bool:
        """Remove a tree, whole or not, and give up its lock; not so while others hold it, or where
        it was used at another time than `unless`."""
        lock = self.lock(name)
        try:
            if not lock.take(exclusive=True) or (unless and self._used(name) != unless):
                return False
            self.demote(name)
            for suffix in ("part", "blocks", "lock"):
                removed(self.directory, os.fsencode(f"{name}.{suffix}"))
            return True
        finally:
            lock.release()

    def prune(self, before: float) -> None:
        """Remove what nobody uses, nor used since then."""
        for name in {_SUFFIX.sub("", each) for each in os.listdir(self.directory)}:
            used = self._used(name)
            if used < before and not self.lock(name).held:
                with contextlib.suppress(OSError):
                    self.remove(name, unless=used)

    def _used(self, name: str) -> float:
        """When its lock was touched last; 0 where nobody ever took it."""
        try:
            found = os.stat(f"{name}.lock", dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return 0.0
        return found.st_mtime


class StageStore:
    """This user's trees and jobs on this node. Its methods raise StageError."""

    def __init__(self, path: Path, base: int) -> None:
        """base: the descriptor of `path`."""
        self.path = path
        self._trees, self._jobs = _Shelf(base, "trees"), _Shelf(base, "jobs")

    @classmethod
    def open(cls, local: str) -> StageStore:
        """The store in a directory of this node, named with variables of its environment; where
        somebody else has its name, one beside it."""
        place = os.path.expandvars(local)
        if "$" in place or not os.path.isabs(place):
            raise StageError("settings", f"the node's own disk is no path: {place}")
        with contextlib.suppress(OSError):  # such as a directory for a user's own
            os.mkdir(place, 0o700)
        with failing(place):
            parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return cls._below(parent, place)
            finally:
                os.close(parent)

    @classmethod
    def _below(cls, parent: int, place: str) -> StageStore:
        found = os.fstat(parent)
        others = found.st_mode & _OTHERS_WRITE and not found.st_mode & _STICKY
        if others or (found.st_uid >= _SYSTEM_UIDS and found.st_uid != os.geteuid()):
            raise StageError(
                "storage", f"{NODE}: in {place} others may put theirs in place of ours"
            )
        name = f"fsdpkit-{os.geteuid()}"
        beside = sorted(each for each in os.listdir(parent) if each.startswith(f"{name}-"))
        for each in (name, *beside):
            with contextlib.suppress(OSError):
                return cls(Path(place) / each, own_directory(parent, each))
        name += f"-{os.urandom(8).hex()}"
        return cls(Path(place) / name, own_directory(parent, name))

    def lock(self, manifest: Manifest) -> TreeLock:
        """The lock of this process for a tree."""
        return self._trees.lock(_name(manifest))

    def claim(self, manifest: Manifest, wait_s: float = 1800.0) -> Path | None:
        """A whole tree, whose lock is shared then; or None: its lock is exclusive, and the caller
        begins to fill it. Waits for another job of this user that fills it; where that takes
        longer, or others use a tree that is no longer as it was, that is a StageError."""
        lock = self.lock(manifest)
        for _ in range(_TRIES):
            with failing(self.path):
                if not lock.take(exclusive=False, wait_s=wait_s):
                    break
                if found := self.find(manifest):
                    return found
                if lock.take(exclusive=True) and not self.find(manifest):
                    return None
            time.sleep(_POLL_S * (1 + os.getpid() % 7 / 7))  # not in step with another
        lock.release()
        place = self.path / "trees" / _name(manifest)
        raise StageError(
            "storage", f"{NODE}: another job of yours uses {place}, which is not whole"
        )

    def find(self, manifest: Manifest) -> Path | None:
        """The tree if all of it is there. Its lock is to be held."""
        if (copy := self.whole(manifest)) is None:
            return None
        with failing(self.path), contextlib.closing(copy):
            self.lock(manifest).touch()
            return copy.path

    def whole(self, manifest: Manifest) -> StageCopy | None:
        """The tree if all of it is there, to be handed on. Its lock is to be held."""
        try:
            copy = self._copy(manifest)
        except OSError:
            return None
        with contextlib.ExitStack() as stack:
            stack.callback(copy.close)
            with failing(self.path):
                if copy.is_whole():
                    stack.pop_all()
                    return copy
        return None

    def _copy(self, manifest: Manifest, suffix: str = "") -> StageCopy:
        trees = self.path / "trees"
        return StageCopy(trees, self._trees.directory, _name(manifest) + suffix, manifest)

    def begin(self, manifest: Manifest) -> StageCopy:
        """A tree to be filled, with the blocks that an earlier try left. Its lock is to be held
        exclusively."""
        name = _name(manifest)
        with failing(self.path):
            self._trees.demote(name)
            make_directory(self._trees.directory, f"{name}.part")
            copy = self._copy(manifest, ".part")
        with contextlib.ExitStack() as stack:
            stack.callback(copy.close)
            copy.make_directories()
            copy.check()
            copy.look_for_room()
            stack.pop_all()
        return copy

    def remove(self, manifest: Manifest) -> bool:
        """Remove a tree, whole or not, and give up its lock; not so while others hold it."""
        with failing(self.path):
            return self._trees.remove(_name(manifest))

    def remove_tree(self, name: str) -> bool:
        """The same by the name of its directory."""
        if not _TREE.fullmatch(name):
            raise StageError("storage", f"{NODE}: {name!r} is no tree's name")
        with failing(self.path):
            return self._trees.remove(name)

    def prune(self, kept_h: float) -> None:
        """Remove trees and jobs' directories that nobody uses, nor used in the last hours."""
        with failing(self.path):
            for shelf in (self._trees, self._jobs):
                shelf.prune(time.time() - max(kept_h * 3600, _FRESH_S))

    def job_dir(self, name: str) -> Path:
        """A job's own directory, made if there is none. Other processes do not remove it while
        this one, or one that it forks, is there."""
        with failing(self.path):
            if not self._jobs.lock(name).take(exclusive=False, wait_s=60.0):
                raise OSError(errno.EBUSY, f"{name} is being removed")
            self._jobs.lock(name).touch()
            make_directory(self._jobs.directory, name)
        return self.path / "jobs" / name

    def remove_job(self, name: str) -> bool:
        """Remove a job's directory; not so while another process holds it."""
        with failing(self.path):
            return self._jobs.remove(name)


def _name(manifest: Manifest) -> str:
    """Short, for it stands in the first line of scripts, of which kernels read 127 bytes."""
    return manifest.digest[:16]
