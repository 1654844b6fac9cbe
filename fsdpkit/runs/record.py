"""`run.json`: what was requested, what was decided, what the scheduler answered.

A run has one Slurm job, and one more each time it is resumed. The record's own fields describe the
newest, and `earlier` the previous ones, so code that ignores resuming still reads it correctly.
Changes to a run that others may be changing too are made inside `changing`.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import fsdpkit
from fsdpkit.bounded import JOBS, NODES, RANKS, RECORD_BYTES, TASKS, parsed, read_bytes
from fsdpkit.errors import NotFoundError, StorageError, UsageError, storage_errors
from fsdpkit.listing import spans
from fsdpkit.runs.job_ids import ONE, id_of
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.lock import locked

SCHEMA = "fsdpkit.run/1"

# What becomes a word of a command, a directory's name or a number of things is checked when a
# record is decoded: whoever can write to the directory of runs can write a record.
RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")]
JobId = Annotated[str, Meta(pattern=r"^[0-9]{1,18}\Z")]
TaskId = Annotated[str, Meta(pattern=rf"^{ONE}\Z")]
Clusters = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,-]{0,255}\Z")]
ClusterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,127}\Z")]
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")]
Count = Annotated[int, Meta(ge=1, le=NODES)]
Ranks = Annotated[int, Meta(ge=1, le=RANKS)]
Number = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Ended = Annotated[dict[TaskId, dict[str, Any]], Meta(max_length=TASKS)]
Tasks = Annotated[list[Number], Meta(max_length=TASKS)]
After = Annotated[list[JobId], Meta(max_length=JOBS)]
LeftOut = Annotated[list[NodeName], Meta(max_length=NODES)]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One Slurm job of a run."""

    job_id: JobId | None = None
    """None: whether Slurm took it is not known."""
    nodes: Count
    ranks_per_node: Ranks
    array: Tasks | None = None
    """Tasks of the array; after a resume only those that had not reached their goal."""
    first_attempt: Number = 0
    after: After = []
    """Jobs of the run that must have ended short of the goal before this one starts."""
    left_out: LeftOut = []
    """Nodes left out because they failed a run, beside the job's own resources.exclude."""
    submitted_s: Time | None = None
    """Unix time."""
    slurm_cluster: ClusterName | None = None
    """The name of the cluster that took it, as it calls itself: a job's number is its own."""
    slurm_submit_s: Time | None = None
    """When that was, by the cluster's clock."""
    here: bool = False
    """Whether it is an allocation that the run's script is a step of, and not its own job."""
    seen: Ended | None = None
    """States by job id that end a job unless Slurm queues it again, such as PREEMPTED, as somebody
    saw them: what is left once it has forgotten the job."""
    ended: Ended | None = None
    """States by job id once they are settled, then not asked for again."""

    @property
    def job_ids(self) -> list[str]:
        """Slurm's ids, one for each array task."""
        if self.job_id is None:
            return []
        tasks: list[int | None] = [None] if self.array is None else [*self.array]
        return [id_of(self.job_id, task) for task in tasks]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run's own account of itself. Unknown keys are ignored, so newer records stay readable."""

    schema: str = SCHEMA
    id: RunId
    state: Literal["submitting", "submitted"]
    """`submitting` while sbatch is called; it stays so if nobody heard sbatch's answer."""
    created_s: Time
    """Unix time."""
    name: str
    site: str
    site_file: str | None = None
    """The profile's file, where the site was named by one."""
    kind: Literal["slurm", "local"]
    cluster: Clusters | None = None
    """Slurm's cluster name, where sbatch was called with -M."""
    job_id: JobId | None = None
    nodes: Count
    ranks_per_node: Ranks
    array: Tasks | None = None
    first_attempt: Number = 0
    after: After = []
    left_out: LeftOut = []
    submitted_s: Time | None = None
    slurm_cluster: ClusterName | None = None
    slurm_submit_s: Time | None = None
    here: bool = False
    holds: bool = False
    """Whether its nodes wait for other runs (`fsdpkit hold`)."""
    on: RunId | None = None
    """The hold that it ran on."""
    seen: Ended | None = None
    ended: Ended | None = None
    """Once the scheduler had said how every job ended: those states by job id, not asked again."""
    earlier: Annotated[list[JobRecord], Meta(max_length=JOBS)] = []
    """Jobs before this one, oldest first."""
    resuming: JobRecord | None = None
    """The next job, while sbatch is called; the run is what it was until there is an answer."""
    work_dir: str
    command: list[str] = []
    version: str
    template: str
    digests: dict[str, str]

    @property
    def job(self) -> JobRecord:
        """The newest job."""
        fields = {name: getattr(self, name) for name in JobRecord.__struct_fields__}
        return JobRecord(**fields)

    @property
    def jobs(self) -> list[JobRecord]:
        """All jobs, oldest first."""
        return [*self.earlier, self.job]

    @property
    def job_ids(self) -> list[str]:
        """Slurm's ids of the newest job, one for each array task."""
        return self.job.job_ids

    @property
    def array_tasks(self) -> list[int] | None:
        """The tasks of the run, all jobs together; None: no array."""
        tasks = [task for job in self.jobs for task in job.array or []]
        return None if self.array is None else sorted(set(tasks))

    def tasks_of(self, task: int | None = None) -> list[int | None]:
        """`task` of the array alone, or without it all; `[None]` of a run that is no array. Raises
        UsageError where there is no array, NotFoundError where it has no such task."""
        known = self.array_tasks
        if known is None and task is not None:
            raise UsageError(f"{self.id} is not an array: leave out --task")
        if known is not None and task is not None and task not in known:
            raise NotFoundError(f"{self.id} has no array task {task}; it has {spans(known)}")
        return [*known] if known is not None and task is None else [task]

    def with_job(self, job: JobRecord) -> RunRecord:
        """The run with `job` as its next; in the newest's allocation it is that, begun again."""
        if job.here and job.job_id == self.job_id:
            again = msgspec.structs.replace(job, first_attempt=self.first_attempt)
            return self.with_jobs([*self.earlier, again], resuming=None)
        return self.with_jobs([*self.jobs, job], resuming=None)

    def with_jobs(self, jobs: list[JobRecord], *, resuming: JobRecord | None) -> RunRecord:
        *earlier, newest = jobs
        fields = {name: getattr(newest, name) for name in JobRecord.__struct_fields__}
        return msgspec.structs.replace(self, **fields, earlier=earlier, resuming=resuming)


def jobs_of_attempts(
    jobs: Iterable[JobRecord], attempts: Iterable[int], array_task: int | None = None
) -> dict[int, JobRecord]:
    """For each attempt its job: the newest that begins at or before it; of an array, one task's."""
    mine = [job for job in jobs if array_task is None or array_task in (job.array or [])]
    mine.sort(key=lambda job: job.first_attempt)
    first = [job.first_attempt for job in mine]
    found = {}
    for number in attempts:
        if began := bisect_right(first, number):
            found[number] = mine[
                began - 1
            ]  # one that never started has the number of its successor
    return found


def save(paths: RunPaths, record: RunRecord) -> None:
    """Write `run.json`, complete or not at all. Raises StorageError."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"
    with storage_errors(paths.record, "written"):
        write_atomically(paths.record, text)


def load(directory: Path, *, copied: bool = False, most: int = RECORD_BYTES) -> RunRecord:
    """The record of the run in `directory`, which has the run's id for its name unless it was
    `copied` to be looked at. Raises NotFoundError, or StorageError for one not to be believed."""
    path = RunPaths(directory).record
    content = b""
    try:
        content = read_bytes(path, most)
        record = msgspec.json.decode(content, type=RunRecord)
    except FileNotFoundError as error:
        raise NotFoundError(f"{directory} is not a run: it has no run.json") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        other = release_in(content)
        if other not in (None, fsdpkit.__version__):
            raise StorageError(
                f"{path} was written by fsdpkit {other}; this is {fsdpkit.__version__}, which does "
                f"not understand it ({error}): use that release for this run"
            ) from error
        raise StorageError(
            f"{path} is corrupt ({error}); the job itself, if it was submitted, is not affected: "
            f"look for its comment 'fsdpkit:{directory.name}' with squeue -o '%i %k'"
        ) from error
    if not copied and record.id != directory.name and record.id != directory.resolve().name:
        raise StorageError(
            f"{path} is the record of {record.id}: a run's directory must be named after its id; "
            f"rename it"
        )
    return record


def release_in(record: bytes) -> str | None:
    """The release of fsdpkit that wrote a run.json; None if it does not say it."""
    try:
        version = parsed(record)["version"]
    except (ValueError, TypeError, LookupError):
        return None
    return version if isinstance(version, str) else None


@contextlib.contextmanager
def changing(paths: RunPaths, *, patience_s: float = 5.0) -> Iterator[RunRecord]:
    """The current record, locked. Raises BusyError after `patience_s`, StorageError."""
    with locked(paths.record.with_name(f"{paths.record.name}.lock"), patience_s):
        yield load(paths.dir)


def now_s() -> float:
    return round(time.time(), 3)
