"""Ask a run that trains for a checkpoint, and wait until it has its name; or for a stop."""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.config.units import roughly
from fsdpkit.errors import SchedulerError, StorageError, storage_errors
from fsdpkit.runs.checkpoints import checkpoints_in
from fsdpkit.runs.history import attempt_of
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import answer_to, ask, saves_there, withdraw
from fsdpkit.scheduling.asking import UNHEARD_S, Pace
from fsdpkit.scheduling.opened import OpenRun, looks
from fsdpkit.scheduling.visiting import running_jobs

if TYPE_CHECKING:
    from fsdpkit.scheduling.states import JobState

_LOOK_S = 0.5
"""Between two looks for the answer."""
SLOW_S = 60.0
"""After so long without an answer whoever waits is told what it may be."""


@dataclass(frozen=True)
class SaveRequest:
    """A checkpoint that was asked of one job, or array task.

    Attributes:
        run: The run.
        job_id: The scheduler's id; an array task's as `12_3`.
        task: Paths of the training job's files.
        array_task: Index of the task; None without an array.
        id: Tells this request from others.
    """

    run: OpenRun
    job_id: str
    task: TaskPaths
    array_task: int | None
    id: str

    @property
    def is_listed(self) -> bool:
        """Whether `fsdpkit checkpoint ls` will list it: fsdpkit's Checkpointer saves it."""
        return self.task.checkpoints.is_dir()

    def wait(self, slow: Callable[[], object] = lambda: None) -> Path:
        """Block until the checkpoint is whole.

        Args:
            slow: Called once if there is no answer after a minute.

        Returns:
            The checkpoint's path.

        Raises:
            StorageError: It could not be written; the run goes on.
            SchedulerError: The job ended before it saved.
        """
        pace, began, told = Pace(), time.monotonic(), False
        ask_at, end = began + pace.pause_s(), looks(self.run, self.array_task)
        while (found := answer_to(self.task, self.id)) is None:
            now = time.monotonic()
            if now - began > SLOW_S and not told:
                told = True
                slow()
            if now >= ask_at:
                if (state := next(end)) is not None:
                    raise self._too_late(state)
                ask_at = now + pace.pause_s()
            time.sleep(_LOOK_S)
        if found.step is None:
            raise StorageError(
                f"{self.run.id}: the checkpoint could not be written: {found.problem} The run goes "
                "on; older checkpoints stand."
            )
        if found.path is not None:
            return self.task.dir / found.path
        return self.task.checkpoints / f"step-{found.step}"

    def _too_late(self, state: JobState) -> SchedulerError:
        withdraw(self.task, self.id)
        return SchedulerError(
            f"{self.run.id} ended before it saved what was asked for ({state.describe()}); "
            f"{newest(self.task)}"
        )


def request_checkpoints(run: OpenRun, array_task: int | None = None) -> list[SaveRequest]:
    """Ask what runs of `run`, or of one task of its array, to save and go on. Raises UsageError
    when it is pending or has ended, SchedulerError when nobody can say, or when nothing in it has
    opened its checkpoints; StorageError when the request cannot be written."""
    what_then = functools.partial(_nothing_runs, run, array_task)
    return [_request(run, *found) for found in running_jobs(run, array_task, what_then)]


def _nothing_runs(run: OpenRun, array_task: int | None, phase: str) -> str:
    if phase == "pending":
        return "there is nothing to save."
    task = run.paths.task(array_task)
    of_task = "" if run.record.array is not None and array_task is None else f" {newest(task)}"
    return f"nothing runs that could save.{of_task}"


def _request(run: OpenRun, job_id: str, array_task: int | None) -> SaveRequest:
    task = run.paths.task(array_task)
    attempts = task.attempts()
    if not attempts or not saves_there(task, attempts[-1]):
        raise SchedulerError(
            f"Nothing in job {job_id} has opened the run's checkpoints yet. A trainer that is "
            f"starting will do so soon: try again. A script without "
            f"fsdpkit.training.Checkpointer or attach() from fsdpkit.script never does."
        )
    with storage_errors(task.save_requested, "written"):
        return SaveRequest(run, job_id, task, array_task, ask(task))


def wait_for_stop(run: OpenRun, asked: Sequence[str]) -> JobState:
    """Block until a run has ended of which these jobs, or array tasks, were asked to save and to
    stop. Raises SchedulerError if for five minutes no script of those that go on checks for it."""
    heeded_s, tasks = time.monotonic(), [run.paths.task(task_of(job_id)) for job_id in asked]

    def heard(_: JobState) -> None:
        nonlocal heeded_s
        newest = [attempt_of(task.attempt(n)) for task in tasks for n in task.attempts()[-1:]]
        ignored = [one.stop_ignored for one in newest if one.ending is None]
        if not ignored or not all(ignored):
            heeded_s = time.monotonic()
        elif time.monotonic() - heeded_s > UNHEARD_S:
            raise SchedulerError(
                f"{run.id} goes on: for {roughly(UNHEARD_S)} its script has not checked whether "
                f"to stop. To end it without saving: fsdpkit cancel {run.id}"
            )

    return run.wait(heard=heard)


def newest(task: TaskPaths) -> str:
    """Which checkpoint there is, in a sentence."""
    if not (found := checkpoints_in(task.checkpoints)):
        return "There is no checkpoint."
    where = shlex.quote(str(task.dir))
    return f"The newest checkpoint is {found[-1].name}: fsdpkit checkpoint ls {where}"
