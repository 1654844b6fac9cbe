"""What a job needs of file systems, looked at before it waits in a queue: room for what it writes,
and the files that it names.

The room is what the file system has free; how much of it a quota leaves to one user nobody can say
for all file systems, so a job that passes may still meet its quota.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.runs.file_system import type_of

_GB = 10**9
_REMEDY = "choose another place with --runs, or make room (fsdpkit prune)"
_MEMORY = ("tmpfs", "ramfs")
"""What certainly is no shared storage; any other may be mounted elsewhere, too."""


def refuse_without_room(job: LoadedJob, runs: Path, training: Any) -> None:
    """Raises StorageError where there is less room than the run certainly needs."""
    if (room := room_for(job, runs, training)).too_small:
        raise StorageError(f"job {job.spec.name}: {room.note}")


class Room(NamedTuple):
    """Whether what the run certainly needs has no room, and what a person should know of it."""

    too_small: bool
    note: str


def room_for(job: LoadedJob, runs: Path, training: Any) -> Room:
    """training: the settings of the job's trainer, which may know how large checkpoints are."""
    free = _free_bytes(runs)
    if free is None:
        return Room(False, "")
    place = f"the file system of {runs} has {_gb(free)} free"
    if (wanted := job.on_disk.room_gb) is not None:
        if free < wanted * _GB:
            return Room(True, f"{place}, less than the {wanted:g} GB of files.room_gb: {_REMEDY}")
        return Room(False, "")
    size = None if training is None else job.trainer.checkpoints(training)
    if size is None:
        return Room(False, "")
    if free < size.one_bytes:
        needed = f"a checkpoint of {size.what} takes {_gb(size.one_bytes)}"
        return Room(True, f"{place}, and {needed}: {_REMEDY}")
    if free < (whole := size.kept * size.one_bytes):
        while_written = f"{size.kept} checkpoints, the number on disk while one is written"
        return Room(False, f"{place}; {while_written}, take {_gb(whole)}")
    return Room(False, "")


def _free_bytes(directory: Path) -> int | None:
    """Free for this user on the file system that holds it, or will; None: nobody says."""
    for place in (directory, *directory.parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return found.f_bavail * found.f_frsize if found.f_blocks else None
    return None


def _gb(size: float) -> str:
    return f"{size / _GB:,.1f} GB"


def check_needed(job: LoadedJob, work_dir: Path, *, elsewhere: bool) -> list[str]:
    """What to know of the files that the job names. Raises ConfigError for one of `files.needs`
    that is not there or cannot be read. elsewhere: the job runs on other machines than this one."""
    named = [work_dir / os.path.expanduser(text) for text in job.on_disk.needs]
    for path in named:
        if (why := why_not_read(path)) is not None:
            raise ConfigError(f"job {job.spec.name}: files.needs: {path}: {why}")
    if not elsewhere:
        return []
    return [
        f"{path} is in this machine's memory ({kind}), which no node can see"
        for path in dict.fromkeys([*named, *_of_training(job, work_dir)])
        if (kind := type_of(path)) in _MEMORY
    ]


def why_not_read(path: Path) -> str | None:
    try:
        if path.is_dir():
            os.listdir(path)
        else:
            with open(path, "rb"):
                pass
    except OSError as error:
        return error.strerror
    return None


def _of_training(job: LoadedJob, work_dir: Path) -> Iterator[Path]:
    training = job.spec.training
    if training is msgspec.UNSET:
        return
    for text in job.trainer.inputs(training):
        if (work_dir / text).exists():
            yield work_dir / text
