"""A node's own disk: trees of files that are filled block by block, found again, and removed.

`<local>/fsdpkit-<uid>/` is ours alone. Below `trees/`, `<digest>` is a whole tree and
`<digest>.part` one that is being filled, with the SHA-256 of each block that is there in
`<digest>.blocks`; a lock, `<digest>.lock`, is held exclusively by whoever fills or removes it and
shared by whoever uses it. Below `jobs/` a job has its directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import time
from pathlib import Path

from fsdpkit.staging.copying import NODE, StageCopy
from fsdpkit.staging.directories import own_directory, removed
from fsdpkit.staging.manifest import Manifest, StageError

_OTHERS_WRITE, _STICKY = 0o002, 0o1000
_CENTRES = 1000
"""User ids below are the system's."""
_FRESH_S = 60.0
"""What was used just now is not removed by others: between two looks nobody holds its lock."""
_POLL_S = 0.1
_TRIES = 10
_JOB = re.compile(r"[\w.+-]+", re.ASCII)


class TreeLock:
    """The lock of one tree, of this process and those forked by it."""

    def __init__(self, directory: int, name: str) -> None:
        self._directory, self._name = directory, name
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self, exclusive: bool, wait_s: float = 0.0) -> bool:
        """Whether it was to be had within that time. What was held before is given up, for a
        moment also where the new lock is given. Raises OSError."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        until = time.monotonic() + wait_s
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            if self._descriptor is None:
                self._descriptor = os.open(self._name, flags, 0o600, dir_fd=self._directory)
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                if self._is_there(self._descriptor):
                    return True
                self.release()
            except BlockingIOError:
                if time.monotonic() >= until:
                    self.release()
                    return False
                time.sleep(_POLL_S)

    def _is_there(self, descriptor: int) -> bool:
        """Not so after somebody removed the tree with its lock."""
        try:
            found = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(descriptor))

    def touch(self) -> None:
        """Its tree is used now."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class StageStore:
    """This user's trees on this node."""

    def __init__(self, path: Path, base: int) -> None:
        self.path = path
        self._base = base
        self._trees = own_directory(base, "trees")
        self._jobs = own_directory(base, "jobs")
        self._locks: dict[str, TreeLock] = {}
        self._held: dict[str, int] = {}
        """Descriptors of jobs' directories."""
        self._names: dict[str, str] = {}
        """Of trees that have another name than their digest."""

    @classmethod
    def open(cls, local: str) -> StageStore:
        """The store in a directory of this node, named with variables of its environment.

        Where somebody else has its name, another beside it. Raises StageError.
        """
        place = os.path.expandvars(local)
        if "$" in place or not os.path.isabs(place):
            raise StageError("settings", f"{NODE}: {local} is no directory: {place}")
        try:
            parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StageError("storage", f"{NODE}: {place}: {error.strerror}") from error
        try:
            return cls._below(parent, place)
        finally:
            os.close(parent)

    @classmethod
    def _below(cls, parent: int, place: str) -> StageStore:
        found = os.fstat(parent)
        others = found.st_mode & _OTHERS_WRITE and not found.st_mode & _STICKY
        if others or (found.st_uid >= _CENTRES and found.st_uid != os.geteuid()):
            raise StageError("storage", f"{NODE}: in {place} others may rename our files")
        name = f"fsdpkit-{os.geteuid()}"
        beside = sorted(each for each in os.listdir(parent) if each.startswith(f"{name}-"))
        why: OSError | None = None
        for each in (name, *beside, f"{name}-{os.urandom(8).hex()}"):
            try:
                return cls(Path(place) / each, own_directory(parent, each))
            except OSError as error:
                why = error
        raise StageError("storage", f"{NODE}: {place}: {why and why.strerror}")

    def lock(self, digest: str) -> TreeLock:
        """The lock of this process for a tree."""
        name = self._names.get(digest, digest)
        return self._locks.setdefault(name, TreeLock(self._trees, f"{name}.lock"))

    def claim(self, manifest: Manifest, wait_s: float = 1800.0) -> Path | None:
        """A whole tree, whose lock is shared then; or none, and it is for the caller to fill, whose
        lock is exclusive. Waits for another job of this user that fills it; where that takes too
        long, or others use a tree that is no longer as it was, the tree gets another name. Raises
        StageError."""
        for number in itertools.count():
            self._names[manifest.digest] = manifest.digest + f"-{number}" * bool(number)
            lock = self.lock(manifest.digest)
            for _ in range(_TRIES):
                try:
                    if not lock.take(exclusive=False, wait_s=wait_s):
                        break
                    if found := self.find(manifest):
                        return found
                    if lock.take(exclusive=True) and not self.find(manifest):
                        return None
                except OSError as error:
                    raise self._failure(error) from error
                time.sleep(_POLL_S * (1 + os.getpid() % 7 / 7))
            lock.release()
        raise AssertionError

    def find(self, manifest: Manifest) -> Path | None:
        """The tree if all of it is there. Its lock is to be held. Raises StageError."""
        try:
            copy = self._copy(manifest)
        except OSError:
            return None
        try:
            if not copy.is_whole():
                return None
            self.lock(manifest.digest).touch()
            return copy.path()
        except OSError as error:
            raise copy.failure(error) from error
        finally:
            copy.close()

    def reader(self, manifest: Manifest) -> StageCopy:
        """A whole tree, to be handed on. Raises StageError."""
        try:
            copy = self._copy(manifest)
            if copy.is_whole():
                return copy
            copy.close()
        except OSError as error:
            raise self._failure(error) from error
        raise StageError("storage", f"{NODE}'s {self.path}: a copied tree is no longer whole")

    def _copy(self, manifest: Manifest, suffix: str = "") -> StageCopy:
        name = self._names.get(manifest.digest, manifest.digest) + suffix
        return StageCopy(self.path / "trees", self._trees, name, manifest)

    def begin(self, manifest: Manifest) -> StageCopy:
        """A tree to be filled, with the blocks that an earlier try left. Its lock is to be held
        exclusively. Raises StageError, such as for a disk without room."""
        name = self._names.get(manifest.digest, manifest.digest)
        part = f"{name}.part"
        try:
            self._demote(name)
            try:
                os.close(own_directory(self._trees, part))
            except OSError:
                removed(self._trees, part.encode())
                os.close(own_directory(self._trees, part))
            copy = self._copy(manifest, ".part")
        except OSError as error:
            raise self._failure(error) from error
        try:
            copy.check()
            copy.prepare()
        except BaseException:
            copy.close()
            raise
        return copy

    def _demote(self, name: str) -> None:
        """A tree under its final name that is not whole becomes one to be filled."""
        try:
            os.rename(name, f"{name}.part", src_dir_fd=self._trees, dst_dir_fd=self._trees)
        except FileNotFoundError:
            return
        except OSError:
            removed(self._trees, name.encode())

    def remove(self, digest: str) -> bool:
        """Remove a tree, whole or not, and give up its lock; not so while others hold it. Raises
        StageError."""
        lock = self.lock(digest)
        try:
            if not lock.take(exclusive=True):
                return False
            self._clear(self._names.get(digest, digest))
        except OSError as error:
            raise self._failure(error) from error
        finally:
            lock.release()
        return True

    def _clear(self, name: str) -> None:
        part = f"{name}.part".encode()
        removed(self._trees, part)
        self._demote(name)
        removed(self._trees, f"{name}.blocks".encode())
        removed(self._trees, part)
        removed(self._trees, f"{name}.lock".encode())

    def prune(self, kept_h: float) -> None:
        """Remove trees and jobs' directories that nobody uses, nor used in the last hours."""
        before = time.time() - max(kept_h * 3600, _FRESH_S)
        for name in {each.partition(".")[0] for each in os.listdir(self._trees)}:
            if name not in self._locks or not self._locks[name].held:
                with contextlib.suppress(OSError):
                    self._prune_tree(name, before)
        for name in os.listdir(self._jobs):
            with contextlib.suppress(OSError):
                if name not in self._held and os.stat(name, dir_fd=self._jobs).st_mtime < before:
                    self.remove_job(name)

    def _prune_tree(self, name: str, before: float) -> None:
        used, lock = self._used(name), TreeLock(self._trees, f"{name}.lock")
        try:
            if used < before and lock.take(exclusive=True) and used in (0.0, self._used(name)):
                self._clear(name)
        finally:
            lock.release()

    def _used(self, name: str) -> float:
        """When a tree was used last; 0 where nobody ever took its lock."""
        try:
            found = os.stat(f"{name}.lock", dir_fd=self._trees, follow_symlinks=False)
        except FileNotFoundError:
            return 0.0
        return found.st_mtime

    def job_dir(self, name: str) -> Path:
        """A job's own directory, made if there is none; others of this user do not remove it while
        this process, or one forked by it, is there. Raises StageError."""
        if not _JOB.fullmatch(name):
            raise ValueError(name)
        try:
            while name not in self._held:
                descriptor = own_directory(self._jobs, name)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.utime(descriptor)
                if os.fstat(descriptor).st_nlink:
                    self._held[name] = descriptor
                else:  # removed before it was locked
                    os.close(descriptor)
        except OSError as error:
            raise self._failure(error) from error
        return self.path / "jobs" / name

    def remove_job(self, name: str) -> bool:
        """Remove a job's directory; not so while another process holds it. Raises StageError."""
        try:
            descriptor = self._held.pop(name, None) or own_directory(self._jobs, name, make=False)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return removed(self._jobs, os.fsencode(name))
            finally:
                os.close(descriptor)
        except (BlockingIOError, FileNotFoundError):
            return False
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StageError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        words = f"{NODE}'s {self.path}: {error.strerror}"
        return StageError("disk-full" if full else "storage", words)
