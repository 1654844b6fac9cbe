"""What a speed rests on: published figures, and what was measured on GPUs like these.

Of all that this account's runs have measured (`speed_measured.py`), what is of this GPU, this
release of torch and this cluster counts, if it agrees (`speed_outliers.py`); what does not is left
out and named. Of one job that several runs did, their middle counts, and of two the faster: it is
the machine that is to be known, and a run beside it can only have been held up.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.launching.torch_release import installed_torch, release_of
from fsdpkit.planning.efficiency import family_of, machine_for
from fsdpkit.planning.speed_calibration import MeasuredStep, SpeedCalibration, uncalibrated
from fsdpkit.planning.speed_measured import MeasuredSpeed, directory
from fsdpkit.planning.speed_outliers import Outlier, against, fitted
from fsdpkit.planning.speed_records import load, save, with_figures
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.work import StepWork

PUBLISHED = "published figures only"
MOST_JOBS = 6
"""Different jobs that are fitted to, the newest: more say little more, and take seconds."""
_MOST_CHECKS = 5
_OF_ONE_JOB = 1.25
"""A run that took longer than the middle one of its job by more is named."""
_FEWER_TOKENS, _MORE_TOKENS = 0.5, 1.05
"""Of the tokens that the settings say a step has: padding is left out of what a run counts."""


@dataclass(frozen=True)
class MeasuredMachine:
    """What a measurement must be of to count. None: not known here, so none of another counts."""

    gpu: str
    site: str | None
    torch: str | None = None

    @staticmethod
    def here(gpu: str, site: str | None) -> MeasuredMachine:
        return MeasuredMachine(gpu, site, installed_torch())


@dataclass(frozen=True)
class Basis:
    """A calibration, and in words what it was made of."""

    calibration: SpeedCalibration
    words: str = PUBLISHED
    used: tuple[str, ...] = ()
    """IDs of runs."""
    left_out: tuple[str, ...] = ()
    """A sentence each."""


def published(gpu: str) -> Basis:
    """Raises UsageError for a GPU without figures."""
    return Basis(uncalibrated(machine_for(gpu)))


def of_file(path: Path, machine: MeasuredMachine) -> Basis:
    """A calibration that somebody wrote down. Raises FsdpkitError for one that is of other GPUs, or
    of another torch: who names a file is not to get what others say."""
    calibration, made_with = load(path)
    theirs = calibration.machine.gpu
    if family_of(theirs) != family_of(machine.gpu):
        raise ConfigError(f"{path} is a calibration of {theirs}, and this is {machine.gpu}")
    if made_with and machine.torch and release_of(made_with) != release_of(machine.torch):
        raise ConfigError(
            f"{path} is a calibration of torch {made_with}, and this is {machine.torch}: calibrate "
            "anew, or leave out --speed"
        )
    count = len(calibration.samples)
    return Basis(calibration, f"{path.name}, fitted to {_counted(count, 'run')}"[:300])


def basis_of(records: Sequence[MeasuredSpeed], machine: MeasuredMachine) -> Basis:
    """What the records, the newest first, say of the machine. Raises UsageError for a GPU without
    figures."""
    before = uncalibrated(machine_for(machine.gpu))
    fitting, left_out = _fitting(records, machine)
    checks = [one for one in fitting if one.training is None][:_MOST_CHECKS]
    for one, figures in _middles(checks):
        before = with_figures(before, figures, f"fsdpkit check, {one}")
    works: dict[str, StepWork] = {}
    for record in (one for one in fitting if one.training is not None):
        found = _work(record, before)
        if isinstance(found, str):
            left_out.append(f"{record.run}: {found}")
        else:
            works[record.run] = found
    jobs, slow = _by_job([one for one in fitting if one.run in works])
    left_out += slow
    samples = {
        f"{runs[0].run}": MeasuredStep(
            work=works[runs[0].run],
            step_s=statistics.median_low([one.step_s or 0.0 for one in runs]),
            source=runs[0].run,
        )
        for runs in jobs[:MOST_JOBS]
    }
    calibration, outliers = _fitted_once(before, list(samples.values()))
    odd = {one.source for one in outliers}
    left_out += [str(one) for one in outliers]
    used = [one.run for runs in jobs[:MOST_JOBS] if runs[0].run not in odd for one in runs]
    if not used and not checks:
        return Basis(calibration, left_out=tuple(left_out))
    parts = [_counted(len(used), "run")] if used else []
    parts += [_counted(len(checks), "check") + " of nodes"] if checks else []
    words = f"calibrated by {' and '.join(parts)} on {machine.site}"
    return Basis(calibration, words[:300], (*used, *(c.run for c in checks)), tuple(left_out))


def _fitting(
    records: Sequence[MeasuredSpeed], machine: MeasuredMachine
) -> tuple[list[MeasuredSpeed], list[str]]:
    """Those of such a machine; of the others how many there are and what of."""
    fitting, others = [], dict[str, int]()
    for one in records:
        if one.forgotten:
            continue
        if one.problem:
            why = one.problem
        elif not one.gpu:
            why = "the GPUs it ran on are not recorded"
        elif family_of(one.gpu) != family_of(machine.gpu):
            why = f"of {one.gpu}: this is {machine.gpu}"
        elif machine.torch is None or release_of(one.torch) != release_of(machine.torch):
            why = f"of torch {one.torch or 'of a release that is not on record'}: this is " + (
                machine.torch or "without torch"
            )
        elif one.site != machine.site:
            why = f"of {one.site}: this is {machine.site or 'no cluster that is known'}"
        else:
            fitting.append(one)
            continue
        others[why] = others.get(why, 0) + 1
    return fitting, [f"{_counted(count, 'record')} {why}" for why, count in others.items()]


def _middles(
    checks: Sequence[MeasuredSpeed],
) -> Iterator[tuple[str, tuple[float | None, float | None, float | None]]]:
    """Each figure's middle one over the checks that have it."""
    for place, name in enumerate(("in_node_gb_s", "between_gb_s", "tflop_s")):
        known = [(value, one.run) for one in checks if (value := getattr(one, name)) is not None]
        if known:
            middle = statistics.median_low([value for value, _ in known])
            figures: list[float | None] = [None, None, None]
            figures[place] = middle
            yield known[0][1], (figures[0], figures[1], figures[2])


def _work(record: MeasuredSpeed, calibration: SpeedCalibration) -> StepWork | str:
    """The step that the run did, or why it is not known."""
    assert record.training is not None
    if record.step_s is None or record.tokens_per_step is None:
        return "its steps were not timed"
    try:
        work = work_of_settings(record.training, record.nodes, record.gpus)
    except (FsdpkitError, OSError, ValueError, KeyError, TypeError) as error:
        return f"its model is no longer known ({str(error)[:120]})"
    share = record.tokens_per_step / (work.tokens * work.ranks)
    if not _FEWER_TOKENS <= share <= _MORE_TOKENS:
        return f"its steps had {share:.0%} of the tokens that its settings say"
    reached = work.model_flops / record.step_s
    if reached > calibration.machine.values["peak_flops"].value:
        return "its steps are faster than the GPU's peak allows"
    return work


def _by_job(records: Sequence[MeasuredSpeed]) -> tuple[list[list[MeasuredSpeed]], list[str]]:
    """Runs of the same job on as many nodes together, the newest job first; and those that took
    much longer than others of their job."""
    jobs: dict[bytes, list[MeasuredSpeed]] = {}
    for one in records:
        key = msgspec.json.encode([_of_step(one), one.nodes, one.gpus])
        jobs.setdefault(key, []).append(one)
    kept, slow = [], []
    for runs in jobs.values():
        middle = statistics.median_low([one.step_s or 0.0 for one in runs])
        held_up = [one for one in runs if (one.step_s or 0.0) > _OF_ONE_JOB * middle]
        slow += [
            f"{one.run}: {(one.step_s or 0.0) / middle:.1f} times slower than other runs of its job"
            for one in held_up
        ]
        kept.append([one for one in runs if one not in held_up])
    return kept, slow


def _of_step(record: MeasuredSpeed) -> Mapping[str, object]:
    """The settings that decide how long a step takes."""
    assert record.training is not None
    training = record.training
    names = ("batch_size", "micro_batch", "loss", "sharding", "precision", "model", "data")
    return {name: getattr(training, name) for name in (*names, "compile", "optimizer")}


def _fitted_once(
    before: SpeedCalibration, samples: Sequence[MeasuredStep]
) -> tuple[SpeedCalibration, list[Outlier]]:
    """`fitted`, or what it said the last time of the same: it takes seconds for many."""
    if not samples:
        return before, []
    known = [before, list(samples), fsdpkit.__version__]
    digest = hashlib.sha256(msgspec.json.encode(known, order="deterministic")).hexdigest()
    path = directory() / "fits" / f"{digest}.json"
    try:
        calibration, _ = load(path, own=True)
    except FsdpkitError:
        calibration, _ = fitted(before, samples)
        with contextlib.suppress(OSError):
            make_private_dir(path.parent)
            save(calibration, path)
    kept = {*calibration.samples}
    return calibration, [against(one, calibration) for one in samples if one.source not in kept]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
