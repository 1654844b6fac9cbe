"""What was predicted for a run next to what it measured, as records and as text.

Made by `report/predicted.py`, which reads the run's metrics; shown by `report`, `compare` and
`status`. A job that was not planned has no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fsdpkit.reporting.words import number

GIB = 2**30
What = Literal["tokens_per_s", "step_time_s", "mfu", "memory_bytes", "memory_reserved_bytes"]
WORDS: dict[What, str] = {
    "tokens_per_s": "tokens/s",
    "step_time_s": "s a step",
    "mfu": "MFU",
    "memory_bytes": "memory allocated, peak of a GPU",
    "memory_reserved_bytes": "memory reserved, peak of a GPU",
}


class PredictedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity. `low` to `high` is its 80% interval; None: the plan gives none."""

    what: What
    predicted: float
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    """None: the run has not measured it, or too little of it."""
    error: float | None = None
    """Measured over predicted, less one."""
    in_range: bool | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction, and the steps of the jobs that it was made of."""

    nodes: int
    gpus: int
    """Per node."""
    card: str
    made_s: float
    """When it was predicted, Unix time."""
    source: str | None
    rests_on: str
    lines: int
    """Logged steps, the first third and those that were done again left out, whose median is what
    was measured. Memory is the largest of all."""
    figures: list[PredictedFigure]

    def figure(self, what: What) -> PredictedFigure | None:
        return next((one for one in self.figures if one.what == what), None)


def shown(what: What, value: float | None) -> str:
    if value is None:
        return "not measured"
    if what == "mfu":
        return f"{value:.1%}"
    if what.startswith("memory"):
        return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / 2**20:.0f} MiB"
    return number(value)


def cells(one: PredictedFigure) -> tuple[str, str, str, str, str]:
    """(what, predicted, its range, measured, how far off) for a table."""
    spread = (
        f"{shown(one.what, one.low)} to {shown(one.what, one.high)}"
        if one.low is not None and one.high is not None
        else ""
    )
    off = "" if one.error is None else f"{one.error:+.1%}"
    if one.in_range is False:
        off += ", outside the range"
    return (
        WORDS[one.what],
        shown(one.what, one.predicted),
        spread,
        shown(one.what, one.measured),
        off,
    )


def in_a_line(found: Sequence[Prediction]) -> str:
    """The newest prediction's speed and memory beside what was measured; empty without any."""
    if not found:
        return ""
    parts = []
    for what in ("tokens_per_s", "mfu", "memory_bytes"):
        one = found[-1].figure(what)
        if one is not None and one.measured is not None:
            name = "allocated" if what == "memory_bytes" else WORDS[one.what]
            off = f" ({one.error:+.0%})" if one.error is not None else ""
            measured, predicted = shown(one.what, one.measured), shown(one.what, one.predicted)
            parts.append(f"{name} {predicted}, measured {measured}{off}")
    return "; ".join(parts)
