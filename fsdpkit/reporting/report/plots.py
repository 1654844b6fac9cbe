"""Plots as inline SVG: lines and bands, bars of time. Numbers in, markup out.

A plot is as wide as the page allows, and its text is as large as the page's: parts that stretch are
in an inner SVG (1000 units wide, strokes unscaled), parts that do not are placed by percentages
around it. Colours are CSS classes (`a` to `f`, `muted`, `bad`), so the page decides about themes.
All text is escaped by `element`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from fsdpkit.reporting.scales import Axis
from fsdpkit.reporting.series import Floats, stretches

TONES = ("a", "b", "c", "d", "e", "f")
"""In the order of use; distinguishable for colour-blind readers."""
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


def element(name: str, *inside: str, **attributes: object) -> Markup:
    """`<name attribute="…">inside</name>`, all escaped; `data_x` is written `data-x`."""
    said = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    if not inside:
        return Markup("<{}{}/>").format(name, said)
    return Markup("<{0}{1}>{2}</{0}>").format(name, said, Markup("").join(inside))


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
                grid(chart.y, chart.height),
                ticks(chart.x, chart.height),
                stretched(inside, chart.height),
                *(_rule(chart, mark) for mark in chart.marks if mark.until is None),
                element("line", class_="cross", y1=0, y2=chart.height, visibility="hidden"),
            ]
        ),
        data_x=chart.x.as_data(),
        data_y=chart.y.as_data(),
    )


def frame(
    key: str, title: str, description: str, height: int, content: Markup, **data: str
) -> Markup:
    # In its own group the title is not a tooltip over the whole plot.
    about = element(
        "g", element("title", title, id=f"{key}-t"), element("desc", description, id=f"{key}-d")
    )
    labels = {"aria_labelledby": f"{key}-t {key}-d", **data}
    return element("svg", about, content, class_="chart", role="img", height=height, **labels)


def stretched(content: Iterable[Markup], height: int) -> Markup:
    box = f"0 0 {WIDTH} {height}"
    size = {"width": "100%", "height": height, "viewBox": box, "preserveAspectRatio": "none"}
    return element("svg", *content, "", class_="data", **size)


def grid(y: Axis, height: int) -> Markup:
    drawn = []
    for value, label in y.ticks:
        at = f"{height * (1 - y.fraction(value)):.1f}"
        drawn.append(element("line", class_="grid", x1=0, x2="100%", y1=at, y2=at))
        drawn.append(element("text", label, class_="tick y", x=0, y=at, dx=-6, dy=4))
    if y.unit:
        drawn.append(element("text", y.unit, class_="tick y", x=0, y=-7, dx=-6))
    return Markup("").join(drawn)


def ticks(x: Axis, height: int) -> Markup:
    drawn = [element("line", class_="axis", x1=0, x2="100%", y1=height, y2=height)]
    drawn.append(element("text", x.name, class_="tick y", x=0, y=height + 17, dx=-27))
    times = x.times if height >= _ROOMY else ()
    if times:
        drawn.append(element("text", "time", class_="tick y", x=0, y=height + 33, dx=-27))
    for place, (value, label) in enumerate(x.ticks):
        share = x.fraction(value)
        at = f"{100 * share:.2f}%"
        every = " odd" if place % 2 and len(x.ticks) > 4 else ""
        drawn.append(element("line", class_="axis", x1=at, x2=at, y1=height, y2=height + 4))
        drawn.append(element("text", label, class_=f"tick x{every}", x=at, y=height + 17))
        if times:
            classes = f"tick x time{every}{' last' * (share > 0.97)}"
            drawn.append(element("text", times[place], class_=classes, x=at, y=height + 33))
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
    classes = f"line {line.tone}{style}"
    drawn = element("path", class_=classes, data_name=line.name, d="".join(words))
    if not dots or line.style != "plain":
        return drawn
    return drawn + element("path", class_=f"line dots {line.tone}", d="".join(dots))


def _area(chart: Chart, band: Band) -> Markup:
    words = []
    for first, last in stretches(~(np.isnan(band.low) | np.isnan(band.high))):
        x = _across(chart.x, band.x[first:last])
        low, high = _down(chart, band.low[first:last]), _down(chart, band.high[first:last])
        there = [f"{a} {b}" for a, b in zip(x, high, strict=True)]
        back = [f"{a} {b}" for a, b in zip(reversed(x), reversed(low), strict=True)]
        words.append(f"M{'L'.join(there + back)}Z")
    return element("path", class_=f"band {band.tone}", d="".join(words))


def _region(chart: Chart, mark: PlotMark) -> Markup:
    assert mark.until is not None
    begin, end = (chart.x.fraction(value) * WIDTH for value in (mark.x, mark.until))
    place = {"x": f"{begin:.1f}", "width": f"{max(end - begin, 2):.1f}", "y": 0}
    label = element("title", mark.label)
    return element("rect", label, class_=f"region {mark.tone}", **place, height=chart.height)


def _rule(chart: Chart, mark: PlotMark) -> Markup:
    at = f"{100 * chart.x.fraction(mark.x):.2f}%"
    label = element("title", mark.label)
    rule = element("line", label, class_=f"rule {mark.tone}", x1=at, x2=at, y1=0, y2=chart.height)
    if not mark.number or chart.height < _ROOMY:
        return rule
    return rule + element("text", mark.number, class_="mark", x=at, y=-4)


@dataclass(frozen=True, kw_only=True)
class LaneBlock:
    """A stretch of a lane; without `end` a moment, drawn as a tick, with `number` as a disc."""

    begin: float
    end: float | None
    tone: str
    label: str
    number: str = ""


_LANE, _BAR = 26, 14


def lanes(
    key: str, title: str, description: str, rows: Sequence[tuple[str, Sequence[LaneBlock]]], x: Axis
) -> Markup:
    """Rows of blocks over one time axis, each with its name above the axis's left end."""
    height = len(rows) * _LANE
    drawn = [ticks(x, height)]
    for place, (name, blocks) in enumerate(rows):
        top = place * _LANE + (_LANE - _BAR) // 2
        drawn.append(element("text", name, class_="tick y", x=0, y=top + 11, dx=-6))
        drawn += [_block(block, x, top) for block in blocks]
    return frame(key, title, description, height, Markup("").join(drawn))


def _block(block: LaneBlock, x: Axis, top: int) -> Markup:
    at = f"{100 * x.fraction(block.begin):.3f}%"
    label = element("title", block.label)
    if block.number:
        disc = element("circle", cx=at, cy=top + 7, r=8)
        number = element("text", block.number, x=at, y=top + 11)
        return element("g", label, disc, number, class_="fault")
    if block.end is None:
        tone = f"moment {block.tone}"
        return element("line", label, class_=tone, x1=at, x2=at, y1=top, y2=top + _BAR)
    wide = f"{max(100 * (x.fraction(block.end) - x.fraction(block.begin)), 0.1):.3f}%"
    return element(
        "rect", label, class_=f"block {block.tone}", x=at, width=wide, y=top, height=_BAR
    )


def shares(key: str, title: str, parts: Sequence[tuple[str, float, str]]) -> Markup:
    """One bar of parts (name, share of the whole 0 to 1, class)."""
    drawn, begin = [], 0.0
    for name, share, tone in parts:
        place = {"x": f"{100 * begin:.3f}%", "width": f"{100 * share:.3f}%", "y": 0}
        label = element("title", f"{name}: {share:.1%}")
        drawn.append(element("rect", label, class_=f"block {tone}", **place, height=26))
        begin += share
    description = ", ".join(f"{name} {share:.1%}" for name, share, _ in parts)
    return frame(key, title, description, 26, Markup("").join(drawn))
