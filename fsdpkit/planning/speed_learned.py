"""What a speed rests on: published figures, and what was measured on GPUs like these.

Of all that this account's runs have measured (`speed_measured.py`), what is of this GPU, this
release of torch and this cluster counts, if it agrees with the rest; what does not is left out and
named. Of one job that several runs did, their median counts. A run's work is that of its recorded
step: recorded when its job was planned, else now, once.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.launching.torch_release import installed_torch, release_of
from fsdpkit.planning.efficiency import GB, UncertainValue, family_of, machine_for
from fsdpkit.planning.speed_calibration import (
    MeasuredStep,
    SpeedCalibration,
    fitted,
    load,
    uncalibrated,
    with_value,
)
from fsdpkit.planning.speed_measured import MeasuredSpeed, directory
from fsdpkit.planning.work import StepWork
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_bytes

PUBLISHED = "published figures only"
MOST_JOBS = 3
"""Different jobs that are fitted to, the newest: each costs a recording."""
_FEWER_TOKENS, _MORE_TOKENS = 0.5, 1.05
"""Of the tokens that the settings say a step has: padding is left out of what a run counts."""
_MOST_BYTES = 8 << 20

WorkOf = Callable[[MeasuredSpeed], StepWork]
"""The step that a run did. Raises FsdpkitError where it cannot be recorded."""


@dataclass(frozen=True)
class MeasuredMachine:
    """What a measurement must be of to count. None: not known here, so none of another counts."""

    gpu: str
    site: str | None
    torch: str | None = None
    network_gb_s: float | None = None
    """Between nodes, as the site's profile has it."""

    @staticmethod
    def here(gpu: str, site: str | None, network_gb_s: float | None = None) -> MeasuredMachine:
        return MeasuredMachine(gpu, site, installed_torch(), network_gb_s)

    def published(self) -> SpeedCalibration:
        return uncalibrated(machine_for(self.gpu, self.network_gb_s))


@dataclass(frozen=True)
class Basis:
    """A calibration, and in words what it was made of."""

    calibration: SpeedCalibration
    words: str = PUBLISHED
    used: tuple[str, ...] = ()
    """IDs of runs."""
    left_out: tuple[str, ...] = ()
    """A sentence each."""


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


def basis_of(records: Sequence[MeasuredSpeed], machine: MeasuredMachine, work_of: WorkOf) -> Basis:
    """What the records, the newest first, say of the machine."""
    before = machine.published()
    fitting, left_out = _fitting(records, machine)
    checks = [one for one in fitting if one.training is None][:1]
    for check in checks:
        before = _with_figures(before, check)
    jobs = _by_job([one for one in fitting if one.training is not None])[:MOST_JOBS]
    samples = []
    for runs in jobs:
        found = _sample(runs, before, work_of)
        if isinstance(found, str):
            left_out.append(f"{runs[0].run}: {found}")
        else:
            samples.append(found)
    calibration, odd = fitted(before, samples)
    left_out += odd
    counted = {*calibration.samples}
    used = [one.run for runs in jobs if runs[0].run in counted for one in runs]
    if not used and not checks:
        return Basis(calibration, left_out=tuple(left_out))
    parts = [_counted(len(used), "run")] if used else []
    parts += ["a check of nodes"] if checks else []
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
        if why := _unfit(one, machine):
            others[why] = others.get(why, 0) + 1
        else:
            fitting.append(one)
    return fitting, [f"{_counted(count, 'record')} {why}" for why, count in others.items()]


def _unfit(one: MeasuredSpeed, machine: MeasuredMachine) -> str:
    """Why a record says nothing of the machine; empty if it does."""
    if one.problem:
        return one.problem
    if not one.gpu:
        return "the GPUs it ran on are not recorded"
    if family_of(one.gpu) != family_of(machine.gpu):
        return f"of {one.gpu}: this is {machine.gpu}"
    if machine.torch is None or release_of(one.torch) != release_of(machine.torch):
        theirs = one.torch or "of a release that is not on record"
        return f"of torch {theirs}: this is {machine.torch or 'without torch'}"
    if one.site != machine.site:
        return f"of {one.site}: this is {machine.site or 'no cluster that is known'}"
    return ""


def _with_figures(before: SpeedCalibration, check: MeasuredSpeed) -> SpeedCalibration:
    """With what `fsdpkit check --nodes` measured in the place of what was assumed."""
    source = f"fsdpkit check, {check.run}"
    for name, gb_s in (("in_node_bytes", check.in_node_gb_s), ("node_bytes", check.between_gb_s)):
        if gb_s:
            before = with_value(before, name, UncertainValue(gb_s * GB, 1.1, source))
    if not check.tflop_s:
        return before
    share = check.tflop_s * 1e12 / before.machine.values["peak_flops"].value
    # One large product: a step's own reach less.
    return with_value(before, "matmul_share", UncertainValue(min(1.0, share), 1.15, source))


def _by_job(records: Sequence[MeasuredSpeed]) -> list[list[MeasuredSpeed]]:
    """Runs of the same job on as many nodes together, the newest job first."""
    jobs: dict[str, list[MeasuredSpeed]] = {}
    for one in records:
        assert one.training is not None
        jobs.setdefault(name_of_step(one.training, one.nodes, one.gpus), []).append(one)
    return [*jobs.values()]


def _sample(
    runs: Sequence[MeasuredSpeed], before: SpeedCalibration, work_of: WorkOf
) -> MeasuredStep | str:
    """One job's step and how long it took, or why that is not known."""
    timed = [(one.step_s, one.tokens_per_step) for one in runs if one.step_s is not None]
    if not timed or (tokens := timed[0][1]) is None:
        return "its steps were not timed"
    try:
        work = work_of(runs[0])
    except (FsdpkitError, OSError) as error:
        return f"its step cannot be recorded ({str(error)[:120]})"
    share = tokens / (work.tokens * work.ranks) if work.tokens else 0.0
    if not _FEWER_TOKENS <= share <= _MORE_TOKENS:
        return f"its steps had {share:.0%} of the tokens that its settings say"
    step_s = statistics.median_low([seconds for seconds, _ in timed if seconds])
    peak = before.machine.values["peak_flops"]
    if work.model_flops / step_s > peak.value * peak.factor:
        return "its steps are faster than the GPU's peak allows"
    return MeasuredStep(work=work, step_s=step_s, source=runs[0].run)


# Recorded steps, kept


def name_of_step(training: TrainingSettings, nodes: int, gpus: int) -> str:
    """Of what decides how long a step takes, the SHA-256 as hex."""
    names = ("batch_size", "micro_batch", "loss", "sharding", "precision", "model", "data")
    step = {name: getattr(training, name) for name in (*names, "compile", "optimizer")}
    whole = msgspec.json.encode([step, nodes, gpus, fsdpkit.__version__], order="deterministic")
    return hashlib.sha256(whole).hexdigest()


def kept_work(name: str) -> StepWork | None:
    """The recorded step of this name; None if there is none that can be read."""
    try:
        return msgspec.json.decode(read_bytes(_file(name), _MOST_BYTES, own=True), type=StepWork)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def keep_work(name: str, work: StepWork) -> None:
    """Keep it, if there is a place for it."""
    with contextlib.suppress(OSError):
        make_private_dir(_file(name).parent)
        write_atomically(_file(name), msgspec.json.encode(work), private=True)


def _file(name: str) -> Path:
    return directory() / "steps" / f"{name}.json"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
