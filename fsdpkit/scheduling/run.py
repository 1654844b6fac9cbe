"""A run as an object: the same verbs as the command line, from any process, at any time."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fsdpkit.errors import NotFoundError, SchedulerError, StorageError
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord, load, save
from fsdpkit.runs.store import find_run, runs_dir
from fsdpkit.scheduling.slurm import SlurmClient
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.local.client import LocalClient

_LOOK_S = 0.5
"""Between two looks at a log that is being followed."""
_FORGOTTEN_S = 3 * 86400
"""How long an unconfirmed submission is looked for."""
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
        if self.record.state == "submitted" or time.time() - self.record.created_s > _FORGOTTEN_S:
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
        return states_of([self])[0]

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

    def wait(self, *, poll_s: float | None = None) -> JobState:
        """Block until the scheduler says that the run ended; its last state.

        poll_s: between two questions; by default they become rarer, from 2 s to a minute. Raises
        SchedulerError if nobody knows the job for five minutes.
        """
        heard = ended = time.monotonic()
        for pause_s in _pauses(poll_s):
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
            time.sleep(pause_s)
        raise AssertionError("the pauses have no end")

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
        pauses = _pauses(None)
        ask_at, ended = time.monotonic(), False
        while True:
            if time.monotonic() >= ask_at:
                state = self.state()
                ended = state is not None and state.phase == "ended" and not state.may_return
                ask_at = time.monotonic() + next(pauses)
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
            time.sleep(_LOOK_S)


def _pauses(fixed_s: float | None) -> Iterator[float]:
    """Seconds between questions to the scheduler: a job that waits for days asks once a minute."""
    pause_s = fixed_s or 2.0
    while True:
        yield pause_s * random.uniform(0.9, 1.1)  # users that began together drift apart
        if fixed_s is None:
            pause_s = min(pause_s * 1.3, 60.0)


def states_of(runs: Sequence[Run]) -> list[dict[str, JobState | None]]:
    """For each run the states of its jobs: one round of questions for each cluster, none for runs
    whose end is on record. What ended for good is put on record."""
    known: dict[tuple[str, str | None], dict[str, JobState]] = {}
    for cluster in {(r.record.kind, r.record.cluster) for r in runs if r.record.ended is None}:
        open_runs = [
            r
            for r in runs
            if r.record.ended is None and (r.record.kind, r.record.cluster) == cluster
        ]
        ids = [job_id for run in open_runs for job_id in run.record.job_ids]
        known[cluster] = client_for(*cluster).states(ids)
    return [_recorded(run, known.get((run.record.kind, run.record.cluster), {})) for run in runs]


def _recorded(run: Run, known: Mapping[str, JobState]) -> dict[str, JobState | None]:
    if run.record.ended is not None:
        return {job_id: JobState(**state) for job_id, state in run.record.ended.items()}
    states = {job_id: known.get(job_id) for job_id in run.record.job_ids}
    final = {j: s for j, s in states.items() if s and s.final}
    if final and len(final) == len(states):
        ended = {job_id: asdict(state) for job_id, state in final.items()}
        # Somebody else's run, or a full disk: then it is asked for again next time.
        with contextlib.suppress(StorageError):
            save(run.paths, msgspec.structs.replace(run.record, ended=ended))
    return states
