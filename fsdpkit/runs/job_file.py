"""One table of a run's resolved job, for code that uses it inside the job.

A job may have been submitted by another release than its environment has when it starts. Keys that
are unknown here are not used, and `unknown_keys` names them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import fsdpkit
from fsdpkit.config.key_changes import other_release, without_unknown
from fsdpkit.errors import DamagedError, StorageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_bytes
from fsdpkit.runs.record import release_in

Table = TypeVar("Table")


DIGEST = "FSDPKIT_JOB_SHA256"
"""The variable by which the script, which Slurm keeps, says what job.json was when it was made."""


def bytes_of_job(run: Path, environ: Mapping[str, str]) -> bytes:
    """`job.json` of the run that this process belongs to, as submitted.

    If the run's next job has been queued since, this job's own file is `job.<job id>.json`. Raises
    OSError, also for another user's file, which says that the directory was exchanged; or
    DamagedError if the file is not the one the script was made with.
    """
    path, wanted = RunPaths(run).job, environ.get(DIGEST)
    data = read_bytes(path, own=wanted is not None)
    if wanted is None or hashlib.sha256(data).hexdigest() == wanted:
        return data
    job_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "")
    with contextlib.suppress(OSError):
        data = read_bytes(path.with_name(f"{path.stem}.{job_id}{path.suffix}"), own=True)
        if hashlib.sha256(data).hexdigest() == wanted:
            return data
    raise DamagedError(
        f"{path} is not what was submitted: its SHA-256 differs from the one in the job's "
        f"script. Check who can write to that directory, and submit the job again"
    )


def table_of_job(run: Path, name: str, kind: type[Table]) -> Table:
    """The table `[name]` of `job.json` in a run's directory, as `kind`; its defaults if absent; the
    `array_settings` of this process's array task override that. Raises OSError, or StorageError if
    the file is not the one submitted, or has values that this release does not understand."""
    table, _ = without_unknown(kind, _table(_tables(run), name))
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        wrote, path = written_by(run) or "another release", RunPaths(run).job
        raise StorageError(
            f"{path}, written by fsdpkit {wrote}: [{name}] is not understood by fsdpkit "
            f"{fsdpkit.__version__}: {error}"
        ) from error


def unknown_keys(run: Path, kinds: Mapping[str, Any]) -> str | None:
    """A sentence that names, of the tables in `kinds`, the keys that this release does not know,
    and both releases; None if it knows all. Raises as `table_of_job` does."""
    tables = _tables(run)
    keys = [
        key
        for name, kind in kinds.items()
        for key in without_unknown(kind, _table(tables, name), name)[1]
    ]
    return other_release("job.json", written_by(run), fsdpkit.__version__, keys) if keys else None


def written_by(run: Path) -> str | None:
    """The release of fsdpkit that submitted the run; None if its record does not say it."""
    try:
        return release_in(read_bytes(RunPaths(run).record))
    except (OSError, ValueError):
        return None


def _tables(run: Path) -> Mapping[str, Any]:
    """All of job.json."""
    try:
        return msgspec.json.decode(bytes_of_job(run, os.environ), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{RunPaths(run).job} is corrupt: {error}") from error


def _table(job: Mapping[str, Any], name: str) -> Any:
    """One table, with the part on top that applies only to this process's array task."""
    table = job.get(name, {})
    task, tasks = os.environ.get("SLURM_ARRAY_TASK_ID"), job.get("array_settings")
    if task is None or not isinstance(tasks, dict) or not isinstance(table, dict):
        return table
    settings = tasks.get(task)
    own = settings.get(name) if isinstance(settings, dict) else None
    return _over(table, own) if isinstance(own, dict) else table


def _over(whole: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key, all else is replaced, as in layers of a job file."""
    found = dict(whole)
    for key, value in own.items():
        below = found.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        found[key] = _over(below, value) if both and isinstance(below, dict) else value
    return found
