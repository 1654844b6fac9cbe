"""Parallel coordinates: an axis for each setting and one for the metric, a line for each trial."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from fsdpkit.config.array_tasks import text
from fsdpkit.config.fields import Scalar
from fsdpkit.reporting.report.plots import WIDTH, frame, stretched
from fsdpkit.reporting.scales import Axis, linear, logarithmic, number
from fsdpkit.sweeps.results import Result
from fsdpkit.sweeps.space import SweptParameter

_TOP, _BELOW = 38, 8
_ROWS = (12, 28)
"""Names stand in two rows, so that long ones do not meet on a narrow screen."""
_SHOWN = 0.25
"""The share of the trials, the best ones, whose lines stand out."""
MOST_AXES = 12


def parallel(
    space: Sequence[SweptParameter], trials: Sequence[Result], metric: str, height: int = 300
) -> Markup:
    """`<svg>`; trials: those with a value, the best first."""
    shown = list(space[: MOST_AXES - 1])
    values = [one.value for one in trials if one.value is not None]
    low, high = min(values), max(values)
    last = logarithmic(low, high) if low > 0 and high > 8 * low else linear(low, high)
    axes = [(_name(one.key), _ticks(one)) for one in shown]
    axes.append((metric, [(last.fraction(v), label) for v, label in last.ticks]))
    foremost = max(1, round(_SHOWN * len(trials)))
    lines = [
        _line(one, shown, last, height, best=place == 0, fore=place < foremost)
        for place, one in reversed(list(enumerate(trials)))  # the best is drawn over the others
    ]
    names = Markup("").join(_axis(k, len(axes), *axis, height) for k, axis in enumerate(axes))
    drawn = Markup('<svg y="{}" overflow="visible">{}</svg>').format(_TOP, stretched(lines, height))
    about = f"{len(trials)} trials over {', '.join(name for name, _ in axes)}"
    return frame("parallel", "Trials", about, height + _TOP + _BELOW, drawn + names)


def _name(key: str) -> str:
    """The last word of a key that says something: of `training.optimizer.name` the one before."""
    return key.removesuffix(".name").rpartition(".")[2]


def _ticks(one: SweptParameter) -> list[tuple[float, str]]:
    if one.values:
        values = list(one.values)
        every = -(-len(values) // 8)
        return [(_place(one, v), text(v)) for v in values[::every]]
    axis = _scale(one)
    return [(axis.fraction(value), label) for value, label in axis.ticks]


def _scale(one: SweptParameter) -> Axis:
    make = logarithmic if one.is_logarithmic else linear
    return make(one.low, one.high)


def _place(one: SweptParameter, value: Scalar) -> float:
    """How far up its axis, 0 to 1; the values of a list stand at equal distances."""
    if one.values:
        return (one.values.index(value) + 0.5) / len(one.values)
    return _scale(one).fraction(float(value))


def _line(
    trial: Result,
    space: Sequence[SweptParameter],
    last: Axis,
    height: int,
    *,
    best: bool,
    fore: bool,
) -> Markup:
    assert trial.value is not None
    up = [_place(one, trial.settings[one.key]) for one in space] + [last.fraction(trial.value)]
    across = np.linspace(0, WIDTH, len(up))
    points = "L".join(
        f"{x:.5g} {height * (1 - y):.5g}" for x, y in zip(across.tolist(), up, strict=True)
    )
    tone = "b" if best else "a" if fore else "muted faint"
    label = f"trial {trial.trial}: {number(trial.value, 4)}"
    return Markup('<path class="line {}" d="M{}"><title>{}</title></path>').format(
        tone, points, label
    )


def _axis(
    place: int, axes: int, name: str, ticks: Sequence[tuple[float, str]], height: int
) -> Markup:
    at = f"{100 * place / (axes - 1):.3f}%"
    parts = [
        Markup('<line class="axis" x1="{at}" x2="{at}" y1="{top}" y2="{end}"/>').format(
            at=at, top=_TOP, end=_TOP + height
        ),
        Markup('<text class="tick halo" x="{}" y="{}" text-anchor="{}">{}</text>').format(
            at,
            _ROWS[place % 2],
            "start" if place == 0 else "end" if place == axes - 1 else "middle",
            name,
        ),
    ]
    parts += [
        Markup(
            '<text class="tick halo" x="{}" y="{:.1f}" dx="-6" dy="4" text-anchor="end">{}</text>'
        ).format(at, _TOP + height * (1 - up), label)
        for up, label in ticks
    ]
    return Markup("").join(parts)
