"""How much each setting of a sweep had to do with what came out.

By ranks, so that neither the scale of a setting nor that of the metric matters, and a trial that
blew up counts as the worst, not as a thousand: of numbers Spearman's rank correlation (Spearman
1904), of a choice the correlation ratio of the ranks (Fisher's eta). Both see one setting at a
time, and the first only what rises or falls throughout: a best value amid a range hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdpkit.config.fields import Scalar
from fsdpkit.reporting.series import Floats
from fsdpkit.sweeps.space import Settings

LEAST = 5
"""Of fewer trials nothing is said: four line up by chance one time in twelve."""


@dataclass(frozen=True)
class Importance:
    """Of one setting."""

    key: str
    strength: float
    """0 to 1."""
    rises: bool | None
    """Whether the metric rises with it; None: a choice has no direction."""


def importances(trials: Sequence[tuple[Settings, float]]) -> list[Importance]:
    """The strongest first; none of fewer than `LEAST` trials, nor of what was the same in all."""
    if len(trials) < LEAST:
        return []
    values = ranks([value for _, value in trials])
    keys = dict.fromkeys(key for settings, _ in trials for key in settings)
    found = [one for key in keys if (one := _of(key, [s[key] for s, _ in trials], values))]
    return sorted(found, key=lambda one: (-one.strength, one.key))


def _of(key: str, settings: Sequence[Scalar], values: Floats) -> Importance | None:
    if len({(type(one), one) for one in settings}) < 2 or np.ptp(values) == 0:
        return None
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in settings):
        rho = float(np.corrcoef(ranks([float(one) for one in settings]), values)[0, 1])
        return Importance(key, abs(rho), rho > 0)
    return Importance(key, _correlation_ratio([str(one) for one in settings], values), None)


def _correlation_ratio(names: Sequence[str], values: Floats) -> float:
    """0: the groups have the same mean; 1: within a group all are equal."""
    mean, between = float(values.mean()), 0.0
    for name in dict.fromkeys(names):
        group = values[[one == name for one in names]]
        between += len(group) * (float(group.mean()) - mean) ** 2
    return math.sqrt(between / float(((values - mean) ** 2).sum()))


def ranks(values: Sequence[float]) -> Floats:
    """From 1 up; equal values share the mean of theirs."""
    array = np.asarray(values, dtype=np.float64)
    _, group, count = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[group.reshape(-1)], dtype=np.float64)
