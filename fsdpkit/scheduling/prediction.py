"""What had been predicted of a job when it is submitted, for its run to keep. No torch.

`fsdpkit plan` remembers its answers by what they depend on (planning/remembered.py); the answer of
this very job on such GPUs is the run's, and without one nothing is invented.
"""

from __future__ import annotations

from typing import Any

from fsdpkit.config.trainers import OWN
from fsdpkit.errors import FsdpkitError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.predicted import Predicted


def prediction_of(plan: Plan, training: Any, before: Predicted | None = None) -> Predicted | None:
    """The newest plan of the job, or `before`, the run's own, if that was of the same job; None
    without any. training: what the trainer reads; None for a script with arguments alone."""
    node, resources = plan.placement.node_type, plan.job.spec.resources
    if node.gpu_memory_gb is None or plan.job.spec.trainer_name != OWN:
        return None
    from fsdpkit.planning.cards import card_of
    from fsdpkit.planning.remembered import name_of, recall

    try:
        card = card_of(node, "")
        name = name_of(
            training,
            resources.nodes,
            resources.gpus,
            card,
            plan.job.entry.path,
            plan.job.spec.args if training is None else None,
        )
    except (FsdpkitError, OSError):
        return None  # a model that is read from a file which is not there: the job itself says so
    found = recall(name)
    if found is not None and found.predicted is not None and found.predicted.name == name:
        return found.predicted
    return before if before is not None and before.name == name else None
