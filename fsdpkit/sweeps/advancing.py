"""From one rung of a sweep to the next: who goes on, and their job.

Whoever comes may do it, any number of times: the small job behind a rung (next_job.py), Slurm
queueing that again, a person by `fsdpkit sweep advance`. Who goes on is decided once, from what the
trials wrote, and written down before anything is submitted; who finds that written goes by it. The
run's record says whether its next job was submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fsdpkit.errors import FsdpkitError, SchedulerError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.record import now_s
from fsdpkit.scheduling.resuming import ResumeRequest, plan_resume, submit_resume
from fsdpkit.scheduling.run import Run
from fsdpkit.sweeps import record as records
from fsdpkit.sweeps.halving import Decision, changes, ranked, survivors, survivors_of
from fsdpkit.sweeps.next_job import LOOK_S, submit_next
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, as_file_of, decisions
from fsdpkit.sweeps.results import Result, judged, results
from fsdpkit.sweeps.space import words


@dataclass(frozen=True)
class BatchStep:
    """What became of one batch."""

    batch: int
    what: Literal["waits", "submitted", "done"]
    rung: int
    trials: tuple[int, ...] = ()
    """Of `submitted`: who went on; of `waits`: who is not over."""


def advance(paths: SweepPaths, *, patience_s: float = 0.0) -> list[BatchStep]:
    """Submit the next rung of every batch whose last one is over. patience_s: how long to wait for
    the scheduler to know that one is. Raises FsdpkitError."""
    deadline = time.monotonic() + patience_s
    while True:
        with records.alone(paths) as record:
            if record.halving is None:
                raise UsageError(f"sweep {record.name} has no rungs: every trial trains to the end")
            # Each as the one before left the record.
            numbers = [n for n, batch in enumerate(record.batches) if batch.run is not None]
            steps = [_advance(paths, records.load(paths), number) for number in numbers]
        if all(one.what != "waits" for one in steps) or time.monotonic() >= deadline:
            return steps
        time.sleep(LOOK_S)


def _advance(paths: SweepPaths, record: SweepRecord, number: int) -> BatchStep:
    """The next thing to be done for a batch, if it can be done."""
    halving, batch = record.halving, record.batches[number]
    assert halving is not None
    decided = decisions(paths, record, number)
    run = Run.open(paths.dir.parent.parent / str(batch.run))
    if decided and not _went_on(run, decided[-1]):
        return _go_on(paths, record, number, run, decided[-1])
    rung = len(decided) + 1
    in_it = decided[-1].survivors if decided else list(batch.numbers)
    if rung == halving.rungs or not in_it:
        return BatchStep(number, "done", rung - 1)
    found = [one for one in results(paths, record) if one.trial in in_it]
    if left := [one.trial for one in found if not one.over]:
        return BatchStep(number, "waits", rung, tuple(left))
    decision = decide(record, number, rung, found, jobs_before=len(run.record.jobs))
    records.write_decision(paths, number, decision)
    return _go_on(paths, record, number, run, decision)


def undecided(paths: SweepPaths, record: SweepRecord, found: Sequence[Result]) -> bool:
    """Whether a rung is over and no small job is there to decide who goes on: a person may."""
    if record.halving is None:
        return False
    for number, batch in enumerate(record.batches):
        decided = decisions(paths, record, number)
        rung, in_it = len(decided) + 1, decided[-1].survivors if decided else list(batch.numbers)
        if rung == record.halving.rungs or not in_it or str(rung) in batch.next_jobs:
            continue
        if all(one.over for one in found if one.trial in in_it):
            return True
    return False


def decide(
    record: SweepRecord, number: int, rung: int, found: Sequence[Result], *, jobs_before: int
) -> Decision:
    """Who goes on into `rung`, of those that were in the one before."""
    assert record.halving is not None
    places = survivors_of(record.batches[number].trials, record.halving.factor, rung)
    told = ranked(judged(found), highest=record.highest)
    return Decision(
        rung=rung,
        survivors=survivors(told, places, highest=record.highest),
        judged=told,
        jobs_before=jobs_before,
        decided_s=now_s(),
    )


def _went_on(run: Run, decision: Decision) -> bool:
    return len(run.record.jobs) > decision.jobs_before or not decision.survivors


def _go_on(
    paths: SweepPaths, record: SweepRecord, number: int, run: Run, decision: Decision
) -> BatchStep:
    if not decision.survivors:
        return BatchStep(number, "done", decision.rung)
    halving, most = record.halving, record.most
    assert halving is not None
    assert most is not None
    own = {trial: words(dict(record.trials[trial])) for trial in decision.survivors}
    asked = ResumeRequest(
        tasks=decision.survivors,
        sets=changes(halving, most, decision.rung, own),
        said_in=[as_file_of(paths.record, record)],
    )
    plan = plan_resume(run, asked)
    run = submit_resume(run, plan)
    if decision.rung + 1 < halving.rungs:
        follow(paths, record, number, decision.rung + 1, run, plan)
    return BatchStep(number, "submitted", decision.rung, tuple(decision.survivors))


def follow(
    paths: SweepPaths, record: SweepRecord, number: int, rung: int, run: Run, plan: Plan
) -> SweepRecord:
    """Queue the small job that decides who goes on into `rung`, behind the run's newest job. Where
    that cannot be, the trials train all the same; the error says how to go on by hand."""
    if not run.client().chains or run.job_id is None:
        return record
    try:
        job_id = submit_next(
            plan,
            paths.dir,
            f"{record.name}-rung-{rung}",
            after=run,
            script=paths.rung(number, rung, "sbatch"),
            log=paths.rung(number, rung, "log"),
        )
    except FsdpkitError as error:
        raise SchedulerError(
            f"job {run.job_id} is submitted, but not the small job that decides which trials go "
            f"on ({error}): when it has ended, run fsdpkit sweep advance {record.name}"
        ) from error
    next_jobs = {**record.batches[number].next_jobs, str(rung): job_id}
    record = record.with_batch(number, next_jobs=next_jobs)
    records.save(paths, record)
    return record
