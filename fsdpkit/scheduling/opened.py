"""A run as it lies on disk and stands in the scheduler: what every verb begins with.

Looking only, and waiting; what changes a run has its own files (resuming.py, saving.py), which know
this one. run.py gives people both in one object.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fsdpkit.config.units import roughly
from fsdpkit.errors import NotFoundError, SchedulerError, StorageError
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.store import find_run, runs_dir
from fsdpkit.scheduling.asking import UNHEARD_S, Pace
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.job_mark import MarkedJob, comment, mark_of_job
from fsdpkit.scheduling.outcome import settle_s, written_s
from fsdpkit.scheduling.run_states import Standing, States, awaited, confirmed, decisive, standings
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from typing_extensions import Self


_LOOK_S = 2.0
"""Between two looks whether the batch shell has written how it ended."""


@dataclass(frozen=True)
class OpenRun:
    """One submission and all its attempts, on disk and in the scheduler.

    Attributes:
        dir: The run directory.
        record: What `run.json` says: what was asked, what the scheduler answered.
    """

    dir: Path
    record: RunRecord

    @classmethod
    def open(
        cls,
        run: str | os.PathLike[str],
        *,
        runs: str | os.PathLike[str] | None = None,
        copied: bool = False,
    ) -> Self:
        """The run with this path or id.

        A run whose submission (or resume) was cut short is looked for in the scheduler, and its
        record completed if it is there.

        Args:
            run: Its directory, its id, or four or more characters that only its id has.
            runs: Directory of runs; None: `$FSDPKIT_RUNS`, else `./runs`.
            copied: Whether its directory may have another name than its id, as a copy that is
                only looked at has.

        Returns:
            The run as its directory has it now.

        Raises:
            NotFoundError: There is no such run.
            StorageError: The run directory cannot be read.

        Examples:
            >>> import fsdpkit
            >>> fsdpkit.Run.open("no-such-run")
            Traceback (most recent call last):
            fsdpkit.errors.NotFoundError: ...
        """
        directory = find_run(run, runs_dir(runs))
        found = cls(directory, load(directory, copied=copied))
        return found._confirmed() if found.id == directory.resolve().name else found

    def _confirmed(self) -> Self:
        if not awaited(self.record):
            return self
        from fsdpkit.scheduling.slurm import Round

        found = self.client().find_by_comments([comment(self.record)], Round())
        return self.with_record(confirmed(self.paths, self.record, found))

    def with_record(self, record: RunRecord) -> Self:
        """The same run with another record; nothing is written.

        Args:
            record: What takes the place of `record`.

        Returns:
            A new object.
        """
        return replace(self, record=record)

    @property
    def id(self) -> str:
        """The run's id: job name, date, time and four characters, as its directory is called."""
        return self.record.id

    @property
    def job_id(self) -> str | None:
        """The scheduler's id of the newest job; None until sbatch has answered."""
        return self.record.job_id

    @property
    def paths(self) -> RunPaths:
        """Paths of all files in the run directory."""
        return RunPaths(self.dir)

    def client(self) -> Cluster:
        """Whom to ask about this run's jobs.

        Returns:
            The cluster that the run's jobs were handed to.
        """
        return cluster_of(self.record.kind, self.record.cluster)

    def marked(self, job_id: str) -> MarkedJob:
        """A job of the run's, or a task of its array, for whoever asks about it or changes it.

        Args:
            job_id: Its id, array tasks as `12_3`.

        Returns:
            The id with what tells the job from others of that number.

        Raises:
            SchedulerError: The directory is gone, or the run has no such job.
        """
        for job in self.record.jobs:
            if job_id in (job.job_id, *job.job_ids):
                return MarkedJob(job_id, mark_of_job(self.dir, self.record, job))
        raise SchedulerError(f"run {self.id} has no job {job_id}")

    def standing(self) -> Standing:
        """How the run stands, asked now.

        Returns:
            The states of all its jobs, and what could not be read.
        """
        return standings([(self.paths, self.record)])[0]

    def states(self) -> States:
        """The states that say how the run stands.

        Returns:
            By job id, one entry for each array task (as `12_3`); None where nobody could say.
        """
        return decisive(self.record, self.standing().states)

    def job_states(self) -> States:
        """The states of all jobs of the run, including those before it was resumed.

        Returns:
            By job id, array tasks as `12_3`; None where nobody could say.
        """
        return self.standing().states

    def state(self, array_task: int | None = None) -> JobState | None:
        """One state for the whole run, or for one task of its array.

        Args:
            array_task: Index of the task; None: all of them.

        Returns:
            Of several tasks: one that runs or is pending, then what nobody could say (None), then
            the first that failed.
        """
        return self.decisive_job(array_task)[1]

    def decisive_job(self, array_task: int | None = None) -> tuple[str | None, JobState | None]:
        """The job, or array task, whose state is that of the run (`state`).

        Args:
            array_task: Index of the task; None: all of them.

        Returns:
            Its id and its state; (None, None) without a job.
        """
        states = {
            job_id: state
            for job_id, state in self.states().items()
            if array_task in (None, task_of(job_id))
        }
        return min(states.items(), key=lambda item: _order(item[1]), default=(None, None))

    def wait(
        self,
        *,
        poll_s: float | None = None,
        array_task: int | None = None,
        heard: Callable[[JobState], object] | None = None,
    ) -> JobState:
        """Block until the run has ended, with all its jobs.

        Args:
            poll_s: Seconds between two questions to the scheduler. None: from 2 s, ever rarer, to a
                minute, and at once when an attempt begins or ends.
            array_task: Index of the one task to wait for; None: all of them.
            heard: Called with each state that the scheduler tells.

        Returns:
            The last state. A run that ended badly raises nothing: look at `succeeded`.

        Raises:
            SchedulerError: Nobody has known the job for five minutes.
        """
        pace, seen = Pace(poll_s), looks(self, array_task, heard)
        while (state := next(seen)) is None:
            if self._has_news_within(pace.pause_s(), array_task):
                pace.news()
        return state

    def _has_news_within(self, pause_s: float, array_task: int | None) -> bool:
        """Sleep so long, or until an attempt begins or the batch shell writes how it ended."""
        until, before = time.monotonic() + pause_s, self.newest_ending(array_task)
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
            if self.newest_ending(array_task) != before:
                return True
        return False

    def newest_ending(self, array_task: int | None) -> tuple[int, bool] | None:
        """What changes when the scheduler has news of the run; read from files alone.

        Args:
            array_task: Index of the task; None: the run.

        Returns:
            The newest attempt (from 0), and whether the batch shell has written how it ended. None
            before the first attempt, and for an array as a whole.
        """
        if self.record.array is not None and array_task is None:
            return None
        task = self.paths.task(array_task)
        newest = next(reversed(task.attempts()), None)
        return None if newest is None else (newest, task.attempt(newest).ending.exists())

    def newer(self) -> Self:
        """The run as its directory has it now: somebody may have resumed it.

        Returns:
            A new object; this one where the directory cannot be read.
        """
        with contextlib.suppress(StorageError, NotFoundError):
            return self.with_record(load(self.dir, copied=True))
        return self

    def newest_attempt(self, array_task: int | None = None) -> AttemptPaths:
        """Paths of the newest attempt that started.

        Args:
            array_task: Index of the task; None: the run is no array.

        Returns:
            Paths of the attempt's files.

        Raises:
            NotFoundError: None has started.
        """
        task = self.paths.task(array_task)
        if not (attempts := task.attempts()):
            raise NotFoundError(f"run {self.id} has not started yet, so there is no output")
        return task.attempt(attempts[-1])

    def rank_log(
        self, rank: int = 0, *, array_task: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> Path:
        """A rank's newest output file: the last launch within the newest attempt.

        Args:
            rank: Index of the rank, from 0.
            array_task: Index of the task; None: the run is no array.
            stream: Standard output or standard error.

        Returns:
            The path; the file may not exist yet.

        Raises:
            NotFoundError: No attempt has started.
        """
        return _newest_file(self.newest_attempt(array_task), rank, stream)

    def first_failure(self, array_task: int | None = None) -> str | None:
        """What failed first in the newest attempt, such as `rank 5 on node2: exit status 3`.

        Args:
            array_task: Index of the task; None: of an array, the first task with a failure.

        Returns:
            What the agents found to be the cause, else the first failure since the ranks were
            last started, else None.
        """
        from fsdpkit.runs.history import attempt_of

        whole = self.record.array is not None and array_task is None
        for task in self.record.array or [] if whole else [array_task]:
            attempts = self.paths.task(task).attempts()
            if not attempts:
                continue
            attempt = self.paths.task(task).attempt(attempts[-1])
            if (found := attempt_of(attempt).first_failure) is not None:
                return found.message
        return None

    def batch_log(self, job_id: str) -> Path:
        """The output of the batch shell, which has errors from before the agents started.

        Args:
            job_id: The scheduler's id; an array task's as `12_3`.

        Returns:
            The path; the file may not exist yet.
        """
        return self.dir / f"slurm-{job_id}.log"

    def batch_logs(self) -> list[Path]:
        """The batch shells' outputs that exist.

        Returns:
            Paths, the newest job's last.
        """
        logs = (self.batch_log(job_id) for job in self.record.jobs for job_id in job.job_ids)
        return [log for log in logs if log.exists()]


def looks(
    run: OpenRun,
    array_task: int | None = None,
    heard: Callable[[JobState], object] | None = None,
) -> Iterator[JobState | None]:
    """At each step how it stands: the last state, once nothing can follow it; else None. heard: as
    of `OpenRun.wait`. Raises SchedulerError when nobody has known the job for five minutes."""
    known_s = going_s = time.monotonic()
    while True:
        run, now_s = run.newer(), time.monotonic()
        state = run.state(array_task)
        if state is not None:
            known_s = now_s
        elif now_s - known_s > UNHEARD_S and (standing := run.standing()).answered:
            raise lost(run, standing, array_task)
        if state is None or state.phase != "ended":
            going_s = now_s
        elif now_s - going_s >= settle_s(state):
            yield state
            return
        if state is not None and heard is not None:
            heard(state)
        yield None


def lost(run: OpenRun, standing: Standing, array_task: int | None = None) -> SchedulerError:
    """That nobody can say what became of a run that stands so, and what was seen of it last."""
    why, seen = standing.strange or f"the scheduler does not know job {run.job_id}", ""
    with contextlib.suppress(NotFoundError):
        if (written := written_s(run.newest_attempt(array_task))) is not None:
            seen = f"; its newest attempt last wrote {roughly(time.time() - written)} ago"
    return SchedulerError(f"it is unknown what became of {run.id}: {why}{seen}")


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
    restarts = [file.restart for file in attempt.rank_files([rank]) if file.kind == stream]
    return attempt.rank_file(rank, stream, max(restarts, default=0))
