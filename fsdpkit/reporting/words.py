"""Numbers, durations and moments for people, without numpy, which takes long to load.

Times are in the time zone of whoever asks; `zone_name` names it.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

ABSENT = "–"
"""In a table, where there is no value."""


def shown(value: float | None, digits: int = 3) -> str:
    """For a cell of a table."""
    return ABSENT if value is None else number(value, digits)


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, thousands separated: 0.00123, 12.3, 41,200, 3.20 M, 1e29."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0:
        return "0"
    if abs(value) >= 1e15:
        return scientific(value, digits - 1)
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{number(value / size, digits)} {letter}"
    if abs(value) < 0.01:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):,.{min(max(decimals, 0), 8)}f}"


def duration(seconds: float) -> str:
    """In at most two units: `48 s`, `1 min 12 s`, `3 h 4 min`, `2 d 5 h`."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    for size, name, below, below_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def moment(time_s: float) -> str:
    """`22 Nov 2026, 00:14:02`."""
    at = datetime.fromtimestamp(time_s)
    return f"{at.day} {at:%b %Y, %H:%M:%S}"


def second(time_s: float) -> str:
    """`2026-11-22 00:14:02`, for columns."""
    return f"{datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M:%S}"


def zone_name(time_s: float) -> str:
    at = datetime.fromtimestamp(time_s).astimezone()
    return "UTC" if at.utcoffset() == timedelta() else f"{at:%Z} (UTC{at:%z})"


def scientific(value: float, decimals: int) -> str:
    """`2.5e29`, `1e-7`."""
    mantissa, _, power = f"{value:.{decimals}e}".partition("e")
    short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{short}e{int(power)}"
