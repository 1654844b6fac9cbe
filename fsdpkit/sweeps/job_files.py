"""A study's own copy of its job, and the directory that the job's paths are relative to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fsdpkit.config.as_toml import as_toml
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.loading import FileTables
from fsdpkit.config.trust import vouch
from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import write_atomically


def as_file(job: LoadedJob) -> str:
    """A job file that can be submitted from anywhere: its script has the whole path."""
    return as_toml(msgspec.structs.replace(job.spec, entry=str(job.entry)))


def write_own_job(path: Path, job: LoadedJob) -> None:
    """Write that file. Raises OSError."""
    text = as_file(job)
    write_atomically(path, text)
    vouch(FileTables({}, path, text.encode()))


@contextlib.contextmanager
def working_in(directory: str) -> Iterator[None]:
    """Paths are relative to where it was started."""
    before = Path.cwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise StorageError(f"{directory}, where it was started: {error.strerror}") from error
    try:
        yield
    finally:
        os.chdir(before)
