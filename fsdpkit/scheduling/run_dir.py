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
    """What to say of a directory of runs that others of its group may write to."""
    try:
        found = top.stat()
    except OSError:
        return []
    if not found.st_mode & stat.S_IWGRP or found.st_mode & stat.S_ISVTX:
        return []
    return [
        f"the group of {top} can write to it, and so replace a run in it: unless you trust all "
        f"members, chmod g-w {shlex.quote(str(top))}, or choose another place with --runs"
    ]


def name_run_dir(top: Path, name: str) -> Path:
    """A name for this run alone: job, time, and a tail in case two are made that second."""
    return top / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def make_run_dir(directory: Path, *, group: bool) -> None:
    """For its owner alone, whatever the umask; where the job says so its group may read it."""
    mode = 0o2750 if group else 0o700
    try:
        if not directory.parent.exists():
            directory.parent.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                directory.parent.mkdir(mode=0o700)
                directory.parent.chmod(mode)
        _refuse_if_open(directory.parent)
        directory.mkdir(mode=0o700)
        directory.chmod(mode)
    except OSError as error:
        raise StorageError(
            f"the run directory {directory} cannot be made: {error.strerror}; choose another place "
            "with --runs"
        ) from error


def _refuse_if_open(top: Path) -> None:
    """Where anybody may rename a run and put another in its place, a job would run as they please.
    The sticky bit forbids that; a group's own directory is the group's affair (`fit` says so).
    """
    mode = top.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise StorageError(
            f"everyone can write to {top}, and so replace a run in it: choose another place with "
            f"--runs, or chmod o-w {shlex.quote(str(top))}"
        )
