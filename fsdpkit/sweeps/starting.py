"""A sweep from its file to Slurm: draw, check every trial, write them down, submit one array.

prepare(): decide and check, write nothing. start() and extend(): make what the trials need, submit.
If one trial would be refused, all are: a sweep with holes that nobody chose answers another
question. The error names every such trial, and --leave-out goes on without them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.array_tasks import own_tables
from fsdpkit.config.job_loading import LoadedJob, load_job
from fsdpkit.config.loading import FileTables
from fsdpkit.config.placement import place
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, StorageError, SubmissionInterrupted, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import RunPaths, make_directory, write_atomically
from fsdpkit.runs.record import now_s
from fsdpkit.runs.store import runs_dir
from fsdpkit.scheduling.here.request import in_allocation
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_dir import make_run_dir
from fsdpkit.scheduling.slurm import SubmissionUnconfirmed
from fsdpkit.scheduling.submission import SubmitRequest, asked_for, plan, submit_plan
from fsdpkit.sweeps import record as records
from fsdpkit.sweeps.file import MOST_TRIALS, STEPS, Halving, SweepFile, check_against_job, trials_of
from fsdpkit.sweeps.halving import goal_of
from fsdpkit.sweeps.job_files import as_file, working_in, write_own_job
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, TrialBatch, as_file_of
from fsdpkit.sweeps.results import best as best_of
from fsdpkit.sweeps.results import results
from fsdpkit.sweeps.space import Settings, SweptParameter, at_random, grid, parameters, told, words
from fsdpkit.sweeps.trial_checks import Trials

_MOST_NAMED = 5


@dataclass(frozen=True)
class SweepRequest:
    """What a person says beside the file."""

    sets: Sequence[str] = ()
    """`KEY=VALUE`, for every trial."""
    cluster: str | None = None
    runs: str | os.PathLike[str] | None = None
    leave_out: bool = False
    """Go on without trials that would be refused."""
    consent: Consent = field(default_factory=Consent)
    on: str | None = None
    """The hold on whose nodes the trials run, in place of an array."""


@dataclass(frozen=True)
class CheckedTrials:
    """Trials that may be submitted."""

    file: SweepFile
    plan: Plan
    """Of the batch's first job, all but the trials' own words."""
    numbers: tuple[int, ...]
    trials: tuple[Settings, ...]
    most: int | None
    why_site: str = ""
    left_out: tuple[tuple[Settings, str], ...] = ()
    """Those that would be refused, and why."""
    base: LoadedJob = field(kw_only=True)


def prepare(
    file: SweepFile, space: Sequence[SweptParameter], read: FileTables, asked: SweepRequest
) -> CheckedTrials:
    """The sweep's trials, checked. read: what `file` was. Raises FsdpkitError; writes nothing."""
    _refuse_second(file.name, runs_dir(asked.runs))
    drawn = _draw(file, space, range(trials_of(file, space)), [])
    return _checked(file, space, file.job, drawn, 0, asked, read)


def _refuse_second(name: str, runs: Path) -> None:
    paths = SweepPaths(records.sweeps_dir(runs) / name)
    if os.path.lexists(paths.dir):
        raise UsageError(
            f"there is a sweep {name} in {paths.dir.parent} already: give this one another name, "
            f"or add trials to that one: fsdpkit sweep extend {name} --trials N"
        )


def _draw(
    file: SweepFile,
    space: Sequence[SweptParameter],
    numbers: range,
    done: Sequence[tuple[Settings, float]],
) -> list[Settings]:
    if file.sampler == "grid":
        return grid(space)
    if file.sampler == "random":
        return at_random(space, numbers, file.seed)
    from fsdpkit.sweeps.optuna_samplers import ask

    return ask(file.sampler, space, numbers, file.seed, done, highest=file.best == "highest")


def _checked(
    file: SweepFile,
    space: Sequence[SweptParameter],
    job: str,
    drawn: Sequence[Settings],
    first: int,
    asked: SweepRequest,
    read: FileTables,
) -> CheckedTrials:
    if asked.on is not None:
        asked = replace(asked, sets=[*_of_hold(job, asked), *asked.sets])
    base = load_job(job, sets=asked.sets)
    check_against_job(file, space, base, asked.sets)
    most = _most(file, base)
    at = f"%{file.limit}" if file.limit else ""
    array = f"{first}-{first + len(drawn) - 1}{at}"
    request = SubmitRequest(
        job=job,
        cluster=asked.cluster,
        array=array if asked.on is None else None,
        on=asked.on,
        runs=asked.runs,
        sets=[*asked.sets, *goal_of(file.halving, most, 0)[0]],
        said_in=[read],
    )
    site, _, shared = asked_for(request)
    try:
        node = place(shared.spec.resources, site).node_type
    except UsageError as error:
        raise UsageError(
            f"sweep {file.name}: no trial can run, because all ask for the same: {error}"
        ) from error
    trials = Trials(job, request.sets, site, node)
    refused = {k: why for k, one in enumerate(drawn) if (why := trials.refusal(k, one))}
    if refused and (not asked.leave_out or len(refused) == len(drawn)):
        nearest = trials.nearest_miss(drawn, first) if len(refused) == len(drawn) else ""
        raise _refusal(file, refused, len(drawn), first, nearest)
    # The site, its files and the script are checked with settings that may run.
    fine = next(settings for k, settings in enumerate(drawn) if k not in refused)
    own, args = told(fine)
    decided, why = plan(replace(request, sets=[*request.sets, *own], args=args), asked.consent)
    decided = replace(decided, job=shared)
    kept = [settings for k, settings in enumerate(drawn) if k not in refused]
    last = first + len(kept) - 1
    if isinstance(file.halving, Halving):
        least = file.halving.factor ** (file.halving.rungs - 1)
        if len(kept) < least:
            raise ConfigError(
                f"sweep {file.name}: {len(kept)} trials are too few for {file.halving.rungs} rungs "
                f"with a factor of {file.halving.factor}: at least {least}"
            )
    if asked.on is None:
        decided = replace(decided, array=f"{first}-{last}{at}")
    return CheckedTrials(
        file,
        decided,
        tuple(range(first, last + 1)),
        tuple(kept),
        most,
        why,
        tuple((drawn[k], reason) for k, reason in refused.items()),
        base=base,
    )


def _of_hold(job: str, asked: SweepRequest) -> list[str]:
    """Nodes and GPUs of each trial that nobody asked for otherwise: those of the hold."""
    request = SubmitRequest(job, asked.cluster, runs=asked.runs, sets=asked.sets)
    found, _ = in_allocation(request, asked_for, asked.on, asked.runs)
    wanted = {"nodes": found.nodes, "gpus": found.gpus}
    return [f"resources.{key}={one}" for key, one in wanted.items() if one is not None]


def _most(file: SweepFile, job: LoadedJob) -> int | None:
    """What the last rung gets."""
    halving = file.halving
    if not isinstance(halving, Halving):
        return None
    if halving.most is not None:
        return halving.most
    steps = 0 if job.spec.training is msgspec.UNSET else getattr(job.spec.training, "steps", 0)
    if not steps:
        raise ConfigError(
            f"sweep {file.name}: halving: the job does not set {STEPS}, which the rungs divide: "
            f"set halving.most"
        )
    return steps


def _refusal(
    file: SweepFile, refused: dict[int, str], trials: int, first: int, nearest: str
) -> ConfigError:
    named = [f"  trial {first + k}: {reason}" for k, reason in list(refused.items())[:_MOST_NAMED]]
    if len(refused) > _MOST_NAMED:
        others = ", ".join(str(first + k) for k in list(refused)[_MOST_NAMED:])
        named.append(f"  and trials {others}")
    remedy = (
        "correct the parameters"
        if len(refused) == trials
        else "correct the parameters, or skip these trials: --leave-out"
    )
    return ConfigError(
        f"sweep {file.name}: {len(refused)} of {trials} trials would be refused, so none is "
        "submitted: " + remedy + "\n" + "\n".join([*named, *([nearest] if nearest else [])])
    )


def start(prepared: CheckedTrials, asked: SweepRequest) -> tuple[SweepPaths, SweepRecord]:
    """Make the sweep and submit its first batch. Raises FsdpkitError; then no sweep is left, except
    after SubmissionUnconfirmed."""
    runs = runs_dir(asked.runs)
    paths = SweepPaths(records.sweeps_dir(runs) / prepared.file.name)
    group = prepared.base.opens_to_group
    _make_dir(paths, group=group)
    try:
        make_directory(paths.dir / "trials")
        make_directory(paths.dir / "rungs")
        write_own_job(paths.job, prepared.base)
        record = SweepRecord(
            name=prepared.file.name,
            created_s=now_s(),
            file=prepared.file,
            work_dir=str(prepared.plan.work_dir),
            sets=list(asked.sets),
            cluster=asked.cluster,
            most=prepared.most,
            trials=[],
        )
        records.save(paths, record)
        record, run, decided = _submit(paths, record, prepared, runs, asked)
    except (SubmissionUnconfirmed, SubmissionInterrupted):
        raise
    except OSError as error:
        shutil.rmtree(paths.dir, ignore_errors=True)
        raise StorageError(f"{paths.dir} cannot be written: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(paths.dir, ignore_errors=True)
        raise
    return paths, _follow(paths, record, run, decided)


def _make_dir(paths: SweepPaths, *, group: bool) -> None:
    """The sweep's directory, as open as its runs; made by one of several who try."""
    try:
        make_run_dir(paths.dir, group=group)
    except StorageError as error:
        if isinstance(error.__cause__, FileExistsError):
            _refuse_second(paths.dir.name, paths.dir.parent.parent)
        raise


def extend(
    paths: SweepPaths, trials: int, asked: SweepRequest, *, dry_run: bool = False
) -> tuple[SweepRecord, CheckedTrials]:
    """Submit so many more trials. Raises FsdpkitError; then, or with dry_run, the sweep is what it
    was."""
    with records.alone(paths) as record:
        file = record.file
        if file.sampler == "grid":
            raise UsageError(
                f"sweep {file.name}: a grid is whole; for other values write another sweep"
            )
        first = len(record.trials)
        if first + trials > MOST_TRIALS:
            raise UsageError(
                f"sweep {file.name} has {first} trials; more than {MOST_TRIALS} would be tasks "
                "that Slurm's arrays do not have: start another sweep"
            )
        space = parameters(file.parameters)
        done = [(one.settings, one.value) for one in _comparable(paths, record)]
        drawn = _draw(file, space, range(first, first + trials), done)
        asked = replace(asked, cluster=record.cluster, runs=paths.dir.parent.parent)
        with working_in(record.work_dir):
            read = as_file_of(paths.record, record)
            prepared = _checked(file, space, str(paths.job), drawn, first, asked, read)
            if dry_run:
                return record, prepared
            runs = paths.dir.parent.parent
            record, run, decided = _submit(paths, record, prepared, runs, asked)
            return _follow(paths, record, run, decided), prepared


def _comparable(paths: SweepPaths, record: SweepRecord) -> list[Any]:
    """Trials whose values say which settings are good: those that came the farthest."""
    found = results(paths, record)
    top = best_of(found, highest=record.highest)
    return [one for one in found if one.counts and top is not None and one.rung == top.rung]


def _submit(
    paths: SweepPaths, record: SweepRecord, prepared: CheckedTrials, runs: Path, asked: SweepRequest
) -> tuple[SweepRecord, Run | None, Plan]:
    """Write the trials down and submit them; their run is on record before sbatch is called. Those
    that go to a hold have none of their own yet."""
    before = record
    for trial, settings in zip(prepared.numbers, prepared.trials, strict=True):
        own, args = told(settings)
        job = load_job(str(paths.job), sets=own, args=args)
        try:
            write_atomically(paths.trial(trial), as_file(job))
        except OSError as error:
            raise StorageError(
                f"{paths.trial(trial)} cannot be written: {error.strerror}"
            ) from error

    def put_on_record(run: RunPaths | None) -> None:
        nonlocal record
        name = None if run is None else run.dir.name
        batch = TrialBatch(run=name, first=prepared.numbers[0], trials=len(prepared.trials))
        record = msgspec.structs.replace(
            before, trials=[*before.trials, *prepared.trials], batches=[*before.batches, batch]
        )
        records.save(paths, record)

    if asked.on is not None:
        put_on_record(None)
        return record, None, prepared.plan
    decided = replace(prepared.plan, job=array_job(prepared))
    try:
        run = submit_plan(decided, runs, asked.consent, prepare=put_on_record)
    except (SubmissionUnconfirmed, SubmissionInterrupted):
        raise
    except BaseException:
        records.save(paths, before)
        raise
    return record, run, decided


def array_job(prepared: CheckedTrials) -> LoadedJob:
    """The array's job: what the script of each trial is told, and what its task has otherwise."""
    file = prepared.file
    _, further = goal_of(file.halving, prepared.most, 0)
    of_trials = [
        (str(trial), settings)
        for trial, settings in zip(prepared.numbers, prepared.trials, strict=True)
    ]
    tables = {trial: own for trial, settings in of_trials if (own := own_tables(settings))}
    job = prepared.plan.job
    spec = msgspec.structs.replace(
        job.spec,
        name=file.name,
        array_args={trial: [*words(settings), *further] for trial, settings in of_trials},
        array_settings=tables or msgspec.UNSET,
    )
    return replace(job, spec=spec)


def _follow(paths: SweepPaths, record: SweepRecord, run: Run | None, decided: Plan) -> SweepRecord:
    """Behind the newest batch the job that decides who goes on, if some are to."""
    if record.halving is None or run is None:
        return record
    from fsdpkit.sweeps.advancing import follow

    return follow(paths, record, len(record.batches) - 1, 1, run, decided)
