"""A run as an object: the same verbs as the command line, from any process, at any time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdpkit.errors import NotFoundError, SchedulerError, StorageError, UsageError
from fsdpkit.runs.layout import AttemptPaths, RunPaths, write_atomically
from fsdpkit.runs.reading import read_json, read_text
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.store import find_run, runs_dir
from fsdpkit.scheduling.asking import Pace
from fsdpkit.scheduling.outcome import settle_s
from fsdpkit.scheduling.run_states import (
    States,
    all_states,
    awaited,
    client_for,
    comment,
    confirmed,
    decisive,
)
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.local.client import LocalClient
    from fsdpkit.scheduling.saving import Request
    from fsdpkit.scheduling.slurm import SlurmClient

_LOOK_S = 2.0
"""Between two looks whether the batch shell has written how it ended."""
_UNHEARD_S = 300.0
"""How long nobody may know the job before waiting for it is given up."""


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

        A run whose submission (or resume) was cut short is looked for in the scheduler, and its
        record completed if it is there.
        """
        directory = find_run(run, runs_dir(runs))
        return cls(directory, load(directory))._confirmed()

    def _confirmed(self) -> Run:
        if not awaited(self.record):
            return self
        text = comment(self.record)
        job_id = self._client().find_by_comment(text)
        return Run(self.dir, confirmed(self.paths, self.record, {text: job_id} if job_id else {}))

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

    def states(self) -> States:
        """The job that matters now (one for each array task) with its state; None where nobody
        could say."""
        return states_of([self])[0]

    def job_states(self) -> States:
        """All jobs of the run, also those before it was resumed, with their states."""
        return all_states([(self.paths, self.record)])[0]

    def state(self, array_task: int | None = None) -> JobState | None:
        """One state for the whole run, or for one task of its array: of several, what goes on, what
        nobody could say, then the first that failed."""
        return self.decisive_job(array_task)[1]

    def decisive_job(self, array_task: int | None = None) -> tuple[str | None, JobState | None]:
        """The job, or array task, whose state is that of the run (`state`)."""
        states = {
            job_id: state
            for job_id, state in self.states().items()
            if array_task is None or job_id.partition("_")[2] == str(array_task)
        }
        return min(states.items(), key=lambda item: _order(item[1]), default=(None, None))

    def wait(
        self,
        *,
        poll_s: float | None = None,
        array_task: int | None = None,
        heard: Callable[[JobState], object] | None = None,
    ) -> JobState:
        """Block until the scheduler says that the run ended, all its jobs; its last state.

        poll_s: between two questions; by default they become rarer, from 2 s to a minute, until an
        attempt ends. array_task: wait for this one alone. heard: is told each state. Raises
        SchedulerError if nobody knows the job for five minutes.
        """
        known = ended = time.monotonic()
        pace = Pace(poll_s)
        while True:
            state = self.newer().state(array_task)
            if state is None or state.phase != "ended":
                ended = time.monotonic()
            elif time.monotonic() - ended >= settle_s(state):
                return state
            if state is not None:
                known = time.monotonic()
                if heard is not None:
                    heard(state)
            elif time.monotonic() - known > _UNHEARD_S:
                raise SchedulerError(
                    f"it is unknown what became of job {self.job_id}: neither squeue nor sacct "
                    f"nor scontrol knows it"
                )
            if self._has_news_within(pace.pause_s(), array_task):
                pace.news()

    def _has_news_within(self, pause_s: float, array_task: int | None) -> bool:
        """Sleep so long, or until an attempt begins or the batch shell writes how it ended."""
        until, before = time.monotonic() + pause_s, self.newest_ending(array_task)
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
            if self.newest_ending(array_task) != before:
                return True
        return False

    def newest_ending(self, array_task: int | None) -> tuple[int, bool] | None:
        """The newest attempt, and whether the batch shell has written how it ended: when this
        changes, the scheduler has news. None before the first; for a whole array always."""
        if self.record.array is not None and array_task is None:
            return None
        task = self.paths.task(array_task)
        newest = next(reversed(task.attempts()), None)
        return None if newest is None else (newest, task.attempt(newest).ending.exists())

    def newer(self) -> Run:
        """The run as its directory has it now: somebody may have resumed it."""
        with contextlib.suppress(StorageError, NotFoundError):
            return Run(self.dir, load(self.dir))
        return self

    def resume(
        self,
        *,
        nodes: int | None = None,
        gpus: int | None = None,
        time: str | None = None,
        partition: str | None = None,
        account: str | None = None,
        spare: int | None = None,
        sets: Sequence[str] = (),
        chained: bool = False,
        tasks: Sequence[int] | None = None,
    ) -> Run:
        """Continue the run in a new job, as `fsdpkit resume` does. Raises FsdpkitError.

        chained: while the run goes on; the new job starts if the run ends short of its goal.
        tasks: of an array, those to go on; None: those short of their goal.
        """
        from fsdpkit.scheduling.resuming import Changes, plan_resume, submit_resume

        changes = Changes(
            nodes=nodes,
            gpus=gpus,
            time=time,
            partition=partition,
            account=account,
            spare=spare,
            sets=sets,
            chained=chained,
            tasks=tasks,
        )
        newest = Run.open(self.dir)
        return submit_resume(newest, plan_resume(newest, changes))

    def cancel(self, *, save: bool = False) -> list[str]:
        """End the run: its jobs, all array tasks, and what is chained behind them.

        save: what runs is asked to save a checkpoint and to stop by itself; the answer names those
        jobs. Raises SchedulerError, StorageError.
        """
        if self.job_id is None:
            raise SchedulerError(f"run {self.id} was never confirmed as submitted")
        if save and self.record.kind == "local" and self.record.array is not None:
            raise UsageError("the local cluster can only end an array as a whole: leave out --save")
        client, states = self._client(), self.job_states()
        asked = []
        # The newest first, lest the end of one lets the next start.
        for job in reversed([job for job in self.record.jobs if job.ended is None]):
            states_here = {job_id: states.get(job_id) for job_id in job.job_ids}
            left = {j: s for j, s in states_here.items() if s is None or not s.over}
            if save:
                running = [j for j, s in left.items() if s is not None and s.phase == "running"]
                asked += [j for j in running if self._ask_to_stop(j)]
                for job_id in left.keys() - asked:
                    client.cancel(job_id)
            elif left and job.job_id is not None:
                client.cancel(job.job_id)
        return asked

    def save_checkpoint(self, *, array_task: int | None = None) -> list[Request]:
        """Ask what runs, or one task of the array, to save a checkpoint and to go on, as `fsdpkit
        checkpoint save` does; `wait()` of a request gives its path. Raises FsdpkitError.
        """
        from fsdpkit.scheduling.saving import request_checkpoints

        return request_checkpoints(self, array_task)

    def _ask_to_stop(self, job_id: str) -> bool:
        """Tell a running job to save and stop; False if it went back to the queue meanwhile."""
        _, _, task = job_id.partition("_")
        path = self.paths.task(int(task) if task else None).stop_requested
        try:
            write_atomically(path, "cancel\n")
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        state = self._client().states([job_id]).get(job_id)
        return state is None or state.phase != "pending"

    def jobs(self) -> list[Any]:
        """submitit's Job for each array task (one without an array): `results()` and the rest."""
        from fsdpkit.scheduling.executor import job_class

        kind = job_class(self._client())
        ids = list(self.states()) if self.record.earlier else self.record.job_ids
        nodes = {job.job_id: job.nodes for job in self.record.jobs}
        return [
            kind(self.paths.submitit, one, list(range(nodes[one.partition("_")[0]]))) for one in ids
        ]

    def results(self) -> list[Any]:
        """What each node returned, in order; waits for the end, raises submitit's errors."""
        return [result for job in self.jobs() for result in job.results()]

    def returned(self) -> list[Any]:
        """What each rank of a run of `fsdpkit.run` returned, by rank; waits for the end. Raises
        FunctionError for the first rank that raised, and FsdpkitError."""
        from fsdpkit.scheduling.functions import returned

        return returned(self)

    def newest_attempt(self, array_task: int | None = None) -> AttemptPaths:
        """Paths of the newest attempt that started. Raises NotFoundError if none did."""
        task = self.paths.task(array_task)
        if not (attempts := task.attempts()):
            raise NotFoundError(f"run {self.id} has not started yet, so there is no output")
        return task.attempt(attempts[-1])

    def rank_log(
        self, rank: int = 0, *, array_task: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> Path:
        """A rank's newest output file, the last restart by torchrun within the newest attempt."""
        return _newest_file(self.newest_attempt(array_task), rank, stream)

    def first_failure(self, array_task: int | None = None) -> str | None:
        """`rank 5 on node2: exit status 3`: what the agents of the newest attempt found to be the
        cause, or else the first failure on record; of a whole array, that of the first task with
        one."""
        whole = self.record.array is not None and array_task is None
        for task in self.record.array or [] if whole else [array_task]:
            attempts = self.paths.task(task).attempts()
            if not attempts:
                continue
            attempt = self.paths.task(task).attempt(attempts[-1])
            if told := _verdict(attempt):
                return told
            recorded = sorted(attempt.failures.glob("*"))
            if recorded:
                return read_text(recorded[0]).partition(" ")[2].strip()
        return None

    def batch_log(self, job_id: str) -> Path:
        """The output of the batch shell of a job (an array task as `12_3`), where start-up errors
        stand."""
        return self.dir / f"slurm-{job_id}.log"

    def batch_logs(self) -> list[Path]:
        """Those that are there, the newest job's last."""
        logs = (self.batch_log(job_id) for job in self.record.jobs for job_id in job.job_ids)
        return [log for log in logs if log.exists()]


def _order(state: JobState | None) -> int:
    """Which of several states is told first."""
    if state is None:
        return 2
    if state.phase in ("running", "pending"):
        return 0 if state.phase == "running" else 1
    if state.succeeded:
        return 6
    return {"unknown": 4, "stopped": 5}.get(state.outcome or "", 3)


def _newest_file(attempt: AttemptPaths, rank: int, stream: Literal["out", "err"]) -> Path:
    restarts = [0]
    for path in attempt.dir.glob(f"rank-{rank}.restart-*.{stream}"):
        number = path.name.split(".")[1].removeprefix("restart-")
        restarts += [int(number)] if number.isdecimal() else []
    return attempt.rank_file(rank, stream, max(restarts))


def _verdict(attempt: AttemptPaths) -> str | None:
    """The trouble that the head node's agent took for the cause of all others."""
    try:
        told = read_json(attempt.verdict)["trouble"]
        return str(told["message"]) if told else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def states_of(runs: Sequence[Run]) -> list[States]:
    """For each run the states that say how it stands (`run_states.decisive`)."""
    known = all_states([(run.paths, run.record) for run in runs])
    return [decisive(run.record, states) for run, states in zip(runs, known, strict=True)]
