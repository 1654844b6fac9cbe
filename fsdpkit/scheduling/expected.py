"""How long a training is expected to take, by the plan that was made of its job: what a submission
says before it queues, and what `--soonest` adds to a start. No torch."""

from __future__ import annotations

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.finish import Finish, allowed, finish, saved_state, verdict_lines
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.predicted import Span
from fsdpkit.scheduling.job_checks import prediction_of, training_of


def expected_finish(plan: Plan) -> Finish | None:
    """By a plan of this very job; None where none was made, or it has no speed."""
    training, job = training_of(plan.job, plan.work_dir), plan.job
    found = None if training is None else prediction_of(plan, training)
    if found is None or found.step_s is None:
        return None
    resources, profile = job.spec.resources, plan.site.profile
    try:
        length = job.trainer.length(training, resources.ranks, plan.work_dir)
        size = job.trainer.checkpoints(training)
    except (FsdpkitError, OSError):
        return None
    saved = saved_state(size and size.one_bytes, profile.storage.write_gb_s)
    limits = allowed(resources, profile, plan.placement.way, job.spec.retry.on_time_limit)
    return finish(length, found.step_s, saved, limits)


def expected_s(plan: Plan) -> Span | None:
    """How long it trains, all its jobs together."""
    found = expected_finish(plan)
    return None if found is None else found.seconds


def finish_notes(plan: Plan) -> tuple[str, ...]:
    """What to say of it before the job queues: whether it finishes, and what to do if not."""
    if (found := expected_finish(plan)) is None or found.seconds is None:
        return ()
    return tuple(line.strip() for line in [*verdict_lines(found)])
