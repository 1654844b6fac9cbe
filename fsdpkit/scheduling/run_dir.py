"""Where a run's directory is made: who may write there, and what its path may hold."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import time
from pathlib import Path

from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.config.ownership import first_open_to_all, first_unsafe, group_or_others_write
from fsdpkit.config.private_files import make_dir
from fsdpkit.errors import StorageError, UsageError


def check_paths(runs: Path, work_dir: Path) -> None:
    """No script can hold a control character or a byte that is not UTF-8. Slurm replaces patterns
    in the paths of logs, and so do other programs that read the script. Raises UsageError."""
    for what, path in (("runs directory", runs), ("working directory", work_dir)):
        if found := CONTROL_CHARACTER.search(str(path)):
            kind = (
                "is not UTF-8" if "\ud800" <= found[0] <= "\udfff" else "holds a control character"
            )
            raise UsageError(f"the path of the {what}, {str(path)!r}, {kind}: rename it")
    if found := re.search(r"%[0-9]*[A-Za-z%]", str(runs)):
        raise UsageError(
            f"the path of the runs directory, {runs}, contains {found[0]!r}, which Slurm expands "
            f"in log names; choose another with --runs"
        )


def what_to_know_of(top: Path) -> list[str]:
    """What to say of a directory of runs that others could replace a run in, or all of it."""
    try:
        top = next(place for place in (top, *top.parents) if place.exists())
        if (place := first_open_to_all(top)) is not None:
            return [_open_to_all(place)]
        found = top.stat()
        shared = group_or_others_write(found) and not found.st_mode & stat.S_ISVTX
        if (place := top if shared else first_unsafe(top)) is None:
            return []
        own = place.stat().st_uid == os.geteuid()
    except OSError:
        return []
    remedy = f"chmod g-w {shlex.quote(str(place))}, or " if own else ""
    return [
        f"others can write to {place} (its owner, its group, or an access control list), and so "
        f"replace a run below it: unless you trust them all, {remedy}choose another place with "
        "--runs"
    ]


def name_run_dir(top: Path, name: str) -> Path:
    """A name for this run alone: job, time, and a tail in case two are made that second."""
    return top / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def make_run_dir(directory: Path, *, group: bool) -> None:
    """For its owner alone, whatever the umask and the access control lists of the directories
    above; where the job says so its group may read it."""
    mode = mode_of_run(group=group)
    try:
        if not directory.parent.exists():
            directory.parent.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                make_dir(directory.parent, mode)
        refuse_if_open(directory.parent)
        make_dir(directory, mode)
    except OSError as error:
        raise StorageError(
            f"the run directory {directory} cannot be made: {error.strerror}; choose another place "
            "with --runs"
        ) from error


def mode_of_run(*, group: bool) -> int:
    return 0o2750 if group else 0o700


def refuse_if_open(top: Path) -> None:
    """Where anybody may rename a run, or a directory above it, and put another in its place, a job
    would run as they please. The sticky bit forbids that; a group's own directory is the group's
    affair (`what_to_know_of` says so). Raises StorageError, OSError.
    """
    if (place := first_open_to_all(top)) is not None:
        raise StorageError(_open_to_all(place))


def _open_to_all(place: Path) -> str:
    return (
        f"everyone can write to {place}, and so replace a run below it: choose another place with "
        f"--runs, or chmod o-w {shlex.quote(str(place))}"
    )
