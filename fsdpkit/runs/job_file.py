"""One table of a run's resolved job, for code that uses it inside the job."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fsdpkit.errors import DamagedError, StorageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_bytes

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
    """The table `[name]` of `job.json` in a run's directory, as `kind`; its defaults if absent;
    the `array_settings` of this process's array task override that.

    Raises OSError, or StorageError if the file is not the one submitted.
    """
    path = RunPaths(run).job
    try:
        job = msgspec.json.decode(bytes_of_job(run, os.environ), type=dict[str, msgspec.Raw])
        table = job.get(name, b"{}")
        if own := _own(job, name):
            whole = msgspec.json.decode(table, type=dict[str, Any])
            table = msgspec.json.encode(_over(whole, own))
        return msgspec.json.decode(table, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error


def _own(job: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The part of a table that applies only to this process's array task."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    if task is None or "array_settings" not in job:
        return {}
    tasks = msgspec.json.decode(job["array_settings"], type=dict[str, dict[str, Any]])
    own: Any = tasks.get(task, {}).get(name, {})
    return own if isinstance(own, dict) else {}


def _over(whole: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key, all else is replaced, as in layers of a job file."""
    found = dict(whole)
    for key, value in own.items():
        below = found.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        found[key] = _over(below, value) if both and isinstance(below, dict) else value
    return found
