"""What a speed rests on: published figures, and what was measured on GPUs like these.

Of all that this account's runs have measured (`speed_measured.py`), what is of this GPU, this
release of torch and this cluster counts, if it agrees with the rest; what does not is left out and
named. Of one job that several runs did, their median counts. A run's work is that of its recorded
step: recorded when its job was planned, else, of the T5 trainer, now, once.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

import fsdpkit
from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.launching.torch_release import release_of
from fsdpkit.listing import counted
from fsdpkit.planning.efficiency import (
    GB,
    MachineRates,
    UncertainValue,
    family_of,
    machine_for,
)
from fsdpkit.planning.speed import MeasuredStep, SpeedCalibration, agreeing
from fsdpkit.planning.speed_measured import MeasuredSpeed
from fsdpkit.planning.work import StepWork
from fsdpkit.runs.caches import cache, cached

PUBLISHED = "published figures only"
MOST_JOBS = 3
"""Different jobs that count, the newest: each costs a recording."""
_FEWER_TOKENS, _MORE_TOKENS = 0.5, 1.05
"""Of the tokens that the settings say a step has: padding is left out of what a run counts."""
_MOST_BYTES = 32 << 20

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


@dataclass(frozen=True)
class Basis:
    """A calibration, and in words what it was made of."""

    calibration: SpeedCalibration
    words: str = PUBLISHED
    used: tuple[str, ...] = ()
    """IDs of runs."""
    left_out: tuple[str, ...] = ()
    """A sentence each."""


def basis_of(records: Sequence[MeasuredSpeed], machine: MeasuredMachine, work_of: WorkOf) -> Basis:
    """What the records, the newest first, say of the machine."""
    fitting, left_out = _fitting(records, machine)
    checks = [one for one in fitting if one.is_check][:1]
    rates = machine_for(machine.gpu, machine.network_gb_s)
    for check in checks:
        rates = _with_figures(rates, check)
    jobs = _by_job([one for one in fitting if not one.is_check])[:MOST_JOBS]
    samples = []
    for runs in jobs:
        found = _sample(runs, rates, work_of)
        if isinstance(found, str):
            left_out.append(f"{runs[0].run}: {found}")
        else:
            samples.append(found)
    calibration, odd = agreeing(rates, samples)
    left_out += odd
    agreed = {sample.source for sample in calibration.samples}
    used = [one.run for runs in jobs if runs[0].run in agreed for one in runs]
    if not used and not checks:
        return Basis(calibration, left_out=tuple(left_out))
    parts = [counted(len(used), "run")] if used else []
    parts += ["a check of nodes"] if checks else []
    words = f"calibrated by {' and '.join(parts)} on {machine.site}"
    return Basis(calibration, words[:300], (*used, *(c.run for c in checks)), tuple(left_out))


def _fitting(
    records: Sequence[MeasuredSpeed], machine: MeasuredMachine
) -> tuple[list[MeasuredSpeed], list[str]]:
    """Those of such a machine; of the others how many there are and what of."""
    fitting, others = [], dict[str, int]()
    for one in records:
        if why := _unfit(one, machine):
            others[why] = others.get(why, 0) + 1
        else:
            fitting.append(one)
    return fitting, [f"{counted(count, 'record')} {why}" for why, count in others.items()]


def _unfit(one: MeasuredSpeed, machine: MeasuredMachine) -> str:
    """Why a record says nothing of the machine; empty if it does."""
    if one.problem:
        return one.problem
    if not one.gpu:
        return "of a machine without a known GPU"
    if family_of(one.gpu) != family_of(machine.gpu):
        return f"of {one.gpu}: this is {machine.gpu}"
    if machine.torch is None or release_of(one.torch) != release_of(machine.torch):
        theirs = one.torch or "of a release that is not on record"
        return f"of torch {theirs}: this is {machine.torch or 'without torch'}"
    if one.site != machine.site:
        return f"of {one.site}: this is {machine.site or 'no cluster that is known'}"
    return ""


def _with_figures(rates: MachineRates, check: MeasuredSpeed) -> MachineRates:
    """With what `fsdpkit check --nodes` measured in the place of what was assumed."""
    source = f"fsdpkit check, {check.run}"
    for name, gb_s in (("in_node_bytes", check.in_node_gb_s), ("node_bytes", check.between_gb_s)):
        if gb_s:
            rates = rates.replace(**{name: UncertainValue(gb_s * GB, 1.1, source)})
    if not check.tflop_s:
        return rates
    share = check.tflop_s * 1e12 / rates.values["peak_flops"].value
    # One large product: a step's own reach less.
    return rates.replace(matmul_share=UncertainValue(min(1.0, share), 1.15, source))


def _by_job(records: Sequence[MeasuredSpeed]) -> list[list[MeasuredSpeed]]:
    """Runs of the same job on as many nodes together, the newest job first."""
    jobs: dict[str, list[MeasuredSpeed]] = {}
    for one in records:
        jobs.setdefault(step_of(one), []).append(one)
    return [*jobs.values()]


def step_of(run: MeasuredSpeed) -> str:
    """The name under which the run's recorded step is kept."""
    if run.training is None:
        return run.plan
    return name_of_step(run.training, run.nodes, run.gpus)


def _sample(
    runs: Sequence[MeasuredSpeed], rates: MachineRates, work_of: WorkOf
) -> MeasuredStep | str:
    """One job's step and how long it took, or why that is not known."""
    timed = [one for one in runs if one.step_s is not None]
    if not timed:
        return "its steps were not timed"
    try:
        work = work_of(runs[0])
    except (FsdpkitError, OSError) as error:
        return f"its step cannot be recorded ({str(error)[:120]})"
    tokens = timed[0].tokens_per_step
    share = tokens / (work.tokens * work.ranks) if tokens and work.tokens else None
    if share is None and runs[0].training is not None:
        return "its tokens were not counted"
    if share is not None and not _FEWER_TOKENS <= share <= _MORE_TOKENS:
        return f"its steps had {share:.0%} of the tokens that its settings say"
    step_s = statistics.median_low([one.step_s for one in timed if one.step_s])
    peak = rates.values["peak_flops"]
    if work.model_flops / step_s > peak.value * peak.factor:
        return "its steps are faster than the GPU's peak allows"
    return MeasuredStep(work=work, step_s=step_s, source=runs[0].run, made_s=runs[0].made_s)


# Recorded steps, kept


def name_of_step(training: TrainingSettings, nodes: int, gpus: int) -> str:
    """Of what decides how long a step takes, the SHA-256 as hex."""
    names = ("batch_size", "micro_batch", "loss", "sharding", "precision", "model", "data")
    step = {name: getattr(training, name) for name in (*names, "compile", "optimizer")}
    whole = msgspec.json.encode([step, nodes, gpus, fsdpkit.__version__], order="deterministic")
    return hashlib.sha256(whole).hexdigest()


def kept_work(name: str) -> StepWork | None:
    """The recorded step of this name; None if there is none that can be read."""
    return cached(f"speed/steps/{name}.json", StepWork, _MOST_BYTES)


def keep_work(name: str, work: StepWork) -> None:
    """Keep it, if there is a place for it."""
    cache(f"speed/steps/{name}.json", work)
