"""Where a scaling study lies, and what it writes down.

<runs>/studies/<name>/
    study.json              what was asked, and the run of each size
    study.json.lock         while somebody changes it
    job.toml                the job on its smallest size
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.runs.predicted import Positive
from fsdpkit.runs.record import RunId, Time
from fsdpkit.sweeps.record_files import changing, directory_of, read_record, write_record
from fsdpkit.sweeps.scaling import Mode

Nodes = Annotated[int, Meta(ge=1, le=10_000)]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A size that was submitted."""

    mode: Mode
    nodes: Nodes
    run: RunId


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, and what became of it."""

    schema: Literal["fsdpkit.scale-record/1"] = "fsdpkit.scale-record/1"
    name: str
    created_s: Time
    modes: list[Mode]
    nodes: list[Nodes]
    """Rising."""
    gpus: Annotated[int, Meta(ge=1, le=64)]
    """Per node."""
    batch_size: int | None = None
    """Samples per rank on the smallest size; None: the script decides."""
    batch_argument: str | None = None
    """Of a script that reads no [training]: `batch-size` where it takes --batch-size=N."""
    work_dir: str
    cluster: str | None = None
    points: list[Point] = []
    predicted: dict[str, Positive] = {}
    """Tokens per second as they were told at the start, by mode and nodes (`weak 2`)."""


@dataclass(frozen=True)
class StudyPaths:
    """The directory of a study."""

    dir: Path

    @property
    def record(self) -> Path:
        return self.dir / "study.json"

    @property
    def job(self) -> Path:
        return self.dir / "job.toml"

    @property
    def runs(self) -> Path:
        return self.dir.parent.parent


def study_paths(name: str, runs: Path) -> StudyPaths:
    """Of the study of this name, or whose directory this is. Raises NotFoundError."""
    return StudyPaths(directory_of(name, runs / "studies", "study"))


def load(paths: StudyPaths) -> Study:
    """Raises NotFoundError, or StorageError for a record not to be believed."""
    return read_record(paths.record, Study, "study")


def save(paths: StudyPaths, study: Study) -> None:
    """Complete or not at all. Raises StorageError."""
    write_record(paths.record, study)


@contextlib.contextmanager
def alone(paths: StudyPaths) -> Iterator[Study]:
    """The study as it stands, while nobody else changes it. Raises BusyError, StorageError."""
    with changing(paths.record):
        yield load(paths)
