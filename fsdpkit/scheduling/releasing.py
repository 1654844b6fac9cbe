"""Letting a run go on whose job Slurm holds: the other thing that `resume` can mean.

Slurm holds a job that it had to requeue and whose start then failed, as on a node that came back
with the job before still on it. That is its administrators' choice (`nohold_on_prolog_fail`), so
nothing here does it unasked: `status`, `watch` and `--wait` say so, and the owner decides.
"""

from __future__ import annotations

from fsdpkit.scheduling.opened import OpenRun


def release_held(run: OpenRun) -> list[str]:
    """Release the jobs, or array tasks, of the run that wait for that; their ids.

    Raises SchedulerError where Slurm refuses.
    """
    states = run.states()
    held = [job_id for job_id, state in states.items() if state is not None and state.held]
    for job_id in held:
        run.client().release(run.marked(job_id))
    return held
