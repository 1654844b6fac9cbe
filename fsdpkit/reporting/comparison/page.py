"""The comparison as one self-contained HTML file, drawn and styled like a run's report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpkit import __version__
from fsdpkit.reporting.comparison.compared import (
    ABSENT,
    Comparison,
    Curve,
    RunDifference,
    Side,
    curves,
)
from fsdpkit.reporting.comparison.table import rows
from fsdpkit.reporting.report.figures import DrawnFigure
from fsdpkit.reporting.report.page import rendered
from fsdpkit.reporting.report.plots import TONES, Chart, PlotLine, draw
from fsdpkit.reporting.scales import Axis, linear, logarithmic
from fsdpkit.reporting.series import thin
from fsdpkit.reporting.words import moment, zone_name

_PLOTS = (
    ("loss", "Training loss"),
    ("eval_loss", "Evaluation loss"),
    ("tokens_per_s", "Tokens per second"),
)
_POINTS = 600
MOST_CURVES = 2 * len(TONES)


def page(told: Comparison, sides: Sequence[Side]) -> str:
    """The page's text."""
    return rendered(
        "compare.html.j2",
        {
            "title": " and ".join(dict.fromkeys(side.training.run.id for side in sides[:2])),
            "told": told,
            "names": {side.label: side.name for side in sides},
            "tones": {side.label: _tone(n)[0] for n, side in enumerate(sides)},
            "table": rows(told),
            "differences": {
                "Settings that differ": _values(told.settings, sides),
                "Packages that differ": _values(told.packages, sides),
            },
            "figures": [f for name, title in _PLOTS if (f := _figure(name, title, sides))],
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


def _figure(name: str, title: str, sides: Sequence[Side]) -> DrawnFigure | None:
    shown = list(sides[:MOST_CURVES])
    found = curves(shown, name)
    if not found:
        return None
    order = {side.label: n for n, side in enumerate(shown)}
    x, y = _axes(found)
    remarks = ["logarithmic scale"] if y.kind == "log" else []
    if len(sides) > len(shown):
        remarks.append(f"the first {len(shown)} of {len(sides)}")
    values = tuple((_tone(order[curve.label])[0], curve.label) for curve in found)
    chart = Chart(
        key=name,
        title=f"{title} over steps",
        description=f"{title} of {', '.join(curve.label for curve in found)}",
        x=x,
        y=y,
        lines=[_line(curve, order[curve.label]) for curve in found],
        height=240,
    )
    return DrawnFigure(
        title=title, drawing=draw(chart), values=values, remark="; ".join(remarks), wide=True
    )


def _axes(curves: Sequence[Curve]) -> tuple[Axis, Axis]:
    """Steps and values; values on a logarithmic scale if they differ fourfold."""
    steps = np.concatenate([curve.step for curve in curves])
    values = np.concatenate([curve.value for curve in curves])
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    y = logarithmic(low, high) if low > 0 and high / 4 > low else linear(low, high)
    first, last = float(steps.min()), float(steps.max())
    return linear(first, max(last, first + 1), tight=True, ticks=5), y


def _line(curve: Curve, number: int) -> PlotLine:
    tone, dashed = _tone(number)
    x, y = thin(curve.step, curve.value, _POINTS)
    return PlotLine(name=curve.label, x=x, y=y, tone=tone, style="dashed" if dashed else "plain")
