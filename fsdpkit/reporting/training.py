"""One training of a run as it was read: its history, its numbers and its state.

A run is one training; an array is one for each task. `report` and `compare` read a run through
here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fsdpkit.reporting.series import Floats, MetricsTable, read_metrics
from fsdpkit.reporting.status.progress import steps_to_do
from fsdpkit.reporting.timeline import bounds_of
from fsdpkit.runs.account import Account
from fsdpkit.runs.accounting import read_or_make
from fsdpkit.runs.bounds import Bounds
from fsdpkit.runs.history import History, history_of
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.reading import table_in
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import States, decisive, seen_jobs
from fsdpkit.scheduling.states import JobState


@dataclass(frozen=True)
class Training:
    """The run, or one task of an array."""

    run: Run
    history: History
    metrics: MetricsTable
    states: States
    """Of all the run's jobs."""
    job: Mapping[str, Any]
    """What is in `job.json`; empty if it cannot be read."""

    @property
    def task(self) -> int | None:
        return self.history.array_task

    @cached_property
    def state(self) -> JobState | None:
        """Of the job that matters now."""
        newest = decisive(self.run.record, self.states).items()
        return next((s for job_id, s in newest if self.task in (None, task_of(job_id))), None)

    @cached_property
    def bounds(self) -> list[Bounds]:
        """When each attempt had its nodes."""
        return bounds_of(self.history, self.states, self.metrics)

    def accounts(self, now_s: float) -> list[Account]:
        """Of its attempts; what still runs is counted up to Unix time `now_s`."""
        about = (self.run.paths, self.run.record, self.task, seen_jobs(self.states))
        return read_or_make(*about, now_s, self.history)

    @property
    def planned_steps(self) -> float | None:
        return self.metrics.last("planned_steps") or steps_to_do(self.job)

    @cached_property
    def eval_losses(self) -> Floats:
        """Those that are finite, in the order of the file."""
        losses = self.metrics.evaluations["eval_loss"]
        return losses[~np.isnan(losses)]

    @property
    def eval_loss(self) -> float | None:
        return float(self.eval_losses[-1]) if len(self.eval_losses) else None


def trainings_of(run: Run, tasks: Sequence[int | None], states: States) -> list[Training]:
    """These tasks of the run. `states`: as of `Run.job_states`."""
    job = table_in(run.paths.job)
    histories = [history_of(run.paths, run.record, task) for task in tasks]
    return [
        Training(run, history, read_metrics(history.paths.metrics), states, job)
        for history in histories
    ]
