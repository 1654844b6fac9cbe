"""Axes: round ticks with labels, over numbers, their logarithms and clock times. Pure.

Times are in the time zone of whoever makes the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import numpy as np

from fsdpkit.reporting.series import Floats
from fsdpkit.reporting.words import scientific
from fsdpkit.runs.reading import LARGEST

_CLOCK_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600 * h for h in (1, 2, 3, 6, 12)),
    *(86400 * d for d in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True)
class Axis:
    """What lies at the ends of an axis, and its ticks: values and their labels."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    kind: Literal["linear", "log", "clock"] = "linear"
    unit: str = ""
    name: str = ""
    """What is counted along it."""
    times: tuple[str, ...] = ()
    """When each tick of an axis of steps was, in a row below the ticks."""

    def fractions(self, values: Floats) -> Floats:
        """Where values lie: 0 at `low`, 1 at `high`."""
        if self.kind == "log":
            with np.errstate(divide="ignore", invalid="ignore"):
                places = np.log(values / self.low) / math.log(self.high / self.low)
            return np.asarray(places)
        return np.asarray((values - self.low) / (self.high - self.low))

    def fraction(self, value: float) -> float:
        """As `fractions`, within 0 and 1."""
        return float(np.clip(self.fractions(np.array([value])), 0, 1)[0])

    def as_data(self) -> str:
        """For the page's script, which reads values off the drawing."""
        zone = 0.0
        if self.kind == "clock":
            offset = datetime.fromtimestamp(self.low).astimezone().utcoffset() or timedelta()
            zone = offset.total_seconds()
        return json.dumps([self.low, self.high, self.kind, self.unit, zone, self.name])


def linear(low: float, high: float, unit: str = "", *, tight: bool = False, ticks: int = 4) -> Axis:
    """An axis that shows `low` to `high`, wider by part of a tick unless `tight`."""
    low, high = (low, high) if math.isfinite(low) and math.isfinite(high) else (0.0, 1.0)
    low, high = max(min(low, high), -LARGEST), min(max(low, high), LARGEST)
    if high - low <= max(abs(high), abs(low), 1 / LARGEST) * 1e-9:
        tiny = abs(high) < 1 / LARGEST
        low, high = (min(low, 0.0), 1.0) if tiny else (0.0, high) if low >= 0 else (2 * low, 0.0)
    step = _round_step((high - low) / ticks)
    if tight and step < 1:
        step = 1.0  # steps of a training
    if not tight:
        room = 0.06 * (high - low)
        low, high = max(low - room, min(low, 0.0)), high + room
    first = math.ceil(low / step - 1e-9)
    values = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    size = max(abs(low), abs(high))
    return Axis(low, high, tuple((v, _label(v, step, size)) for v in values), unit=unit)


def values_axis(columns: Sequence[Floats]) -> Axis:
    """On a logarithmic scale if they differ fourfold."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return logarithmic(low, high) if low > 0 and high / 4 > low else linear(low, high)


def logarithmic(low: float, high: float) -> Axis:
    """From above 0 on; ticks at 1, 2 and 5 times powers of ten, or fewer of them."""
    low = min(max(low, 1 / LARGEST), LARGEST)
    low, high = low / 1.05, min(max(high, low), LARGEST) * 1.05
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        values = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(values) <= 6:
            break
    return Axis(low, high, tuple((v, _short(v)) for v in values[:: len(values) // 8 + 1]), "log")


def _short(value: float) -> str:
    """`0.5`, `200`, `50k`, `3M`, `1e+12`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if max(size, 1e4) <= value < 1e9:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def clock(begin_s: float, end_s: float, ticks: int = 6) -> Axis:
    """A time axis; labels are `14:30`, with the day where it changes."""
    end_s = max(end_s, begin_s + 1)
    years_s = 364 * 86400 * math.ceil((end_s - begin_s) / ticks / (364 * 86400))
    step_s = next((s for s in _CLOCK_STEPS_S if (end_s - begin_s) / s <= ticks), years_s)
    midnight = datetime.fromtimestamp(begin_s).replace(hour=0, minute=0, second=0, microsecond=0)
    at_s = midnight.timestamp()
    at_s += math.ceil((begin_s - at_s) / step_s) * step_s
    found, day = [], None
    while at_s <= end_s:
        moment = datetime.fromtimestamp(at_s)
        new_day, day = moment.date() != day, moment.date()
        found.append((at_s, _clock_label(moment, step_s, new_day)))
        at_s += step_s
    return Axis(begin_s, end_s, tuple(found), "clock", name="time")


def with_times(axis: Axis, step: Floats, time_s: Floats) -> Axis:
    """The axis of steps with the time at each tick. step: of the steps that count, in order."""
    at_s = [float(np.interp(value, step, time_s)) for value, _ in axis.ticks]
    lasted_s = float(time_s[-1] - time_s[0])
    form = "%H:%M:%S" if lasted_s < 600 else "%H:%M" if lasted_s < 72_000 else "%-d %b, %H:%M"
    return replace(axis, times=tuple(f"{datetime.fromtimestamp(one):{form}}" for one in at_s))


def _clock_label(moment: datetime, step_s: int, new_day: bool) -> str:
    day = f"{moment.day} {moment:%b}"
    if step_s >= 86400:
        return day if step_s < 91 * 86400 else f"{moment:%b %Y}"
    time = f"{moment:%H:%M:%S}" if step_s < 60 else f"{moment:%H:%M}"
    return day if new_day and (moment.hour, moment.minute) == (0, 0) else time


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= step * 0.999)


def _label(value: float, step: float, size: float) -> str:
    """size: of the largest number on the axis."""
    if not value:
        return "0"
    if size >= 1e13 or size < 1e-4:
        return scientific(value, max(0, _power(abs(value)) - _power(step)))
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 10 * unit:
            return f"{value / unit:,.{_decimals(step / unit)}f}{letter}"
    return f"{value:,.{_decimals(step)}f}"


def _power(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def _decimals(step: float) -> int:
    return max(0, -_power(step))
