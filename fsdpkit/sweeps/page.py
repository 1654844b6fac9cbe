"""A sweep as one HTML file that needs nothing else, drawn and styled as a run's report: its trials'
curves, what came out over each setting and over all of them, and how much each had to do with it.

That goes by ranks, so that neither the scale of a setting nor that of the metric matters, and a
trial that blew up counts as the worst, not as a thousand: of numbers Spearman's rank correlation
(Spearman 1904), of a choice the correlation ratio of the ranks (Fisher's eta). Both see one setting
at a time, and the first only what rises or falls throughout: a best value amid a range hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from fsdpkit import __version__
from fsdpkit.config.array_tasks import text
from fsdpkit.config.fields import Scalar
from fsdpkit.reporting.comparison.compared import Curve, Side, curves
from fsdpkit.reporting.comparison.page import steps_axis
from fsdpkit.reporting.report import plots
from fsdpkit.reporting.report.figures import DrawnFigure
from fsdpkit.reporting.report.page import rendered
from fsdpkit.reporting.report.plots import WIDTH, frame, stretched
from fsdpkit.reporting.scales import Axis, linear, logarithmic, values_axis
from fsdpkit.reporting.series import Floats, thin
from fsdpkit.reporting.training import trainings_of
from fsdpkit.reporting.words import moment, number, zone_name
from fsdpkit.runs.record import now_s
from fsdpkit.sweeps.own_runs import opened
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, decisions
from fsdpkit.sweeps.results import Result, best
from fsdpkit.sweeps.space import Settings, SweptParameter, parameters
from fsdpkit.sweeps.table import in_a_line, in_order, rows, short


def comparable(
    paths: SweepPaths, record: SweepRecord, found: Sequence[Result]
) -> list[tuple[Settings, float]]:
    """What trials came to with the same training: at the end of the first rung, or of all."""
    if record.halving is None:
        return [(one.settings, one.value) for one in found if one.counts and one.value is not None]
    first = [d for n in range(len(record.batches)) for d in decisions(paths, record, n)[:1]]
    return [
        (dict(record.trials[one.trial]), one.value)
        for decision in first
        for one in decision.judged
        if one.value is not None
    ]


def page(paths: SweepPaths, record: SweepRecord, found: Sequence[Result]) -> str:
    """The page's text."""
    space = parameters(record.file.parameters)
    drawn = [one for one in in_order(record, found) if one.leads]
    judged_by = comparable(paths, record, found)
    top = best(found, highest=record.highest)
    shown = MOST_AXES if drawn else 0
    made_s = now_s()
    return rendered(
        "sweep.html.j2",
        {
            "name": record.name,
            "summary": in_a_line(record, found),
            "metric": record.file.metric,
            "best": None
            if top is None or top.value is None
            else {
                "trial": top.trial,
                "value": number(top.value, 4),
                "settings": [(short(key), text(value)) for key, value in top.settings.items()],
                "command": f"fsdpkit submit {paths.trial(top.trial)}",
            },
            "table": rows(record, found),
            "problems": [(one.trial, one.problem) for one in found if one.problem],
            "curves": over_steps(curves_of(paths, record, found), drawn, record.file.metric),
            "scatters": [scatter(one, drawn, record.file.metric) for one in space[:shown]],
            "parallel": parallel(space, drawn, record.file.metric) if drawn else None,
            "drawn": len(drawn),
            "hidden_axes": max(0, len(space) - MOST_AXES + 1),
            "importances": [
                {
                    "key": short(one.key),
                    "strength": f"{one.strength:.2f}",
                    "share": round(100 * one.strength),
                    "direction": _DIRECTIONS[one.rises],
                }
                for one in importances(judged_by)
            ],
            "judged_by": len(judged_by),
            "least": LEAST,
            "halved": record.halving is not None,
            "now": f"{moment(made_s)} {zone_name(made_s)}",
            "version": __version__,
        },
    )


_TOP, _BELOW = 38, 8
_ROWS = (12, 28)
"""Names stand in two rows, so that long ones do not meet on a narrow screen."""
_SHOWN = 0.25
"""The share of the trials, the best ones, whose lines stand out."""
MOST_AXES = 12


_DIRECTIONS = {None: "depends on the choice", True: "rises with it", False: "falls as it rises"}
_MOST_POINTS = 40_000
"""Of all curves together."""


def curves_of(paths: SweepPaths, record: SweepRecord, found: Sequence[Result]) -> list[Curve]:
    """The metric over steps, of each trial that has logged it."""
    runs = {name: opened(paths, name) for name in dict.fromkeys(one.run for one in found) if name}
    sides = [
        Side(str(one.trial), training, None)
        for one in found
        if (run := runs.get(one.run)) is not None
        for training in trainings_of(run, [None if run.record.array is None else one.trial], {})
    ]
    return curves(sides, record.file.metric)


def over_steps(found: Sequence[Curve], trials: Sequence[Result], metric: str) -> Markup | None:
    """`<svg>` of the curves; trials: those that count, the best first."""
    if not found:
        return None
    places = {str(one.trial): place for place, one in enumerate(trials)}
    lines = []
    for one in sorted(found, key=lambda one: -places.get(one.label, len(places))):
        tone = _tone(places.get(one.label, len(places)), len(trials))
        x, y = thin(one.step, one.value, max(20, _MOST_POINTS // len(found)))
        style: Literal["faint", "plain"] = "faint" if tone == "muted" and len(x) > 1 else "plain"
        name = "" if tone == "muted" else f"trial {one.label}"
        lines.append(plots.PlotLine(name=name, x=x, y=y, tone=tone, style=style))
    chart = plots.Chart(
        key="curves",
        title=f"{metric} over steps",
        description=f"{metric} of {len(found)} trials",
        x=steps_axis(found),
        y=values_axis([one.value for one in found]),
        lines=lines,
        height=240,
    )
    return plots.draw(chart)


def scatter(one: SweptParameter, trials: Sequence[Result], metric: str) -> DrawnFigure:
    """What came out over one setting: a dot for each trial."""
    marks = _ticks(one)
    every = -(-sum(len(label) + 2 for _, label in marks) // 40)  # as many labels as have room
    x, y, height = Axis(0, 1, tuple(marks[::every])), _axis_of(trials), 170
    dots = [
        Markup('<path class="line dots {}" d="M{:.5g} {:.5g}h0"><title>{}</title></path>').format(
            _tone(place, len(trials)),
            WIDTH * _place(one, trial.settings[one.key]),
            height * (1 - y.fraction(trial.value or 0)),
            _called(trial),
        )
        for place, trial in reversed(list(enumerate(trials)))
    ]
    title, about = f"{metric} over {short(one.key)}", f"{len(trials)} trials"
    inside = plots.grid(y, height) + plots.ticks(x, height) + stretched(dots, height)
    drawing = frame(f"over-{one.key.replace(' ', '-')}", title, about, height, inside)
    remark = "logarithmic scale" if one.is_logarithmic and not one.values else ""
    return DrawnFigure(title=title, drawing=drawing, remark=remark)


def _axis_of(trials: Sequence[Result]) -> Axis:
    return values_axis([np.array([one.value or 0.0 for one in trials])])


def _tone(place: int, trials: int) -> str:
    """Of the best, of the best quarter, of the others."""
    return "b" if place == 0 else "a" if place < max(1, round(_SHOWN * trials)) else "muted"


def _called(trial: Result) -> str:
    return f"trial {trial.trial}: {number(trial.value or 0, 4)}"


def parallel(
    space: Sequence[SweptParameter], trials: Sequence[Result], metric: str, height: int = 300
) -> Markup:
    """`<svg>`; trials: those with a value, the best first."""
    shown = list(space[: MOST_AXES - 1])
    last = _axis_of(trials)
    axes = [(_name(one.key), _ticks(one)) for one in shown]
    axes.append((metric, [(last.fraction(v), label) for v, label in last.ticks]))
    lines = [
        _line(one, shown, last, height, _tone(place, len(trials)))
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
    tone: str,
) -> Markup:
    assert trial.value is not None
    up = [_place(one, trial.settings[one.key]) for one in space] + [last.fraction(trial.value)]
    across = np.linspace(0, WIDTH, len(up))
    points = "L".join(
        f"{x:.5g} {height * (1 - y):.5g}" for x, y in zip(across.tolist(), up, strict=True)
    )
    faint = " faint" if tone == "muted" else ""
    return Markup('<path class="line {}{}" d="M{}"><title>{}</title></path>').format(
        tone, faint, points, _called(trial)
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
