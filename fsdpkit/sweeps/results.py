"""How a sweep's trials stand: what the scheduler says, and the numbers that they logged."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.job_ids import task_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import States, decisive
from fsdpkit.scheduling.states import JobState
from fsdpkit.sweeps.halving import Decision, JudgedTrial
from fsdpkit.sweeps.own_runs import opened, own_trials
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, decisions
from fsdpkit.sweeps.space import Settings


@dataclass(frozen=True)
class Result:
    """One trial as of now. None: not known, or not logged."""

    trial: int
    run: str
    """Empty before it has one, on a hold."""
    job_id: str | None
    """Slurm's, of the array task that says how it stands."""
    state: str
    """In a word; DROPPED: others were better at the end of a rung."""
    over: bool
    succeeded: bool
    """Whether it trained as far as it was to, with a value or without."""
    rung: int
    """The last that it was, or is, in."""
    step: int | None
    value: float | None
    """The last that was logged of the sweep's metric."""
    problem: str
    """Why there is no value to go by, if there should be one; empty otherwise."""
    settings: Settings

    @property
    def counts(self) -> bool:
        """Whether it trained as far as it was to, and has a value."""
        return self.value is not None and self.succeeded

    @property
    def leads(self) -> bool:
        """Whether its value counts so far: at its goal, or on from a rung that it passed."""
        goes_on = self.rung > 0 and not self.over
        return self.value is not None and (self.counts or goes_on)


@dataclass(frozen=True)
class Logged:
    """What a trial's metrics end with."""

    step: int | None = None
    value: float | None = None
    finite: bool = True


def read_last(path: Path, metric: str) -> Logged:
    """The newest step, and the metric's newest value; what was done again counts. None: no file."""
    step, found = None, Logged()
    with contextlib.suppress(OSError):
        for line in read_json_lines(path):
            number = line.get("step")
            if isinstance(number, int):
                step = number
            if metric not in line:
                continue
            value = line[metric]
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                found = Logged(finite=False)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found = Logged(value=float(value))
    return Logged(step, found.value, found.finite)


def results(paths: SweepPaths, record: SweepRecord) -> list[Result]:
    """Of every trial, by number, with one round of questions for each batch. Raises StorageError;
    of a run that is gone the states are unknown."""
    found: list[Result] = []
    for number, batch in enumerate(record.batches):
        decided = decisions(paths, record, number)
        if batch.run is None:
            for trial, own in own_trials(paths, record, batch, decided).items():
                states, name = {trial: (own.job_id, own.state)}, batch.runs.get(str(trial), "")
                found.append(result_of(record, own.run, states, decided, trial, name))
            continue
        run = opened(paths, batch.run)
        states = {} if run is None else by_task(run, run.job_states())
        for trial in batch.numbers:
            found.append(result_of(record, run, states, decided, trial, batch.run))
    return found


def by_task(run: Run, states: States) -> dict[int, tuple[str | None, JobState | None]]:
    """For each task of the array the job that counts, and its state."""
    standing = decisive(run.record, states)
    return {
        task: (job, state) for job, state in standing.items() if (task := task_of(job)) is not None
    }


def result_of(
    record: SweepRecord,
    run: Run | None,
    states: Mapping[int, tuple[str | None, JobState | None]],
    decided: Sequence[Decision],
    trial: int,
    run_id: str,
) -> Result:
    """One trial's, of the run `run_id`; None where that is gone. decided: of its rungs so far."""
    passed = [one.rung for one in decided if trial in one.survivors]
    dropped = len(decided) > len(passed)
    logged = Logged()
    if run is not None:
        task = None if run.record.array is None else trial
        logged = read_last(run.paths.task(task).metrics, record.file.metric)
    job_id, state = states.get(trial, (None, None))
    succeeded = state is not None and state.succeeded
    word = "UNKNOWN" if state is None else state.word
    return Result(
        trial=trial,
        run=run_id,
        job_id=job_id,
        state="DROPPED" if dropped and succeeded else word,
        over=state is not None and state.over,
        succeeded=succeeded,
        rung=max(passed, default=0),
        step=logged.step,
        value=logged.value,
        problem=_problem(state, logged, record.file.metric),
        settings=dict(record.trials[trial]),
    )


def _problem(state: JobState | None, logged: Logged, metric: str) -> str:
    if state is not None and state.over and not state.succeeded:
        return state.describe()
    if not logged.finite:
        return f"the last {metric} was not finite"
    if logged.value is None and state is not None and state.over:
        return f"it logged no {metric}"
    return ""


def judged(found: Sequence[Result]) -> list[JudgedTrial]:
    """For a rung's decision: who failed, was cancelled or has no number loses, and is named."""
    return [
        JudgedTrial(trial=one.trial, value=one.value)
        if one.counts
        else JudgedTrial(trial=one.trial, lost=one.problem or "how it ended is unknown")
        for one in found
    ]


def best(found: Sequence[Result], *, highest: bool) -> Result | None:
    """The best so far of the trials that came the farthest; the lower number of equal ones."""
    counting = [one for one in found if one.leads]
    far = max((one.rung for one in counting), default=0)

    def order(one: Result) -> tuple[float, int]:
        assert one.value is not None
        return -one.value if highest else one.value, one.trial

    return min((one for one in counting if one.rung == far), key=order, default=None)
