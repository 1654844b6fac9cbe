"""`run.json`: what was asked, what was decided, what the scheduler answered."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.layout import RunPaths, write_atomically

SCHEMA = "fsdpkit.run/1"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run's own account of itself. Unknown keys are ignored, so newer records stay readable."""

    schema: str = SCHEMA
    id: str
    state: Literal["submitting", "submitted"]
    """`submitting` while sbatch is called; it stays so if nobody heard sbatch's answer."""
    created_s: float
    """Unix time."""
    name: str
    site: str
    kind: Literal["slurm", "local"]
    cluster: str | None = None
    """Slurm's cluster name, where sbatch was called with -M."""
    job_id: str | None = None
    nodes: int
    ranks_per_node: int
    array: list[int] | None = None
    ended: dict[str, dict[str, Any]] | None = None
    """Once the scheduler had said how every job ended: those states by job id, not asked again."""
    work_dir: str
    command: list[str] = []
    version: str
    template: str
    digests: dict[str, str]

    @property
    def job_ids(self) -> list[str]:
        """Slurm's ids, one for each array task."""
        if self.job_id is None:
            return []
        return [self.job_id] if self.array is None else [f"{self.job_id}_{k}" for k in self.array]


def save(paths: RunPaths, record: RunRecord) -> None:
    """Write `run.json`, complete or not at all. Raises StorageError."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"
    try:
        write_atomically(paths.record, text)
    except OSError as error:
        raise StorageError(f"{paths.record} cannot be written: {error.strerror}") from error


def load(directory: Path) -> RunRecord:
    """The record of the run in `directory`. Raises NotFoundError, or StorageError if corrupt."""
    path = RunPaths(directory).record
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except FileNotFoundError as error:
        raise NotFoundError(f"{directory} is not a run: it has no run.json") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(
            f"{path} is corrupt ({error}); the job itself, if it was submitted, is not affected: "
            f"look for its comment 'fsdpkit:{directory.name}' with squeue -o '%i %k'"
        ) from error


def now_s() -> float:
    return round(time.time(), 3)
