"""Plots as inline SVG: lines and bands, heat, bars of time, sparklines. Numbers in, markup out.

A plot is as wide as the page allows, and its text is as large as the page's: parts that stretch are
in an inner SVG (1000 units wide, strokes unscaled), parts that do not are placed by percentages
around it. Colours are CSS classes (`a` to `f`, `muted`, `bad`), so the page decides about themes.
All text is escaped by Markup.format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from fsdpkit.reporting.scales import Axis
from fsdpkit.reporting.series import Floats

TONES = ("a", "b", "c", "d", "e", "f")
"""In the order in which they are given out; told apart by colour-blind people, too."""
WIDTH, _ROOMY = 1000, 200


@dataclass(frozen=True, kw_only=True)
class PlotLine:
    """A line through the points, broken where y is NaN."""

    name: str
    x: Floats
    y: Floats
    tone: str = "a"
    style: Literal["plain", "faint", "dashed"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Band:
    """The area between `low` and `high`."""

    x: Floats
    low: Floats
    high: Floats
    tone: str = "a"


@dataclass(frozen=True, kw_only=True)
class PlotMark:
    """Something that happened at x, or with `until` went on until there."""

    x: float
    label: str
    tone: str = "muted"
    until: float | None = None
    number: str = ""
    """Its number in the timeline, written above it in a plot that has the room."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn over one another in one pair of axes."""

    key: str
    """Unique on the page; becomes part of ids."""
    title: str
    description: str
    """What a person would say who looks at it."""
    x: Axis
    y: Axis
    lines: Sequence[PlotLine] = ()
    bands: Sequence[Band] = ()
    marks: Sequence[PlotMark] = ()
    height: int = 170


def draw(chart: Chart) -> Markup:
    """The plot as `<svg>`."""
    inside = [_region(chart, mark) for mark in chart.marks if mark.until is not None]
    inside += [_area(chart, band) for band in chart.bands]
    inside += [_path(chart, line) for line in chart.lines]
    return frame(
        chart.key,
        chart.title,
        chart.description,
        chart.height,
        Markup("").join(
            [
                _grid(chart.y, chart.height),
                _ticks(chart.x, chart.height),
                stretched(inside, chart.height),
                *(_rule(chart, mark) for mark in chart.marks if mark.until is None),
                Markup('<line class="cross" y1="0" y2="{}" visibility="hidden"/>').format(
                    chart.height
                ),
            ]
        ),
        Markup(' data-x="{}" data-y="{}"').format(chart.x.as_data(), chart.y.as_data()),
    )


def frame(
    key: str, title: str, description: str, height: int, content: Markup, extra: str = ""
) -> Markup:
    # In its own group the title is not a tooltip over the whole plot.
    return Markup(
        '<svg class="chart" role="img" height="{h}" aria-labelledby="{k}-t {k}-d"{extra}>'
        '<g><title id="{k}-t">{title}</title><desc id="{k}-d">{description}</desc></g>'
        "{content}</svg>"
    ).format(h=height, k=key, title=title, description=description, content=content, extra=extra)


def stretched(content: Iterable[Markup], height: int) -> Markup:
    return Markup(
        '<svg class="data" width="100%" height="{h}" viewBox="0 0 {w} {h}" '
        'preserveAspectRatio="none">{content}</svg>'
    ).format(h=height, w=WIDTH, content=Markup("").join(content))


def _grid(y: Axis, height: int) -> Markup:
    drawn = []
    for value, label in y.ticks:
        at = f"{height * (1 - y.fraction(value)):.1f}"
        drawn.append(
            Markup(
                '<line class="grid" x1="0" x2="100%" y1="{at}" y2="{at}"/>'
                '<text class="tick y" x="0" y="{at}" dx="-6" dy="4">{label}</text>'
            ).format(at=at, label=label)
        )
    return Markup("").join(drawn)


def _ticks(x: Axis, height: int) -> Markup:
    drawn = [
        Markup('<line class="axis" x1="0" x2="100%" y1="{h}" y2="{h}"/>').format(h=height),
    ]
    for place, (value, label) in enumerate(x.ticks):
        drawn.append(
            Markup(
                '<line class="axis" x1="{at}" x2="{at}" y1="{h}" y2="{end}"/>'
                '<text class="tick x{every}" x="{at}" y="{below}">{label}</text>'
            ).format(
                at=f"{100 * x.fraction(value):.2f}%",
                h=height,
                end=height + 4,
                below=height + 17,
                label=label,
                every=" odd" if place % 2 and len(x.ticks) > 4 else "",
            )
        )
    return Markup("").join(drawn)


def _across(x: Axis, values: Floats) -> list[str]:
    return [f"{value:.4g}" for value in (WIDTH * x.fractions(values)).tolist()]


def _down(chart: Chart, values: Floats) -> list[str]:
    at = chart.height * (1 - chart.y.fractions(values))
    return [f"{value:.5g}" for value in np.clip(at, -9, chart.height + 9).tolist()]


def _path(chart: Chart, line: PlotLine) -> Markup:
    x, y = _across(chart.x, line.x), _down(chart, line.y)
    words, dots, there = [], [], ~np.isnan(line.y)
    for place in np.flatnonzero(there).tolist():
        goes_on = place > 0 and there[place - 1]
        words.append(f"{'L' if goes_on else 'M'}{x[place]} {y[place]}")
        if not goes_on and (place + 1 == len(there) or not there[place + 1]):
            words.append("h0")
            dots.append(f"M{x[place]} {y[place]}h0")  # of no length, with round ends: a disc
    style = "" if line.style == "plain" else f" {line.style}"
    drawn = Markup('<path class="line {tone}{style}" data-name="{name}" d="{d}"/>').format(
        tone=line.tone, style=style, name=line.name, d="".join(words)
    )
    alone = Markup('<path class="line dots {tone}" d="{d}"/>').format(
        tone=line.tone, d="".join(dots)
    )
    return drawn + alone if dots and line.style == "plain" else drawn


def _area(chart: Chart, band: Band) -> Markup:
    known = ~(np.isnan(band.low) | np.isnan(band.high))
    ends = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    words = []
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        x = _across(chart.x, band.x[first:last])
        low, high = _down(chart, band.low[first:last]), _down(chart, band.high[first:last])
        there = [f"{a} {b}" for a, b in zip(x, high, strict=True)]
        back = [f"{a} {b}" for a, b in zip(reversed(x), reversed(low), strict=True)]
        words.append(f"M{'L'.join(there + back)}Z")
    return Markup('<path class="band {tone}" d="{d}"/>').format(tone=band.tone, d="".join(words))


def _region(chart: Chart, mark: PlotMark) -> Markup:
    assert mark.until is not None
    begin, end = (chart.x.fraction(value) * WIDTH for value in (mark.x, mark.until))
    return Markup(
        '<rect class="region {tone}" x="{x:.1f}" width="{w:.1f}" y="0" height="{h}">'
        "<title>{label}</title></rect>"
    ).format(x=begin, w=max(end - begin, 2), h=chart.height, label=mark.label, tone=mark.tone)


def _rule(chart: Chart, mark: PlotMark) -> Markup:
    at = f"{100 * chart.x.fraction(mark.x):.2f}%"
    number = Markup('<text class="mark" x="{}" y="-4">{}</text>').format(at, mark.number)
    return Markup(
        '<line class="rule {tone}" x1="{at}" x2="{at}" y1="0" y2="{h}">'
        "<title>{label}</title></line>{number}"
    ).format(
        at=at,
        h=chart.height,
        label=mark.label,
        tone=mark.tone,
        number=number if mark.number and chart.height >= _ROOMY else "",
    )


HEAT_LEVELS = (1.05, 1.1, 1.2, 1.5, 2.0)
"""From which ratio to the median on a cell is of a level; below the first it is left empty."""


def heat(
    key: str, title: str, description: str, ratio: Floats, row_names: Sequence[str], x: Axis
) -> Markup:
    """[rows, columns] of ratios as a strip of cells, darker where larger; the columns fill the x
    axis evenly."""
    rows, columns = ratio.shape
    cell = max(2, min(16, 320 // max(rows, 1)))
    height, wide = rows * cell, WIDTH / max(columns, 1)
    levels = np.searchsorted(HEAT_LEVELS, np.nan_to_num(ratio), side="right")
    drawn = []
    for level in range(1, len(HEAT_LEVELS) + 1):
        words = []
        for row in range(rows):
            ends = np.flatnonzero(
                np.diff(np.concatenate([[0], (levels[row] == level).astype(int), [0]]))
            )
            for first, last in zip(ends[::2], ends[1::2], strict=True):
                across = f"{first * wide:.1f} {row * cell}h{(last - first) * wide:.1f}"
                words.append(f"M{across}v{cell}H{first * wide:.1f}z")
        if words:
            drawn.append(
                Markup('<path class="heat h{}" d="{}"/>').format(level, Markup("".join(words)))
            )
    names = Markup("").join(
        Markup('<text class="tick y" x="0" y="{}" dx="-6">{}</text>').format(
            row * cell + cell / 2 + 4, row_names[row]
        )
        for row in _named_rows(rows, cell)
    )
    back = Markup('<rect class="heat-back" x="0" y="0" width="100%" height="{}"/>').format(height)
    content = back + names + _ticks(x, height) + stretched(drawn, height)
    return frame(key, title, description, height, content)


def _named_rows(rows: int, cell: int) -> range:
    return range(0, rows, max(1, -(-14 // cell)) if rows * cell > 14 else rows)


@dataclass(frozen=True, kw_only=True)
class LaneBlock:
    """A stretch of a lane; without `end` a moment, drawn as a tick, with `number` as a disc."""

    begin: float
    end: float | None
    tone: str
    label: str
    number: str = ""


_LANE, _BAR, _DISC, _NEAR = 26, 14, 17, 0.04


def lanes(
    key: str, title: str, description: str, rows: Sequence[tuple[str, Sequence[LaneBlock]]], x: Axis
) -> Markup:
    """Rows of blocks over one time axis, each with its name above the axis's left end."""
    height = len(rows) * _LANE
    drawn = [_ticks(x, height)]
    for place, (name, blocks) in enumerate(rows):
        top = place * _LANE + (_LANE - _BAR) // 2
        drawn.append(
            Markup('<text class="tick y" x="0" y="{}" dx="-6">{}</text>').format(top + 11, name)
        )
        drawn += [
            _block(block, x, top, aside)
            for block, aside in zip(blocks, _asides(blocks, x), strict=True)
        ]
    return frame(key, title, description, height, Markup("").join(drawn))


def _asides(blocks: Sequence[LaneBlock], x: Axis) -> list[int]:
    """Pixels by which overlapping discs are shifted."""
    asides: list[int] = []
    for place, block in enumerate(blocks):
        near = place > 0 and x.fraction(block.begin) - x.fraction(blocks[place - 1].begin) < _NEAR
        asides.append(asides[-1] + _DISC if near and block.number else 0)
    # Labels at the right end extend to the left.
    last = asides[-1] if blocks and x.fraction(blocks[-1].begin) > 1 - _NEAR else 0
    for place in range(len(asides) - 1, len(asides) - 1 - last // _DISC - 1, -1):
        asides[place] -= last
    return asides


def _block(block: LaneBlock, x: Axis, top: int, aside: int) -> Markup:
    at = f"{100 * x.fraction(block.begin):.3f}%"
    label = Markup("<title>{}</title>").format(block.label)
    if block.number:
        return Markup(
            '<g class="fault" transform="translate({aside})">{label}'
            '<circle cx="{at}" cy="{y}" r="8"/>'
            '<text x="{at}" y="{text}">{number}</text></g>'
        ).format(aside=aside, at=at, y=top + 7, text=top + 11, label=label, number=block.number)
    if block.end is None:
        return Markup(
            '<line class="moment {tone}" x1="{at}" x2="{at}" y1="{y}" y2="{y2}">{label}</line>'
        ).format(at=at, y=top, y2=top + _BAR, label=label, tone=block.tone)
    wide = 100 * (x.fraction(block.end) - x.fraction(block.begin))
    return Markup(
        '<rect class="block {tone}" x="{at}" width="{w}%" y="{y}" height="{h}">{label}</rect>'
    ).format(at=at, w=f"{max(wide, 0.1):.3f}", y=top, h=_BAR, label=label, tone=block.tone)


def shares(key: str, title: str, parts: Sequence[tuple[str, float, str]]) -> Markup:
    """One bar of parts (name, share of the whole 0 to 1, class)."""
    drawn, begin = [], 0.0
    for name, share, tone in parts:
        label = f"{name}: {share:.1%}"
        drawn.append(
            Markup(
                '<rect class="block {tone}" x="{x:.3f}%" width="{w:.3f}%" y="0" height="26">'
                "<title>{label}</title></rect>"
            ).format(tone=tone, x=100 * begin, w=100 * share, label=label)
        )
        begin += share
    description = ", ".join(f"{name} {share:.1%}" for name, share, _ in parts)
    return frame(key, title, description, 26, Markup("").join(drawn))


def sparkline(x: Floats, y: Floats, label: str) -> Markup:
    """A line without axes, the size of a word."""
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if len(x) < 2:
        return Markup("")
    across = (x - x[0]) / max(x[-1] - x[0], 1e-9) * 100
    low, high = float(y.min()), float(y.max())
    down = 22 - (y - low) / max(high - low, 1e-12) * 20
    points = " ".join(
        f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True)
    )
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 0 100 24" '
        'preserveAspectRatio="none"><polyline points="{}"/></svg>'
    ).format(label, points)
