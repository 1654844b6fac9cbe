"""A run as an object: the same verbs as the command line, from any process, at any time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fsdpkit.errors import NotFoundError, SchedulerError
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord, load, save
from fsdpkit.runs.store import find_run, runs_dir
from fsdpkit.scheduling.slurm import SlurmClient
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.local.client import LocalClient

_POLL_S = 1.0
_SETTLE_S = 10.0
"""How long a state must last that may be followed by a requeue."""
_UNHEARD_S = 300.0
"""How long nobody may know the job before waiting for it is given up."""


def client_for(kind: str, cluster: str | None) -> SlurmClient | LocalClient:
    """The client of a site's kind."""
    if kind == "local":
        from fsdpkit.scheduling.local.client import LocalClient

        return LocalClient()
    return SlurmClient(cluster)


@dataclass(frozen=True)
class Run:
    """One submission and all its attempts, on disk and in the scheduler."""

    dir: Path
    record: RunRecord

    @classmethod
    def open(
        cls, run: str | os.PathLike[str], *, runs: str | os.PathLike[str] | None = None
    ) -> Run:
        """The run with this path or id. Raises NotFoundError or StorageError.

        A run whose submission was cut short is looked for in the scheduler, and its record
        completed if it is there.
        """
        directory = find_run(run, runs_dir(runs))
        return cls(directory, load(directory))._confirmed()

    def _confirmed(self) -> Run:
        if self.record.state == "submitted":
            return self
        job_id = self._client().find_by_comment(f"fsdpkit:{self.id}")
        if job_id is None:
            return self
        record = msgspec.structs.replace(self.record, state="submitted", job_id=job_id)
        save(self.paths, record)
        return Run(self.dir, record)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def job_id(self) -> str | None:
        """Slurm's id, once sbatch answered."""
        return self.record.job_id

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.dir)

    def _client(self) -> SlurmClient | LocalClient:
        return client_for(self.record.kind, self.record.cluster)

    def states(self) -> dict[str, JobState | None]:
        """Each job id (one for each array task) with its state; None where nobody could say."""
        known = self._client().states(self.record.job_ids)
        return {job_id: known.get(job_id) for job_id in self.record.job_ids}

    def state(self) -> JobState | None:
        """One state for the whole run: of an array, the first that has not succeeded."""
        states = list(self.states().values())
        if not states:
            return None
        for phase in ("running", "pending"):
            for state in states:
                if state is not None and state.phase == phase:
                    return state
        return next((s for s in states if s is None or not s.succeeded), states[0])

    def wait(self, *, poll_s: float = _POLL_S) -> JobState:
        """Block until the scheduler says that the run ended; its last state.

        Raises SchedulerError if nobody knows the job for five minutes.
        """
        heard = ended = time.monotonic()
        while True:
            state = self.state()
            if state is None or state.phase != "ended":
                ended = time.monotonic()
            elif not state.may_return or time.monotonic() - ended > _SETTLE_S:
                return state
            if state is not None:
                heard = time.monotonic()
            elif time.monotonic() - heard > _UNHEARD_S:
                raise SchedulerError(
                    f"nobody can say what became of job {self.job_id}: neither squeue nor sacct "
                    "nor scontrol knows it"
                )
            time.sleep(poll_s)

    def cancel(self) -> None:
        """End the run, all its array tasks. Raises SchedulerError."""
        if self.job_id is None:
            raise SchedulerError(f"run {self.id} was never confirmed as submitted")
        self._client().cancel(self.job_id)

    def jobs(self) -> list[Any]:
        """submitit's Job for each array task (one without an array): `results()` and the rest."""
        from fsdpkit.scheduling.executor import job_class

        kind = job_class(self._client())
        nodes = list(range(self.record.nodes))
        return [kind(self.paths.submitit, one, nodes) for one in self.record.job_ids]

    def results(self) -> list[Any]:
        """What each node returned, in order; waits for the end, raises submitit's errors."""
        return [result for job in self.jobs() for result in job.results()]

    def newest_attempt(self, array_task: int | None = None) -> AttemptPaths:
        """Paths of the newest attempt that started. Raises NotFoundError if none did."""
        task = self.paths.task(array_task)
        attempts = task.attempts()
        if not attempts:
            raise NotFoundError(f"run {self.id} has not started yet, so there is no output")
        return task.attempt(attempts[-1])

    def rank_log(
        self, rank: int = 0, *, array_task: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> Path:
        """A rank's newest output file, the last restart by torchrun within the newest attempt."""
        attempt = self.newest_attempt(array_task)
        restarts = [0]
        for path in attempt.dir.glob(f"rank-{rank}.restart-*.{stream}"):
            restarts.append(int(path.name.split(".")[1].removeprefix("restart-")))
        return attempt.rank_file(rank, stream, max(restarts))

    def first_failure(self) -> str | None:
        """`rank 5 on node2: exit status 3`: the first failure that an agent of the newest attempt
        recorded; of an array, that of the first task with one."""
        array_tasks: list[int | None] = (
            [None] if self.record.array is None else [*self.record.array]
        )
        for array_task in array_tasks:
            attempts = self.paths.task(array_task).attempts()
            if not attempts:
                continue
            recorded = sorted(self.paths.task(array_task).attempt(attempts[-1]).failures.glob("*"))
            if recorded:
                return recorded[0].read_text(errors="replace").partition(" ")[2].strip()
        return None

    def batch_logs(self) -> list[Path]:
        """The batch shells' own output, where start-up errors stand."""
        return sorted(self.dir.glob("slurm-*.log"))

    def follow(self, rank: int = 0, *, array_task: int | None = None) -> Iterator[str]:
        """Lines of a rank's output as they come, until the run ends."""
        place: Path | None = None
        position = 0
        while True:
            state = self.state()
            ended = state is not None and state.phase == "ended"
            try:
                current = self.rank_log(rank, array_task=array_task)
            except NotFoundError:
                current = None
            if current is not None and current != place:
                place, position = current, 0
            if place is not None and place.exists():
                with open(place, encoding="utf-8", errors="replace") as file:
                    file.seek(position)
                    yield from file
                    position = file.tell()
            if ended:
                return
            time.sleep(_POLL_S)
