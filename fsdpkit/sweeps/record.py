"""Where a sweep lies, and what it writes down. The only module that spells these names.

    <runs>/sweeps/<name>/
        sweep.json              what was asked, every trial's settings, the runs that they are in
        sweep.json.lock         while somebody changes it, or decides who goes on
        job.toml                the job without any trial's settings
        trials/<k>.toml         trial k as a job file: what `fsdpkit submit` would train alone
        rungs/<batch>-<r>.json  who goes on into rung r, once that is decided
        rungs/<batch>-<r>.sbatch .log  the small job that decides it

The trials of a batch are the tasks of one array, and so one run, in the directory of runs: task k
is trial k. A rung is the run's next job. Trials that are added later are a batch of their own. On
a hold each trial is a run of its own (on_hold.py), made when nodes are free for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Scalar
from fsdpkit.config.loading import FileTables
from fsdpkit.config.spelling import nearest
from fsdpkit.config.trust import is_of_strangers, vouch
from fsdpkit.errors import NotFoundError, StorageError, storage_errors
from fsdpkit.runs.layout import Named, Numbered, write_atomically
from fsdpkit.runs.lock import locked
from fsdpkit.runs.reading import read_bytes
from fsdpkit.runs.record import JobId, Number, RunId, Time
from fsdpkit.sweeps.file import Halving, SweepFile
from fsdpkit.sweeps.halving import Decision

T = TypeVar("T")

_PATIENCE_S = 30.0
"""How long one waits for who changes a record at this moment."""


class TrialBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that were submitted together, or are to be compared with one another."""

    run: RunId | None = None
    """The array whose tasks they are; None: each is a run of its own."""
    runs: dict[str, RunId] = {}
    """Those of their own, by trial; the others have not begun."""
    first: Number
    """Number of its first trial; they are numbered on from there."""
    trials: Annotated[int, Meta(ge=1, le=100_000)]
    next_jobs: dict[str, JobId] = {}
    """By rung, the small job that decides who goes on into it."""

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.trials)

    @property
    def all_runs(self) -> list[str]:
        return [*self.runs.values()] if self.run is None else [self.run]


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep's own account of itself."""

    schema: Literal["fsdpkit.sweep-record/1"] = "fsdpkit.sweep-record/1"
    name: str
    created_s: Time
    """Unix time."""
    file: SweepFile
    work_dir: str
    sets: list[str]
    """`--set` and other options of the command line, as `KEY=VALUE`."""
    cluster: str | None
    most: int | None = None
    """Of the resource, what the last rung gets; None: no halving."""
    trials: list[dict[str, Scalar]]
    """What each trial sets, by number."""
    batches: list[TrialBatch] = []
    cancelled: bool = False
    """Whether nobody is to start what has not begun."""

    @property
    def halving(self) -> Halving | None:
        return self.file.halving if isinstance(self.file.halving, Halving) else None

    @property
    def highest(self) -> bool:
        return self.file.best == "highest"

    def with_batch(self, number: int, **changed: Any) -> SweepRecord:
        """The same with these fields of one batch."""
        batches = [*self.batches]
        batches[number] = msgspec.structs.replace(batches[number], **changed)
        return msgspec.structs.replace(self, batches=batches)


@dataclass(frozen=True)
class SweepPaths:
    """The directory of a sweep."""

    dir: Path

    record = Named("sweep.json")
    job = Named("job.toml")
    trial = Numbered("trials/{}.toml")

    def rung(self, batch: int, rung: int, suffix: Literal["json", "sbatch", "log"]) -> Path:
        return self.dir / "rungs" / f"{batch}-{rung}.{suffix}"


def sweeps_dir(runs: Path) -> Path:
    return runs / "sweeps"


def sweep_paths(name: str, runs: Path) -> SweepPaths:
    """Of the sweep of this name, or whose directory this is. Raises NotFoundError."""
    top = sweeps_dir(runs)
    if "/" in name:
        found = SweepPaths(Path(name).absolute())
    else:
        found = SweepPaths(top / name if name not in ("", ".", "..") else top)
    if found.record.exists():
        return found
    names = [p.parent.name for p in top.glob(f"*/{found.record.name}")] if top.is_dir() else []
    raise NotFoundError(
        f"there is no sweep {name!r} in {top}.{nearest(name, names)} Give --runs DIR, the "
        "directory of runs that it was started in."
    )


def load(paths: SweepPaths) -> SweepRecord:
    """Raises NotFoundError, or StorageError for a record not to be believed."""
    return _read(paths.record, SweepRecord)


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path.parent} is not a sweep: it has no {path.name}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error


def as_file_of(path: Path, value: msgspec.Struct) -> FileTables:
    """The record as the file that it stands in: a job takes settings from it."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    return FileTables({}, path, text, kind="sweep")


def save(paths: SweepPaths, record: SweepRecord) -> None:
    """Complete or not at all. Raises StorageError."""
    _write(paths.record, record)


def _write(path: Path, value: msgspec.Struct) -> None:
    file = as_file_of(path, value)
    with storage_errors(path, "written"):
        before = FileTables({}, path, read_bytes(path), kind="sweep") if path.exists() else None
        own = before is None or not is_of_strangers(before)
        write_atomically(path, file.content)
        if own:  # what somebody else wrote stays theirs
            vouch(file)


@contextlib.contextmanager
def alone(paths: SweepPaths) -> Iterator[SweepRecord]:
    """The record, while nobody else changes the sweep. Raises BusyError, StorageError."""
    with locked(paths.record.with_name(f"{paths.record.name}.lock"), _PATIENCE_S):
        yield load(paths)


def decisions(paths: SweepPaths, record: SweepRecord, batch: int) -> list[Decision]:
    """What was decided of a batch, rung by rung. Raises StorageError."""
    found: list[Decision] = []
    for rung in range(1, record.file.rungs):
        path = paths.rung(batch, rung, "json")
        if not path.exists():
            break
        decision = _read(path, Decision)
        stray = {*decision.survivors} - {*record.batches[batch].numbers}
        if stray or decision.rung != rung:
            raise StorageError(f"{path} is not what this sweep decided: {sorted(stray)[:3]}")
        found.append(decision)
    return found


def write_decision(paths: SweepPaths, batch: int, decision: Decision) -> None:
    _write(paths.rung(batch, decision.rung, "json"), decision)
