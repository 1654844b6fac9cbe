"""The job of a run that runs now, for whoever wants to look inside: which nodes it has, and which
agents can be asked there."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fsdpkit.errors import NotFoundError, SchedulerError, UsageError
from fsdpkit.runs.history import Attempt, NodeStory, history_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.scheduling.run import Run


@dataclass(frozen=True)
class Visited:
    """A job, or an array task, that runs."""

    run: Run
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


def running(run: Run, array_task: int | None = None) -> Visited:
    """What runs of `run`, or of one task of its array.

    Raises NotFoundError for a task that it has not; UsageError if it is another user's, pending or
    over, or if several tasks run and none is named; SchedulerError when nobody can say whether it
    runs, or when its agents are not there.
    """
    _refuse_of_others(run)
    if array_task is not None and array_task not in (run.record.array_tasks or []):
        raise NotFoundError(f"{run.id} has no array task {array_task}")
    states = {
        job_id: state
        for job_id, state in run.states().items()
        if array_task is None or job_id.partition("_")[2] == str(array_task)
    }
    ids = [j for j, state in states.items() if state is not None and state.phase == "running"]
    if not ids:
        raise _not_running(run, array_task)
    if len(ids) > 1:
        tasks = ", ".join(job_id.partition("_")[2] for job_id in ids)
        raise UsageError(f"{run.id}: several tasks of its array run; choose one by --task: {tasks}")
    number = ids[0].partition("_")[2]
    return _visited(run, ids[0], int(number) if number else None)


def _refuse_of_others(run: Run) -> None:
    """Raises UsageError: Slurm lets nobody but its owner into a job."""
    import pwd  # only Unix has it

    owner = run.dir.stat().st_uid
    if owner == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    raise UsageError(
        f"{run.id} is a run of {name}: only they may enter it; `status` and `logs` read what they "
        "let you read"
    )


def _not_running(run: Run, array_task: int | None) -> Exception:
    job_id, state = run.decisive_job(array_task)
    if state is None or state.phase == "unknown":
        return SchedulerError(
            f"nobody can say whether job {job_id or run.job_id} of {run.id} runs: ask again"
        )
    now = "has not begun" if state.phase == "pending" else "has ended"
    return UsageError(
        f"{run.id} {now} (job {job_id}: {state.describe()}): it has no nodes to look at"
    )


def _visited(run: Run, job_id: str, array_task: int | None) -> Visited:
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
            f"no agent of {run.id} has reported from a node of job {job_id}: it is starting, or "
            f"about to end; `fsdpkit logs {run.id}` shows what it says"
        )
    return Visited(run, job_id, run.paths.task(array_task), attempt, nodes)
