"""Trials that are a run each, and no tasks of an array: how they stand, and what each is told."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.reading import table_in
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import decisive, standings
from fsdpkit.scheduling.states import JobState
from fsdpkit.sweeps.file import STEPS
from fsdpkit.sweeps.halving import Decision, goal_of
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, TrialBatch

_NOT_BEGUN = JobState("PENDING", "sweep", reason="NotBegun")
_INTERRUPTED = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class OwnTrial(NamedTuple):
    """One trial. None: not begun, or not known."""

    run: Run | None
    job_id: str | None
    state: JobState | None

    @property
    def is_left(self) -> bool:
        """Whether it is still to train: it has not begun, or only the hold's fate ended it."""
        if self.state is None or self.run is None or self.state is _NOT_BEGUN:
            return self.state is _NOT_BEGUN
        stopped = self.state.outcome == "stopped" or self.state.state in _INTERRUPTED
        over = self.state.phase == "ended" and not self.state.succeeded
        return over and stopped and self.run.record.on is not None


def opened(paths: SweepPaths, run: str) -> Run | None:
    with contextlib.suppress(FsdpkitError):
        return Run.open(paths.dir.parent.parent / run)
    return None


def own_trials(
    paths: SweepPaths, record: SweepRecord, batch: TrialBatch, decided: Sequence[Decision]
) -> dict[int, OwnTrial]:
    """Each trial of the batch, with one round of questions. One that has not gone on yet into the
    rung that was decided has not begun."""
    found = {trial: OwnTrial(None, None, _NOT_BEGUN) for trial in batch.numbers}
    for number, name in batch.runs.items():
        found[int(number)] = OwnTrial(opened(paths, name), None, None)
    known = [(trial, one.run) for trial, one in found.items() if one.run is not None]
    told = standings([(run.paths, run.record) for _, run in known])
    for (trial, run), standing in zip(known, told, strict=True):
        for job_id, state in decisive(standing.record, standing.states).items():
            found[trial] = OwnTrial(run, job_id, state)
            rung = sum(trial in one.survivors for one in decided)
            if state is not None and state.over and not _was_told(run, record, rung):
                found[trial] = OwnTrial(run, None, _NOT_BEGUN)
    return found


def _was_told(run: Run, record: SweepRecord, rung: int) -> bool:
    job, (sets, args) = table_in(run.paths.job), goal_of(record.halving, record.most, rung)
    steps = f"{STEPS}={job.get('training', {}).get('steps')}"
    return {*sets} <= {steps} and {*args} <= {*job.get("args", [])}
