"""Trials of a sweep on nodes that `fsdpkit hold` has: one after another, and side by side where
there are nodes for it.

Only the command that was given waits for them, as `submit --on` does. What comes next follows from
the sweep's record, its decisions and the trials' runs, so whoever comes goes on: on this hold, on
another, or in the queue, which gets what is left as a job each.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fsdpkit.config.allocation import Allocation
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.site import choose_site
from fsdpkit.config.trust import Consent
from fsdpkit.errors import FsdpkitError, SchedulerError, UsageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import build_types
from fsdpkit.scheduling.asking import Pace
from fsdpkit.scheduling.here.held import free_on
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.resuming import ResumeRequest, plan_resume, submit_resume
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from fsdpkit.sweeps import record as records
from fsdpkit.sweeps.advancing import decide
from fsdpkit.sweeps.halving import goal_of
from fsdpkit.sweeps.job_files import working_in
from fsdpkit.sweeps.own_runs import OwnTrial, own_trials
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, as_file_of, decisions, write_decision
from fsdpkit.sweeps.results import results

_WORTH_SAYING_S = 4.0
_LEAST_S = 120
"""Of a hold that has less time left no trial is begun."""
_MOST_AT_ONCE = 64

Waiting = dict[Future[JobState], tuple[int, Run]]


@dataclass
class TrialPass:
    """One call that trains what is left."""

    paths: SweepPaths
    on: str | None
    """The hold; None: the queue."""
    consent: Consent
    tell: Callable[[str], object]
    """Called with what happens, a line each."""
    tried: set[tuple[int, int]] = field(default_factory=set)
    """Trials and rungs: each is begun once in a pass."""
    ended: bool = False
    """Whether the hold gives no more nodes."""
    pace: Pace = field(default_factory=Pace)
    """Of looks at what the hold has free."""
    waited: bool = False
    """Whether it was told that other runs are on its nodes."""


class _NextTrial(NamedTuple):
    batch: int
    trial: int
    rung: int
    run: Run | None
    """Its own from before, which goes on."""


class _OpenRung(NamedTuple):
    batch: int
    number: int
    trials: dict[int, OwnTrial]

    def left(self, tried: Collection[tuple[int, int]]) -> list[_NextTrial]:
        return [
            _NextTrial(self.batch, trial, self.number, own.run)
            for trial, own in self.trials.items()
            if own.is_left and (trial, self.number) not in tried
        ]

    @property
    def is_over(self) -> bool:
        states = [own.state for own in self.trials.values()]
        return bool(states) and all(state is not None and state.over for state in states)


def go_on(one: TrialPass) -> list[int]:
    """Train what is left, on the hold until all has ended; the trials that are left then. Ctrl-C
    ends those that run. Raises FsdpkitError."""
    _check(one)
    with records.alone(one.paths) as record:
        records.save(one.paths, msgspec.structs.replace(record, cancelled=False))
    waiting: Waiting = {}
    build_types()
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        try:
            while True:
                while (begun := _begin_one(one, len(waiting))) is not None:
                    trial, run = begun
                    one.pace.news()
                    if run is not None and one.on is not None:
                        waiting[pool.submit(run.wait)] = trial, run
                if not waiting and (one.ended or one.on is None or not left(one.paths, one.tried)):
                    return left(one.paths)
                _wait_for_one(one, waiting)
        except KeyboardInterrupt:
            for _, run in waiting.values():
                with contextlib.suppress(SchedulerError):  # it is on file, which the run looks for
                    run.cancel()
            raise


def _check(one: TrialPass) -> None:
    """Raise UsageError for a hold that is too small."""
    if one.on is None:
        return
    nodes = load_job(str(one.paths.job)).spec.resources.nodes
    hold = OpenRun.open(one.on, runs=one.paths.dir.parent.parent)
    if hold.record.nodes < nodes:
        raise UsageError(f"each trial takes {nodes} nodes; {hold.id} has {hold.record.nodes}")


def left(paths: SweepPaths, tried: Collection[tuple[int, int]] = ()) -> list[int]:
    """Trials that are still to be trained, and were not `tried`."""
    record = records.load(paths)
    rungs = [] if record.cancelled else [*_rungs(paths, record)]
    return [next_.trial for rung in rungs for next_ in rung.left(tried)]


def _rungs(paths: SweepPaths, record: SweepRecord) -> Iterator[_OpenRung]:
    """Of each batch whose trials are runs of their own, the rung that it has come to."""
    for number, batch in enumerate(record.batches):
        if batch.run is None:
            decided = decisions(paths, record, number)
            own = own_trials(paths, record, batch, decided)
            in_it = decided[-1].survivors if decided else batch.numbers
            yield _OpenRung(number, len(decided), {trial: own[trial] for trial in in_it})


def _wait_for_one(one: TrialPass, waiting: Waiting) -> None:
    """Until one has ended, or others' may have: for a moment Slurm still lists what has ended."""
    pause_s = one.pace.pause_s()
    if not waiting:
        if pause_s > _WORTH_SAYING_S and not one.waited:
            one.tell("waits until there are free nodes")
            one.waited = True
        time.sleep(pause_s)
    for each in wait(waiting, pause_s, FIRST_COMPLETED).done:
        trial, _ = waiting.pop(each)
        one.pace.news()
        try:
            one.tell(f"trial {trial}: {each.result().describe()}")
        except SchedulerError as error:
            one.tell(f"trial {trial}: {error}")


def _begin_one(one: TrialPass, going: int) -> tuple[int, Run | None] | None:
    """The next trial, begun if that can be; None if it has to wait, or there is none."""
    with records.alone(one.paths) as record:
        most = record.file.limit or _MOST_AT_ONCE
        if one.ended or record.cancelled or (one.on is not None and going >= most):
            return None
        try:
            free = _free(one, record)
        except SchedulerError as error:  # it is asked again
            one.tell(str(error))
            return None
        found = None if one.ended else _next(one, record)
        if found is None:
            return None
        wanted, limit = load_job(str(one.paths.trial(found.trial))).spec.resources, None
        if free is not None:
            if wanted.nodes > len(free.nodes):
                return None
            limit = str(free.left_s // 60) if wanted.time_s > free.left_s else None
        one.tried.add((found.trial, found.rung))
        try:
            with working_in(record.work_dir):
                run = _begin(one, record, found, limit)
        except FsdpkitError as error:
            one.tell(f"trial {found.trial}: {error}")
            return found.trial, None
        one.tell(f"trial {found.trial}: {run.id}")
        return found.trial, run


def _free(one: TrialPass, record: SweepRecord) -> Allocation | None:
    """What the hold has for the next trial; None: the queue, or nothing is begun any more."""
    if one.on is None:
        return None
    try:
        kind = choose_site(record.cluster)[0].profile.kind
        found = free_on(one.on, one.paths.dir.parent.parent, kind)
    except UsageError as error:
        one.ended = True
        one.tell(str(error))
        return None
    one.ended = found.left_s < _LEAST_S
    return found


def _next(one: TrialPass, record: SweepRecord) -> _NextTrial | None:
    """Who comes next, if need be after it is decided who goes on."""
    for rung in _rungs(one.paths, record):
        if found := rung.left(one.tried):
            return found[0]
        if rung.number + 1 < record.file.rungs and rung.is_over:
            shown = [each for each in results(one.paths, record) if each.trial in rung.trials]
            decision = decide(record, rung.batch, rung.number + 1, shown, jobs_before=0)
            write_decision(one.paths, rung.batch, decision)
            return _next(one, record)
    return None


def _begin(one: TrialPass, record: SweepRecord, what: _NextTrial, limit: str | None) -> Run:
    sets, args = goal_of(record.halving, record.most, what.rung)
    said_in, job = [as_file_of(one.paths.record, record)], str(one.paths.trial(what.trial))
    if what.run is not None:
        if args:
            sets = [f"args={json.dumps([*load_job(job).spec.args, *args])}"]
        again = ResumeRequest(sets=sets, on=one.on, said_in=said_in)
        return submit_resume(what.run, plan_resume(what.run, again), one.consent)
    runs = one.paths.dir.parent.parent
    request = SubmitRequest(
        job,
        record.cluster,
        runs=runs,
        args=args,
        sets=[*sets, f"name={record.name[:50]}-{what.trial}"],
        time=limit,
        on=one.on,
        said_in=said_in,
    )
    decided, _ = plan(request, one.consent)

    def put_on_record(made: RunPaths) -> None:
        runs = {**record.batches[what.batch].runs, str(what.trial): made.dir.name}
        records.save(one.paths, record.with_batch(what.batch, runs=runs))

    try:
        return submit_plan(decided, runs, one.consent, prepare=put_on_record)
    except FsdpkitError:
        records.save(one.paths, record)
        raise
