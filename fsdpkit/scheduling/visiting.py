"""The jobs of a run that run now, for whoever asks something of them; of the one to look inside,
which nodes it has and which agents can be asked there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from fsdpkit.errors import NotFoundError, SchedulerError, UsageError
from fsdpkit.runs.history import Attempt, NodeStory, history_of
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.store import is_mine
from fsdpkit.scheduling.opened import OpenRun

TaskOf = tuple[str, int | None]
"""A job's id as Slurm writes it, and its number in the array, if it is an array's."""


@dataclass(frozen=True)
class Visited:
    """A job, or an array task, that runs."""

    run: OpenRun
    job_id: str
    task: TaskPaths
    attempt: Attempt
    nodes: tuple[NodeStory, ...]
    """Those whose agents are there, in order; at least one."""

    def node(self, name: str | None) -> NodeStory:
        """The node of that name or number, or the first. Raises NotFoundError."""
        if name is None:
            return self.nodes[0]
        for node in self.nodes:
            if name in (node.name, node.name.partition(".")[0], str(node.number)):
                return node
        raise NotFoundError(
            f"no agent of {self.run.id} runs on node {name!r}; its nodes are "
            f"{', '.join(node.name for node in self.nodes)}"
        )


def running(run: OpenRun, array_task: int | None = None) -> Visited:
    """What runs of `run`, or of one task of its array. Raises NotFoundError for a task that it has
    not; UsageError if it is another user's, pending or over, or if several tasks run and none is
    named; SchedulerError when nobody can say whether it runs, or when its agents are not there."""
    found = running_jobs(run, array_task, lambda _: "it has no nodes to inspect")
    if len(found) > 1:
        tasks = ", ".join(str(number) for _, number in found)
        raise UsageError(
            f"{run.id}: several of its array tasks are running; choose one with --task: {tasks}"
        )
    return _visited(run, *found[0])


def running_jobs(run: OpenRun, array_task: int | None, so: Callable[[str], str]) -> list[TaskOf]:
    """What runs of `run`, or of one task of its array; at least one.

    so: what follows for the person where nothing runs, by the phase: "pending" or "ended".
    Raises NotFoundError for a task that it has not; UsageError if it is another user's, pending or
    over; SchedulerError when nobody can say.
    """
    refuse_of_others(run)
    if array_task is not None and array_task not in (run.record.array_tasks or []):
        raise NotFoundError(f"{run.id} has no array task {array_task}")
    found = [
        (job_id, task_of(job_id))
        for job_id, state in run.states().items()
        if array_task in (None, task_of(job_id)) and state is not None and state.phase == "running"
    ]
    if not found:
        raise _not_running(run, array_task, so)
    return found


def refuse_of_others(run: OpenRun) -> None:
    """Raises UsageError: Slurm lets nobody but its owner into a job, and what is left in another's
    directory for its agents may come to lie elsewhere."""
    import pwd  # only Unix has it

    if is_mine(run.dir):
        return
    found = run.dir.lstat().st_uid, run.dir.stat().st_uid
    owner = next(uid for uid in found if uid != os.geteuid())
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    raise UsageError(
        f"{run.id} is a run of {name}: only they can enter it; `status` and `logs` show what "
        f"they share"
    )


def _not_running(run: OpenRun, array_task: int | None, so: Callable[[str], str]) -> Exception:
    job_id, state = run.decisive_job(array_task)
    if state is None or state.phase == "unknown":
        return SchedulerError(
            f"it is unknown whether job {job_id or run.job_id} of {run.id} is running: try again"
        )
    now = "has not begun" if state.phase == "pending" else "has ended"
    return UsageError(f"{run.id} {now} (job {job_id}: {state.describe()}): {so(state.phase)}")


def _visited(run: OpenRun, job_id: str, array_task: int | None) -> Visited:
    history = history_of(run.paths, run.record, array_task)
    attempt = history.attempts[-1] if history.attempts else None
    if attempt is None or attempt.ending is not None:
        nodes: tuple[NodeStory, ...] = ()
    else:
        nodes = tuple(
            n
            for n in attempt.nodes
            if n.ready_s is not None and n.ended_s is None and n.name not in attempt.lost_nodes
        )
    if attempt is None or not nodes:
        raise SchedulerError(
            f"no agent of {run.id} has reported from a node of job {job_id}: it is starting or "
            f"ending; see `fsdpkit logs {run.id}`"
        )
    return Visited(run, job_id, run.paths.task(array_task), attempt, nodes)
