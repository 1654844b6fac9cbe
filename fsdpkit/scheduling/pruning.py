"""`fsdpkit prune`: what ended runs hold on disk, and which of their checkpoints nobody needs.

survey(): look, write nothing. prune(): read every byte of the checkpoint that stays, then delete
what was agreed to, and only that. Of a run that may be running, whose end nobody knows, that
belongs to somebody else or that cannot be read, nothing is deleted; nor what a job that is still to
run starts from, nor the best checkpoint. No symbolic link is followed, not even by a race: names
are taken relative to directories that are held open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdpkit.errors import DamagedError, FsdpkitError, StorageError
from fsdpkit.runs.checkpoints import (
    best_of,
    checkpoints_in,
    checksums,
    describe,
    problems_of,
    step_of,
    wrong_size,
)
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_json
from fsdpkit.runs.record import RunRecord, changing, load
from fsdpkit.scheduling.run_states import States, standings

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_S = 30.0

Report = Callable[[Path, int], object]
"""Told which checkpoint is read, and how many bytes of it since the last time."""


@dataclass(frozen=True)
class SpareCheckpoint:
    """A checkpoint, or the draft of one, that may go."""

    path: Path
    bytes: int


@dataclass(frozen=True)
class Holding:
    """What one run holds. Sizes in bytes, files as they are counted by `ls -l`."""

    run: str
    dir: Path
    bytes: int
    ended_s: float | None
    """Unix time."""
    kept: tuple[Path, ...] = ()
    """Checkpoints that stay: the newest whole one of each training, the best, what others need."""
    spare: tuple[SpareCheckpoint, ...] = ()
    why_not: str | None = None
    """Why nothing of it may be deleted."""
    chosen: bool = False
    """Whether its spare ones are to be deleted."""

    @property
    def spare_bytes(self) -> int:
        return sum(one.bytes for one in self.spare)


@dataclass(frozen=True)
class PrunedRun:
    """What became of one run's spare checkpoints."""

    dir: Path
    deleted: tuple[SpareCheckpoint, ...]
    problem: str | None = None


def survey(directories: Sequence[Path], top: Path) -> list[Holding]:
    """What these runs hold, the largest first; `top` is searched for jobs that need checkpoints.
    Asks the scheduler once. Raises StorageError if `top` cannot be read."""
    records: dict[Path, RunRecord] = {}
    refused: dict[Path, str] = {}
    for directory in directories:
        if why := _not_mine(directory):
            refused[directory] = why
            continue
        try:
            records[directory] = load(directory)
        except FsdpkitError as error:
            refused[directory] = f"its record cannot be read: {error}"
    states = _states(records)
    needed = _needed(top)
    found = [Holding(d.name, d, _bytes_below(d), None, why_not=why) for d, why in refused.items()]
    for directory, record in records.items():
        found.append(_holding(directory, record, states[directory], needed))
    return sorted(found, key=lambda one: -one.bytes)


def prune(holding: Holding, report: Report | None = None) -> PrunedRun:
    """Delete the run's spare checkpoints, once the ones that stay were read to the last byte.
    Whatever speaks against it meanwhile is the answer's `problem`, and nothing more is deleted."""
    try:
        spare = _still_spare(holding, report)
        before = load(holding.dir)
        if why := why_unfinished(before, _states({holding.dir: before})[holding.dir]):
            return PrunedRun(holding.dir, (), why)
        # Who resumes the run needs this lock, too; deleting takes longer than one may hold it.
        with changing(RunPaths(holding.dir), patience_s=_LOCK_S) as record:
            if [job.job_id for job in record.jobs] != [job.job_id for job in before.jobs]:
                return PrunedRun(holding.dir, (), "it was resumed meanwhile")
            if record.resuming is not None:
                return PrunedRun(holding.dir, (), "it is being resumed")
            hidden = [(one, _hide(holding.dir, one.path)) for one in spare]
    except FsdpkitError as error:
        return PrunedRun(holding.dir, (), str(error))
    except OSError as error:
        return PrunedRun(holding.dir, (), f"{error.filename}: {error.strerror}")
    deleted = []
    for one, name in hidden:
        try:
            _remove(holding.dir, one.path.parent, name)
            deleted.append(one)
        except OSError as error:
            problem = f"{one.path.parent / name}: {error.strerror}; it is only partly deleted"
            return PrunedRun(holding.dir, tuple(deleted), problem)
    return PrunedRun(holding.dir, tuple(deleted))


# ---- Which runs


def _not_mine(directory: Path) -> str | None:
    try:
        found = os.lstat(directory)
    except OSError as error:
        return f"it cannot be inspected: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else "it is not a directory"
    return None if found.st_uid == os.geteuid() else f"it belongs to user {found.st_uid}"


def _states(records: dict[Path, RunRecord]) -> dict[Path, States]:
    answers = standings([(RunPaths(directory), record) for directory, record in records.items()])
    return {d: standing.states for d, standing in zip(records, answers, strict=True)}


def why_unfinished(record: RunRecord, states: States) -> str | None:
    """Why the run may not be over for good; None: it is."""
    if record.resuming is not None or record.state != "submitted" or record.job_id is None:
        return "whether its job was submitted is not known"
    for job in record.jobs:
        for job_id in job.job_ids if job.ended is None or job == record.job else []:
            state = states.get(job_id)
            if state is None:
                return f"it is unknown what became of job {job_id}"
            if not state.over and job.ended is None:
                return f"job {job_id} is not over: {state.describe()}"
            if state.outcome == "unknown":
                return f"no record confirms the end of job {job_id}"
    return None


def _ended_s(directory: Path, record: RunRecord, states: States) -> float:
    """By the scheduler, else when the run was last written to."""
    ends = [state.end_s for state in states.values() if state is not None and state.end_s]
    return max(ends, default=RunPaths(directory).record.stat().st_mtime)


# ---- Which checkpoints


def _holding(directory: Path, record: RunRecord, states: States, needed: Sequence[Path]) -> Holding:
    size = _bytes_below(directory)
    if why := why_unfinished(record, states):
        return Holding(directory.name, directory, size, None, why_not=why)
    kept: list[Path] = []
    spare: list[SpareCheckpoint] = []
    try:
        ended_s = _ended_s(directory, record, states)
        for place in _places(directory):
            stays, goes = _divided(place, needed)
            kept += stays
            spare += [SpareCheckpoint(path, _bytes_below(path)) for path in goes]
    except (FsdpkitError, OSError) as error:
        return Holding(directory.name, directory, size, None, why_not=str(error).rstrip("."))
    return Holding(directory.name, directory, size, ended_s, tuple(kept), tuple(spare))


def _places(directory: Path) -> Iterator[Path]:
    """The directories of checkpoints of the run and its array tasks that really lie in it."""
    paths = RunPaths(directory)
    tasks: list[int | None] = [None, *paths.array_tasks()]
    for task in tasks:
        place = paths.task(task).checkpoints
        if _is_own_directory(place) and _is_own_directory(place.parent):
            yield place


def _is_own_directory(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _divided(place: Path, needed: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What stays and what may go of the checkpoints in one directory. Without a whole one all stay.
    Raises StorageError for one that cannot be read just now, ConfigError for another format."""
    found = [path for path in checkpoints_in(place) if _is_own_directory(path)]
    whole = next((path for path in reversed(found) if _looks_whole(path)), None)
    if whole is None:
        return found, []
    best = best_of(found)
    stays = [
        path
        for path in found
        if path == whole or (best and path == best[0]) or path.resolve() in needed
    ]
    drafts = [path for path in sorted(place.glob(".step-*")) if _is_own_directory(path)]
    return stays, [path for path in found if path not in stays] + drafts


def _looks_whole(path: Path) -> bool:
    """Whether all files are there in their size. Raises StorageError, ConfigError."""
    try:
        checksums(path)
        return wrong_size(path, describe(path).files) is None
    except DamagedError:
        return False


def _needed(top: Path) -> list[Path]:
    """Checkpoints from which a job of another run may still start."""
    from fsdpkit.runs.store import runs_by_end

    found = []
    for name, over in runs_by_end(top):
        if over:
            continue
        with contextlib.suppress(OSError, ValueError, FsdpkitError):
            job, work_dir = read_json(RunPaths(top / name).job), load(top / name).work_dir
            found += [(Path(work_dir) / text).resolve() for text in _texts(job)]
    return [path for path in found if step_of(path) is not None]


def _texts(value: Any) -> Iterator[str]:
    """All texts in a job that may be a path: one can name a checkpoint in settings or arguments."""
    if isinstance(value, dict):
        for below in value.values():
            yield from _texts(below)
    elif isinstance(value, list):
        for below in value:
            yield from _texts(below)
    elif isinstance(value, str) and "step-" in value and "\0" not in value:
        yield value.partition("=")[2] if value.startswith("-") else value


def _bytes_below(directory: Path) -> int:
    """Of all regular files; links count for themselves, what cannot be read for nothing."""
    total = 0
    for here, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(here, name))
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _still_spare(holding: Holding, report: Report | None) -> list[SpareCheckpoint]:
    """What may go now that every byte of what is to stay was read. Raises StorageError if the
    newest that seemed whole is not; then nothing goes."""
    places = {one.path.parent for one in holding.spare}
    for place in sorted(places):
        kept = [path for path in holding.kept if path.parent == place]
        newest = next((path for path in reversed(kept) if _looks_whole(path)), None)
        if newest is None:
            raise StorageError(f"{place} no longer has a whole checkpoint; nothing was deleted")
        tell = (lambda count, path=newest: report(path, count)) if report else None
        if problems := problems_of(newest, tell):
            raise StorageError(
                f"{problems[0]}: the newest checkpoint is not whole, so the others stay"
            )
    return [one for one in holding.spare if one.path.exists()]


# ---- Deleting


@contextlib.contextmanager
def _opened(run: Path, place: Path) -> Iterator[int]:
    """A descriptor of the directory `place` of the run, no link on the way from the run to it."""
    number = os.open(run, _DIRECTORY)
    try:
        for name in place.relative_to(run).parts:
            below = os.open(name, _DIRECTORY, dir_fd=number)
            os.close(number)
            number = below
        if os.fstat(number).st_uid != os.geteuid():
            raise StorageError(f"{place} belongs to another user")
        yield number
    finally:
        os.close(number)


def _hide(run: Path, checkpoint: Path) -> str:
    """Take its name from a checkpoint, so that no reader takes a half-deleted one for whole, and
    the next start removes what an interrupted deletion leaves. Raises OSError."""
    if checkpoint.name.startswith("."):  # a draft that a process left which was killed
        return checkpoint.name
    name = f".{checkpoint.name}.{uuid.uuid4().hex[:12]}"
    with _opened(run, checkpoint.parent) as place:
        os.rename(checkpoint.name, name, src_dir_fd=place, dst_dir_fd=place)
    return name


def _remove(run: Path, directory: Path, name: str) -> None:
    with _opened(run, directory) as place:
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(None, "it is not a directory of this user", str(directory / name))
        # rmtree itself never follows a link; so does not the way to where it begins.
        with contextlib.suppress(FileNotFoundError):  # the next start removes what is hidden, too
            shutil.rmtree(f"/proc/self/fd/{place}/{name}")


def age_s(holding: Holding) -> float:
    """Since its end; 0 where that is not known."""
    return 0.0 if holding.ended_s is None else max(0.0, time.time() - holding.ended_s)
