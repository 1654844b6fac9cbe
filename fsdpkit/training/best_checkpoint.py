"""Which of a run's checkpoints is the best, by what was measured of their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.runs.checkpoints import Best


class BestSoFar:
    """What was measured last, beside the best value of the checkpoints that are there or being
    written.

    Attributes:
        by: The metric that decides, as the settings say; None if none does.
        value: The best value so far.
    """

    def __init__(self, settings: CheckpointSettings) -> None:
        name = settings.keep_best
        self.by = None if name is None else Best(name, highest=settings.highest_is_best)
        self.value: float | None = None
        self._step = 0
        self._values: dict[str, float] = {}

    def measured(self, step: int, values: Mapping[str, Any]) -> None:
        """Note what is a number of the weights after a step."""
        numbers = {
            name: float(value)
            for name, value in values.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        self._step, self._values = step, self.measured_at(step) | numbers

    def measured_at(self, step: int) -> dict[str, float]:
        return self._values if self._step == step else {}

    def due(self, step: int) -> bool:
        """Whether the weights after a step are the best so far by an evaluation."""
        by = self.by
        if by is None or not by.metric.startswith("eval_"):
            return False
        value = self.measured_at(step).get(by.metric)
        return value is not None and by.is_better(value, self.value)

    def saved(self, values: Mapping[str, float]) -> None:
        """Weights of which that was measured are being written."""
        if self.by and (value := values.get(self.by.metric)) is not None:
            self.value = value if self.by.is_better(value, self.value) else self.value
