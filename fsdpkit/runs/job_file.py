"""One table of a run's resolved job, for those who act on it inside the job."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_bytes

Table = TypeVar("Table")


def table_of_job(run: Path, name: str, kind: type[Table]) -> Table:
    """The table `[name]` of `job.json` in a run's directory, as `kind`; its defaults if absent.

    Raises OSError, or StorageError where the file is not what was submitted.
    """
    path = RunPaths(run).job
    try:
        job = msgspec.json.decode(read_bytes(path), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(job.get(name, b"{}"), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error
