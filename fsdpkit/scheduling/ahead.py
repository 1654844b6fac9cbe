"""Which jobs of a run are not over, before it gets another; none where that is not certain.

A second job in the directory of a run that trains would undo its work, so a scheduler that knows no
job of that number is not enough: it may count anew, or be another of the same name.
"""

from __future__ import annotations

from fsdpkit.errors import UsageError
from fsdpkit.runs.job_ids import job_of
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.outcome import began, still_written
from fsdpkit.scheduling.run_states import Standing


def jobs_ahead(run: OpenRun, standing: Standing) -> list[str]:
    """Ids of the run's jobs that are not over. Raises UsageError where that cannot be told here."""
    if standing.elsewhere:
        raise UsageError(
            f"run {run.id} is another cluster's ({standing.strange}): resume it from a machine of "
            "that cluster"
        )
    states, ahead = standing.states, []
    for job in run.record.jobs:
        open_ids = []
        for job_id in job.job_ids if job.ended is None else []:
            state = states.get(job_id)
            if state is None or state.phase != "ended":
                open_ids.append(job_id)
        unknown = all(states.get(job_id) is None for job_id in open_ids)
        # Without accounting Slurm forgets a job minutes after its end.
        if job.job_id and open_ids and not (unknown and _forgotten(run, standing, job.job_id)):
            ahead.append(job.job_id)
    return ahead


def _forgotten(run: OpenRun, standing: Standing, job_id: str) -> bool:
    """Whether the scheduler answers that it knows no such job, and no node is at work on it.

    A cluster of the same name may know it. Raises UsageError for a run whose nodes still write, and
    for one that may still wait there.
    """
    if not run.client().forgot(run.marked(job_id)):
        return False
    mine = [i for i in standing.states if job_of(i) == job_id]
    if standing.strange and not any(began(run.paths, run.record, one) for one in mine):
        raise UsageError(
            f"whether job {job_id} of run {run.id} still waits somewhere cannot be told "
            f"({standing.strange}); it has done nothing yet: submit it again"
        )
    if any(still_written(run.paths, run.record, one) for one in mine):
        raise UsageError(
            f"the scheduler knows no job {job_id} of run {run.id}, but its nodes still write to "
            f"{run.dir}: either another cluster of this name runs it, or it has just ended; resume "
            "it there, or once it has been silent for a few minutes"
        )
    return True
