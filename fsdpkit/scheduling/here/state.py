"""How a run stands whose script is a step of an allocation, and how it is ended."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.errors import SchedulerError, storage_errors
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import table_in
from fsdpkit.scheduling.here.commands import SCRIPT_STEP, end_steps, steps_of, warn_step
from fsdpkit.scheduling.local.store import LocalJob
from fsdpkit.scheduling.outcome import recorded
from fsdpkit.scheduling.states import ALLOCATION_ENDED, JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.job_mark import MarkedJob

_ENDS = ("TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
"""Ends of an allocation that say why the run in it ended; any other is as if cancelled."""


def state_here(job: MarkedJob, allocation: JobState | None, cluster: str | None) -> JobState | None:
    """The run's own state, by what its script's step wrote and what Slurm says of the allocation.
    None: neither says."""
    if job.mark.here is None:
        return allocation
    written = recorded(table_in(job.mark.here / "state.json"))
    if written is not None and written.phase == "ended":
        return written
    if allocation is None:
        return None
    begun = written or JobState("RUNNING", "here", node_list=allocation.node_list)
    lost = replace(begun, exit_code=0, exit_signal=15, end_s=allocation.end_s)
    if allocation.phase == "ended":
        word = allocation.state if allocation.state in _ENDS else "CANCELLED"
        return replace(lost, state=word, reason=ALLOCATION_ENDED)
    if written is not None and not _goes_on(job, job.mark.here.parent.name, cluster):
        # What it wrote last counts, should it have ended between the two looks.
        written = recorded(table_in(job.mark.here / "state.json"))
        if written is None or written.phase != "ended":
            return replace(lost, state="NODE_FAIL", reason="the script's step is gone", end_s=None)
    return written or begun


def _goes_on(job: MarkedJob, run_id: str, cluster: str | None) -> bool:
    steps = steps_of(job.id, cluster)
    return steps is None or f"{SCRIPT_STEP}{run_id}" in [step.name for step in steps]


def request_end(directory: Path) -> None:
    """Leave word that the run is to end, which its script's step looks for. Raises StorageError."""
    with storage_errors(directory, "written"):
        write_atomically(RunPaths(directory.parent).task().stop_requested, "cancel\n")
        LocalJob(directory).cancel_requested.touch(mode=0o600)


def end_here(job: MarkedJob, directory: Path, cluster: str | None) -> None:
    """End the run's steps and nothing else of the allocation. Raises SchedulerError. The script's
    step ends the others, if it is there; the signal lets it look at once."""
    steps, run_id = steps_of(job.id, cluster), directory.parent.name
    if steps is None:
        raise SchedulerError(f"squeue does not say which steps of job {job.id} are the run's")
    script = [step.id for step in steps if step.name == f"{SCRIPT_STEP}{run_id}"]
    for step in script:
        with contextlib.suppress(SchedulerError):
            warn_step(step, cluster)
    if not script:
        end_steps([step.id for step in steps if step.name == run_id], cluster)
