"""A scaling study on a cluster: one run a number of nodes, all submitted at once.

Sizes that are added later are taken from the study's own copy of its job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fsdpkit.config.job_loading import LoadedJob, load_job
from fsdpkit.config.trust import Consent
from fsdpkit.errors import (
    ConfigError,
    FsdpkitError,
    StorageError,
    SubmissionInterrupted,
    UsageError,
)
from fsdpkit.rendering.script import Plan
from fsdpkit.reporting.series import read_metrics
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.predicted import predicted_of
from fsdpkit.runs.record import now_s
from fsdpkit.runs.store import runs_dir
from fsdpkit.scheduling.job_checks import prediction_of, training_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_dir import make_run_dir
from fsdpkit.scheduling.slurm import SubmissionUnconfirmed
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from fsdpkit.sweeps.job_files import working_in, write_own_job
from fsdpkit.sweeps.record_files import as_file_of
from fsdpkit.sweeps.scaling import Mode, RunSpeed, Size, compared, speed_of
from fsdpkit.sweeps.scaling_record import Point, Study, StudyPaths, alone, load, save

Plans = Mapping[tuple[Mode, int], Plan]
"""By mode and number of nodes."""


@dataclass(frozen=True)
class StudyRequest:
    """What a person asked for, unchecked."""

    nodes: Sequence[int]
    modes: Sequence[Mode]
    job: str | None = None
    name: str | None = None
    sets: Sequence[str] = ()
    cluster: str | None = None
    batch: str | None = None
    """`args.NAME=N`: how a script that reads no [training] is told its samples per rank, and how
    many they are on the smallest size."""
    runs: str | os.PathLike[str] | None = None
    consent: Consent = field(default_factory=Consent)


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose every size may be submitted."""

    paths: StudyPaths
    study: Study
    base: LoadedJob
    plans: Plans
    why_site: str


def prepare(asked: StudyRequest) -> CheckedStudy:
    """Decide and check every size; writes nothing. Raises FsdpkitError: if one cannot run, none is
    submitted."""
    sizes = sorted(asked.nodes)
    if len(set(sizes)) != len(sizes):
        raise UsageError("--nodes: name different numbers, such as 1,2,4,8")
    base = load_job(asked.job, sets=[*asked.sets, f"resources.nodes={sizes[0]}"])
    training = base.spec.training
    batch = None if training is msgspec.UNSET else getattr(training, "batch_size", None)
    argument = None
    if asked.batch is not None:
        if batch is not None:
            raise UsageError("--batch is for a script that reads no [training], and this one does")
        argument, batch = _batch(asked.batch)
    name = asked.name or f"scale-{base.spec.name}"[:64]
    study = Study(
        name=name,
        created_s=now_s(),
        modes=list(asked.modes),
        nodes=sizes,
        gpus=base.spec.resources.gpus,
        batch_size=batch,
        batch_argument=argument,
        work_dir=str(Path.cwd()),
        cluster=asked.cluster,
    )
    paths = StudyPaths(runs_dir(asked.runs) / "studies" / name)
    _refuse_second(paths)
    request = SubmitRequest(job=asked.job, sets=asked.sets, cluster=asked.cluster, runs=asked.runs)
    plans, why = _plans(study, sizes, request, asked.consent)
    return CheckedStudy(paths, _with_predictions(study, plans), base, plans, why)


def _plans(
    study: Study, sizes: Sequence[int], request: SubmitRequest, consent: Consent
) -> tuple[Plans, str]:
    """Each of these sizes, checked, and why this site. Raises ConfigError with all refusals."""
    plans: dict[tuple[Mode, int], Plan] = {}
    refused, why = [], ""
    for mode in study.modes:
        for nodes in sizes:
            try:
                sets, args = _sized(study, mode, nodes)
                sized = replace(request, sets=[*request.sets, *sets], args=args)
                plans[mode, nodes], why = plan(sized, consent)
            except FsdpkitError as error:
                refused.append(f"  {nodes} nodes ({mode}): {error}")
    if refused:
        raise ConfigError(
            f"study {study.name}: {len(refused)} of {len(sizes) * len(study.modes)} sizes would be "
            "refused, so none is submitted\n" + "\n".join(refused[:5])
        )
    return plans, why


def _with_predictions(study: Study, plans: Plans) -> Study:
    found = {f"{mode} {nodes}": rate for (mode, nodes), rate in _predicted(plans).items()}
    return msgspec.structs.replace(study, predicted={**study.predicted, **found})


def _predicted(plans: Plans) -> dict[tuple[Mode, int], float]:
    """Tokens per second of those sizes that `fsdpkit plan` was asked about."""
    known = {
        size: prediction_of(decided, training_of(decided.job, decided.work_dir))
        for size, decided in plans.items()
    }
    return {
        size: one.tokens_per_s.middle
        for size, one in known.items()
        if one is not None and one.tokens_per_s is not None
    }


def _batch(text: str) -> tuple[str, int]:
    """Raises UsageError."""
    found = re.fullmatch(r"args\.([A-Za-z0-9][A-Za-z0-9._-]*)=([1-9][0-9]{0,8})", text)
    if found is None:
        raise UsageError(
            f"--batch {text!r}: write args.NAME=N for a script that takes --NAME=N, such as "
            "args.batch-size=64"
        )
    return found[1], int(found[2])


def _sized(study: Study, mode: Mode, nodes: int) -> tuple[list[str], list[str]]:
    """What makes the job one of this size: `KEY=VALUE`, and words for its script. Raises
    ConfigError."""
    told = [f"resources.nodes={nodes}"]
    if mode == "weak" and study.batch_argument is None:
        return told, []
    if study.batch_size is None:
        raise ConfigError(
            "--strong keeps the batch of all ranks, and this script does not read [training]: name "
            "its argument and the samples per rank on the smallest size, such as "
            "--batch args.batch-size=64"
        )
    key = f"--{study.batch_argument}" if study.batch_argument else "training.batch_size"
    whole = study.batch_size * (nodes if mode == "weak" else study.nodes[0])
    if whole % nodes:
        raise ConfigError(
            f"--strong: {whole} samples ({key} {study.batch_size} on {study.nodes[0]} nodes) "
            f"cannot be shared evenly by {nodes} times as many ranks: choose a {key} that all "
            "sizes divide"
        )
    word = f"{key}={whole // nodes}"
    return (told, [word]) if study.batch_argument else ([*told, word], [])


def _refuse_second(paths: StudyPaths) -> None:
    if os.path.lexists(paths.dir):
        raise UsageError(
            f"there is a study {paths.dir.name} in {paths.dir.parent} already: choose a name with "
            "--name"
        )


def start(prepared: CheckedStudy, asked: StudyRequest) -> tuple[StudyPaths, Study]:
    """Make the study and submit its sizes. Raises FsdpkitError."""
    paths, study = prepared.paths, prepared.study
    make_run_dir(paths.dir, group=prepared.base.opens_to_group)
    try:
        write_own_job(paths.job, prepared.base)
        save(paths, study)
    except OSError as error:
        shutil.rmtree(paths.dir, ignore_errors=True)
        raise StorageError(f"{paths.dir} cannot be written: {error.strerror}") from error
    try:
        return paths, _submit(paths, study, prepared.plans, asked.consent)
    except FsdpkitError:
        if not load(paths).points:
            shutil.rmtree(paths.dir, ignore_errors=True)
        raise


def extend(paths: StudyPaths, nodes: Sequence[int], consent: Consent) -> Study:
    """Add these numbers of nodes, and submit them. Raises FsdpkitError: if one cannot run, none is
    submitted."""
    with alone(paths) as study:
        if known := sorted({*nodes} & {*study.nodes}):
            raise UsageError(f"study {study.name} has {known[0]} nodes already")
        if min(nodes) < study.nodes[0]:
            raise UsageError(
                f"study {study.name} compares with {study.nodes[0]} nodes, its smallest size: for "
                "fewer, start another study"
            )
        with working_in(study.work_dir):
            request = SubmitRequest(
                job=str(paths.job),
                cluster=study.cluster,
                runs=paths.runs,
                said_in=[as_file_of(paths.record, study)],
            )
            plans, _ = _plans(study, sorted({*nodes}), request, consent)
            study = msgspec.structs.replace(study, nodes=sorted({*study.nodes, *nodes}))
            return _submit(paths, _with_predictions(study, plans), plans, consent)


def _submit(paths: StudyPaths, study: Study, plans: Plans, consent: Consent) -> Study:
    """Each size in turn; its run is on record before sbatch is called."""
    for (mode, nodes), decided in plans.items():
        before = study

        def put_on_record(run: RunPaths, mode: Mode = mode, nodes: int = nodes) -> None:
            nonlocal study
            point = Point(mode=mode, nodes=nodes, run=run.dir.name)
            study = msgspec.structs.replace(study, points=[*study.points, point])
            save(paths, study)

        try:
            submit_plan(decided, paths.runs, consent, prepare=put_on_record)
        except (SubmissionUnconfirmed, SubmissionInterrupted):
            raise
        except BaseException:
            save(paths, before)
            raise
    return study


def measured(paths: StudyPaths, study: Study, mode: Mode) -> list[Size]:
    """All sizes of a mode as of now, the smallest first."""
    runs = {point.nodes: point.run for point in study.points if point.mode == mode}
    sizes = []
    told = {nodes: study.predicted.get(f"{mode} {nodes}") for nodes in study.nodes}
    predicted = {nodes: rate for nodes, rate in told.items() if rate is not None}
    for nodes in study.nodes:
        run_id, state, speed = runs.get(nodes), "not submitted", RunSpeed()
        if run_id is not None:
            state = "UNKNOWN"
            with contextlib.suppress(FsdpkitError):
                run = Run.open(paths.runs / run_id)
                plan_of = predicted_of(run.paths)
                if plan_of is not None and plan_of.tokens_per_s is not None:
                    predicted[nodes] = plan_of.tokens_per_s.middle
                found = run.state()
                state = "UNKNOWN" if found is None else found.word
                # Of a run that failed or goes on, the second half of what it logged is no measure.
                if found is not None and found.succeeded:
                    speed = speed_of(read_metrics(run.paths.task().metrics))
        sizes.append((nodes, nodes * study.gpus, run_id, state, speed))
    return compared(mode, sizes, predicted)


def cancel(paths: StudyPaths) -> list[str]:
    """The runs that were asked to end. Raises FsdpkitError."""
    asked = []
    with alone(paths) as study:
        for point in study.points:
            run = Run.open(paths.runs / point.run)
            if (state := run.state()) is None or not state.over:
                run.cancel()
                asked.append(run.id)
    return asked
