"""Predictions for the sizes of a scaling study: what `fsdpkit plan` remembers of each, else, for
the T5 trainer, the closed form by which `plan` says how a job scales. Neither needs torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdpkit.planning.forecast import By
    from fsdpkit.rendering.script import Plan
    from fsdpkit.sweeps.scaling import Mode
    from fsdpkit.sweeps.scaling_expected import Expected
    from fsdpkit.sweeps.scaling_study import CheckedStudy


def expected(
    prepared: CheckedStudy, runs: str | os.PathLike[str] | None
) -> dict[Mode, list[Expected]]:
    """By mode, the smallest size first."""
    from fsdpkit.planning.forecast import By
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.sweeps.scaling_expected import with_efficiency

    found: dict[Mode, list[Expected]] = {}
    for (mode, _), plan in sorted(prepared.plans.items(), key=lambda each: each[0][1]):
        by = By(runs=runs_dir(runs), site=plan.site.id)
        found.setdefault(mode, []).append(_of_size(mode, plan, by))
    return {mode: with_efficiency(found[mode]) for mode in prepared.study.modes}


def _of_size(mode: Mode, plan: Plan, by: By) -> Expected:
    from msgspec.structs import replace

    from fsdpkit.config.training import TrainingSettings
    from fsdpkit.errors import FsdpkitError
    from fsdpkit.scheduling.job_checks import training_of
    from fsdpkit.scheduling.prediction import prediction_of
    from fsdpkit.sweeps.scaling_expected import Expected

    resources = plan.job.spec.resources
    unknown = Expected(mode=mode, nodes=resources.nodes, ranks=resources.ranks)
    training = training_of(plan.job, plan.work_dir)
    known = prediction_of(plan, training)
    if known is not None:
        rate = known.tokens_per_s or known.samples_per_s
        if rate is not None:
            return replace(
                unknown,
                rate=rate,
                unit="tokens" if known.tokens_per_s is not None else "samples",
                source="plan",
                rests_on=known.rests_on,
            )
    if isinstance(training, TrainingSettings) and _is_t5_trainer(plan.job.entry.path):
        from fsdpkit.config.trust import Consent
        from fsdpkit.planning.asked import AskedStep
        from fsdpkit.planning.cards import card_of
        from fsdpkit.planning.forecast import forecast, span_of

        with suppress(FsdpkitError, OSError):  # of unknown GPUs there is no speed to tell
            card = card_of(plan.placement.node_type, "")
            entry = Consent().to_script(plan.job.entry.path)
            asked = AskedStep(training, resources.nodes, resources.gpus, card, entry)
            told = forecast(asked, by)
            if told.speed is not None and (rate := span_of(told.speed.tokens_per_s)):
                return replace(unknown, rate=rate, source="estimate", rests_on=told.rests_on)
    return unknown


def _is_t5_trainer(entry: Path) -> bool:
    """The closed form is of the trainer that is packaged, and of no script in its place."""
    from fsdpkit.config.assets import packaged_dir

    with suppress(OSError):
        return entry.samefile(packaged_dir() / "examples" / "T5-fsdp" / "fsdp_t5.py")
    return False
