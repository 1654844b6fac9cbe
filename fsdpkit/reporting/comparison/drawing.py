"""Curves plotted over one another in letters, for a terminal: `a` is the run labelled a."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpkit.reporting.comparison.compared import Curve
from fsdpkit.reporting.scales import Axis, linear, logarithmic
from fsdpkit.reporting.series import middle

SHARED = "*"
"""Where two of different runs meet."""
_LABEL = 10


def drawn(curves: Sequence[Curve], width: int = 80, height: int = 14) -> list[str]:
    """The plot as lines of at most `width` characters; none without a number to draw."""
    x, y = axes(curves)
    columns = max(10, width - _LABEL - 2)
    cells = [[" "] * columns for _ in range(height)]
    for curve in curves:
        for row, column in _cells(curve, x, y, columns, height):
            there = cells[row][column]
            mark = curve.label if len(curve.label) == 1 else SHARED
            cells[row][column] = mark if there in (" ", mark) else SHARED
    names = {round((height - 1) * (1 - y.fraction(value))): text for value, text in y.ticks}
    lines = [
        f"{names.get(row, ''):>{_LABEL}} {'┤' if row in names else '│'}{''.join(line).rstrip()}"
        for row, line in enumerate(cells)
    ]
    first, last = f"{x.low:,.0f}", f"{x.high:,.0f}"
    below = first + f"{last:>{columns - len(first)}}"
    return [*lines, f"{'':>{_LABEL}} └{'─' * columns}", f"{'step':>{_LABEL}}  {below}"]


def axes(curves: Sequence[Curve]) -> tuple[Axis, Axis]:
    """Steps and values; values on a logarithmic scale if they differ fourfold."""
    steps = np.concatenate([curve.step for curve in curves])
    values = np.concatenate([curve.value for curve in curves])
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    y = logarithmic(low, high) if low > 0 and high / 4 > low else linear(low, high)
    first, last = float(steps.min()), float(steps.max())
    return linear(first, max(last, first + 1), tight=True, ticks=5), y


def _cells(curve: Curve, x: Axis, y: Axis, columns: int, height: int) -> list[tuple[int, int]]:
    """Row and column of each point; of many points the median of each column's."""
    fine = np.isfinite(curve.value)
    step, value = curve.step[fine], curve.value[fine]
    if len(step) > columns:
        step, value = middle(step, value, columns)
    across = np.rint((columns - 1) * np.clip(x.fractions(step), 0, 1)).astype(int)
    down = np.rint((height - 1) * (1 - np.clip(y.fractions(value), 0, 1))).astype(int)
    return list(zip(down.tolist(), across.tolist(), strict=True))
