"""A job's Python environment as one file: made once, named by its files, kept in the user's cache.

The name comes from a listing (names, sizes, times, modes, links), so a second submission reads
nothing but that. It counts bytecode only roughly, by powers of two: each import on a login node may
add some, which is no reason to read gigabytes again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fsdpkit.bounded import open_regular
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.surroundings import PythonEnvironment
from fsdpkit.config.units import format_bytes
from fsdpkit.errors import FsdpkitError, StorageError
from fsdpkit.rendering.script import Plan, python_of
from fsdpkit.runs.caches import cache_directory
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.scheduling.environment_files import EnvironmentFiles, StaysShared, files_of
from fsdpkit.scheduling.pruning import why_unfinished
from fsdpkit.scheduling.run_states import standings
from fsdpkit.staging.manifest import BLOCK, StageError
from fsdpkit.staging.source import PACK_MAGIC, SharedFiles

LINK = "environment.pack"
"""In a run's directory: a link to the pack that its jobs use."""
_UNUSED_S, _DRAFT_S = 86400.0, 3600.0
_DIGEST_BYTES = 128
"""Of an encoded manifest, at most, for each block."""
_TRIES = 2
_TELL_S = 5.0
_log = logging.getLogger(__name__)

Progress = Callable[[int, int], object]
"""Told how many bytes were packed, and of how many."""


class PackedEnvironment(NamedTuple):
    """The pack that a job's nodes copy, if there can be one."""

    path: Path | None
    notes: list[str]
    """What stays on the shared file system, a sentence each."""
    bytes: int = 0
    made: bool = False
    """Now; else it was there."""


class _ChangedMeanwhile(Exception):
    """What is not as it was listed, in words."""


def packed(
    python: PythonEnvironment,
    stays: Iterable[Path] = (),
    progress: Progress | None = None,
) -> PackedEnvironment:
    """The pack of this environment, made if there is none of it as it is now.

    stays: what an editable install is not copied for, as the working directory, the run's and the
    script. Raises StorageError.
    """
    stays, changed = list(stays), ""
    try:
        files = files_of(python, stays)
        prefix = os.path.realpath(files.manifest.facts["prefix"])
        key = hashlib.sha256(os.fsencode(prefix)).hexdigest()[:16]
        directory = cache_directory() / "environments" / key
        make_private_dir(directory)
        with _alone_in(directory):
            for _ in range(_TRIES):
                if (found := _kept(directory, files)) is not None:
                    return found
                try:
                    return _made(directory, files, lambda: files_of(python, stays), progress)
                except _ChangedMeanwhile as error:
                    changed = str(error)
                files = files_of(python, stays)
    except StaysShared as error:
        return PackedEnvironment(None, [str(error)])
    except OSError as error:
        raise StorageError(
            f"the environment {python.path} cannot be packed: {error.filename or directory}: "
            f"{error.strerror} (packs are kept in $XDG_CACHE_HOME)"
        ) from error
    raise StorageError(
        f"the environment {python.path} changes while it is packed: {changed}; submit later"
    )


def pack_for(plan: Plan, paths: RunPaths) -> None:
    """Have the run's jobs find the pack of their environment, if there can be one; what takes
    long, and what stays shared, is logged. Raises StorageError, OSError."""
    stays = [plan.work_dir, paths.dir]
    if plan.job.entry.file is not None:
        stays.append(plan.job.entry.file)
    told_s = time.monotonic()

    def tell(done: int, size: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _TELL_S:
            told_s = time.monotonic()
            _log.info(
                "packing the environment: %d %% of %s", 100 * done // size, format_bytes(size)
            )

    found = packed(python_of(plan), stays, tell)
    for note in found.notes:
        _log.info("stage.environment: %s", note)
    if found.path is not None:
        link_pack(found.path, paths.dir)
        how = "packed the environment" if found.made else "the environment was packed before"
        _log.info("%s: %s", how, format_bytes(found.bytes))
    else:
        _log.info("the job runs from the shared environment")


def link_pack(pack: Path, run_dir: Path) -> None:
    """Let the run's jobs find the pack, and the pack be kept as long as these may start. Raises
    OSError."""
    runs = _runs_of(pack)
    make_private_dir(runs)
    with contextlib.suppress(FileExistsError):
        (runs / hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:16]).symlink_to(run_dir)
    temporary = run_dir / f".{LINK}.{os.urandom(4).hex()}.tmp"
    temporary.symlink_to(pack)
    os.replace(temporary, run_dir / LINK)


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Of two that pack the same, one waits. Without locks on a file system both do the work."""
    number = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _named(directory: Path, files: EnvironmentFiles) -> Path:
    manifest = files.manifest
    told = hashlib.sha256(PACK_MAGIC)
    bytecode = 0
    for entry in manifest.entries:
        if "__pycache__" in entry.path:
            bytecode += 1
        else:
            told.update(repr(tuple(entry)).encode())
    told.update(repr((manifest.roots, manifest.facts, bytecode.bit_length())).encode())
    return directory / f"{told.hexdigest()}.pack"


def _kept(directory: Path, files: EnvironmentFiles) -> PackedEnvironment | None:
    path = _named(directory, files)
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
        if found.st_uid == os.geteuid():
            os.utime(path)
            return PackedEnvironment(path, files.notes, found.st_size)
    except OSError:
        pass
    return None


# ---- Making one


def _made(
    directory: Path,
    files: EnvironmentFiles,
    listed_again: Callable[[], EnvironmentFiles],
    progress: Progress | None,
) -> PackedEnvironment:
    """Raises _ChangedMeanwhile, OSError or StorageError, and then leaves nothing."""
    _forget_old(directory)
    free = shutil.disk_usage(directory).free
    if free < files.manifest.size:
        needed = format_bytes(files.manifest.size)
        raise StorageError(
            f"the environment has {needed}, and {directory} has {format_bytes(free)} free for its "
            "pack: name another directory in XDG_CACHE_HOME"
        )
    path = _named(directory, files)
    temporary = path.with_suffix(f".{os.urandom(4).hex()}.part")
    try:
        size = _write(temporary, files, progress)
        if _named(directory, listed_again()) != path:
            raise _ChangedMeanwhile("it has other files than before")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return PackedEnvironment(path, files.notes, size, made=True)


def _write(path: Path, files: EnvironmentFiles, progress: Progress | None) -> int:
    """The magic, the length of the list of files, that list, their contents. The digests are known
    last, and the list's place is filled up with zeros."""
    manifest = files.manifest
    bare = len(manifest.encode())
    room = bare + manifest.block_count * _DIGEST_BYTES + BLOCK // 64
    digests: list[str] = []
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.seek(len(PACK_MAGIC) + 8 + room)
        for block in _blocks(files):
            digests.append(hashlib.sha256(block).hexdigest())
            file.write(block)
            if progress is not None:
                progress(min(len(digests) * BLOCK, manifest.size), manifest.size)
        size = file.tell()
        listed = replace(manifest, blocks=tuple(digests)).encode()
        if len(listed) > room:
            raise StorageError(f"the list of {manifest.files:,} files has no room in their pack")
        file.seek(0)
        file.write(PACK_MAGIC + room.to_bytes(8, "big") + listed.ljust(room, b"\0"))
        file.flush()
        os.fsync(file.fileno())
    return size


def _blocks(files: EnvironmentFiles) -> Iterator[bytes]:
    """Raises _ChangedMeanwhile for a file that is not as it was listed."""
    source = SharedFiles(files.manifest, files.sources)
    try:
        for index in range(files.manifest.block_count):
            yield source.read(index) or bytes(files.manifest.length(index))
    except StageError as error:
        kind = _ChangedMeanwhile if error.cause == "data-missing" else StorageError
        raise kind(str(error)) from error
    finally:
        source.close()


# ---- Those of before


def _runs_of(pack: Path) -> Path:
    """The directory of links to the runs that were submitted with it."""
    return pack.with_suffix(".runs")


def _forget_old(directory: Path) -> None:
    """Remove packs that were not used for a day and that no job may still start with; and drafts
    that nobody writes to."""
    now = time.time()
    packs = []
    for path in directory.iterdir():
        age_s = now - path.lstat().st_mtime
        if path.suffix == ".part" and age_s > _DRAFT_S:
            path.unlink(missing_ok=True)
        if path.suffix == ".pack" and age_s > _UNUSED_S:
            packs.append(path)
    for pack in set(packs) - _needed(packs):
        shutil.rmtree(_runs_of(pack), ignore_errors=True)
        pack.unlink(missing_ok=True)


def _needed(packs: Iterable[Path]) -> set[Path]:
    """Those with a run that still links to them, and that is not known to be over."""
    needed: set[Path] = set()
    runs: list[tuple[Path, Path, RunRecord]] = []
    for pack in packs:
        for link in _runs_of(pack).glob("*"):
            run_dir = Path(os.readlink(link))
            if os.path.realpath(run_dir / LINK) != os.path.realpath(pack):
                continue
            try:
                runs.append((pack, run_dir, load(run_dir)))
            except FsdpkitError:
                needed.add(pack)
    asked = [run for run in runs if run[0] not in needed]
    try:
        answers = standings([(RunPaths(run_dir), record) for _, run_dir, record in asked])
    except FsdpkitError:
        return {*needed, *(pack for pack, _, _ in asked)}
    return needed | {
        pack
        for (pack, _, record), answer in zip(asked, answers, strict=True)
        if why_unfinished(record, answer.states)
    }
