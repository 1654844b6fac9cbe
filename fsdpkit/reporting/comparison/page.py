"""The comparison as one self-contained HTML file, drawn and styled like a run's report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpkit import __version__
from fsdpkit.reporting.comparison.compared import (
    Comparison,
    Curve,
    RunDifference,
    Side,
    curves,
)
from fsdpkit.reporting.comparison.table import rows
from fsdpkit.reporting.printable import printable
from fsdpkit.reporting.report.figures import DrawnFigure
from fsdpkit.reporting.report.page import rendered
from fsdpkit.reporting.report.plots import TONES, Chart, PlotLine, draw
from fsdpkit.reporting.scales import Axis, linear, values_axis
from fsdpkit.reporting.series import thin
from fsdpkit.reporting.words import ABSENT, moment, zone_name

_PLOTS = (
    ("loss", "Training loss"),
    ("eval_loss", "Evaluation loss"),
    ("tokens_per_s", "Tokens per second"),
)
_POINTS = 600
MOST_CURVES = 2 * len(TONES)


def page(told: Comparison, sides: Sequence[Side]) -> str:
    """The page's text."""
    head, *lines = rows(told)
    return rendered(
        "compare.html.j2",
        {
            "title": " and ".join(dict.fromkeys(side.training.run.id for side in sides[:2])),
            "told": told,
            "names": {side.label: side.name for side in sides},
            "tones": {side.label: _tone(n)[0] for n, side in enumerate(sides)},
            "table": [["Run", *head[1:]], *lines],
            "differences": {
                "Settings that differ": _values(told.settings, sides),
                "Packages that differ": _values(told.packages, sides),
            },
            "figures": _figures(sides),
            "now": f"{moment(told.made_s)} {zone_name(told.made_s)}",
            "version": __version__,
        },
    )


def _values(found: Sequence[RunDifference], sides: Sequence[Side]) -> list[list[str]]:
    """A row for each: its key, and the value of each run."""
    return [[one.key, *(one.values.get(side.label, ABSENT) for side in sides)] for one in found]


def _tone(number: int) -> tuple[str, bool]:
    """Colour, and whether the line is dashed: twelve distinguishable ones."""
    return TONES[number % len(TONES)], number >= len(TONES)


def _figures(sides: Sequence[Side]) -> list[DrawnFigure]:
    """All over the same steps."""
    shown = sides[:MOST_CURVES]
    own = dict.fromkeys(name for side in shown for name in side.own)
    names = {**dict(_PLOTS), **{name: printable(name)[:60] for name in own}}
    found = {name: drawn for name in names if (drawn := curves(shown, name))}
    if not found:
        return []
    x = steps_axis([curve for drawn in found.values() for curve in drawn])
    return [_figure(name, names[name], drawn, x, sides) for name, drawn in found.items()]


def _figure(
    name: str, title: str, found: Sequence[Curve], x: Axis, sides: Sequence[Side]
) -> DrawnFigure:
    order = {side.label: n for n, side in enumerate(sides)}
    y, is_own = values_axis([one.value for one in found]), name not in dict(_PLOTS)
    remarks = ["logarithmic scale"] if y.kind == "log" else []
    if len(sides) > MOST_CURVES:
        remarks.append(f"the first {MOST_CURVES} of {len(sides)}")
    values = tuple((_tone(order[curve.label])[0], curve.label) for curve in found)
    chart = Chart(
        key=name.replace(" ", "-"),
        title=f"{title} over steps",
        description=f"{title} of {', '.join(curve.label for curve in found)}",
        x=x,
        y=y,
        lines=[_line(curve, order[curve.label]) for curve in found],
        height=170 if is_own else 240,
    )
    return DrawnFigure(
        title=title, drawing=draw(chart), values=values, remark="; ".join(remarks), wide=not is_own
    )


def steps_axis(curves: Sequence[Curve]) -> Axis:
    """A little wider than their steps, so that no dot at an end is cut."""
    steps = np.concatenate([curve.step for curve in curves])
    first, last = float(steps.min()), float(steps.max())
    room = max(0.5, 0.01 * (last - first))
    return linear(first - room, last + room, tight=True, ticks=5)


def _line(curve: Curve, number: int) -> PlotLine:
    tone, dashed = _tone(number)
    x, y = thin(curve.step, curve.value, _POINTS)
    return PlotLine(name=curve.label, x=x, y=y, tone=tone, style="dashed" if dashed else "plain")
