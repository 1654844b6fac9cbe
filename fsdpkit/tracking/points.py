"""What a run logged, line by line, as trackers want it: numbers by name, at a step and a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdpkit.bounded import lines_in, open_regular
from fsdpkit.errors import StorageError
from fsdpkit.runs.reading import number_in, parsed

_MOST_STEP = 2**53
_NAMES_NO_QUANTITY = ("step", "time_s")


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl. `index` counts all lines, so that it stays the same for good."""

    index: int
    time_s: float
    step: int
    values: dict[str, float]
    """NaN and infinities as the run had them."""

    @property
    def time_ms(self) -> int:
        return round(self.time_s * 1000)


def lines_of(metrics: Path) -> list[MetricsLine]:
    """The lines that count: of a step that was done again after a failure, the later one. A line
    that is still being written, or is no such line, is passed over; without a file there is none.
    Raises StorageError if it cannot be read."""
    try:
        with open_regular(metrics) as file:
            found = [_line(index, raw) for index, raw in enumerate(lines_in(file))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{metrics} cannot be read: {error.strerror}") from error
    return _as_done_last([line for line in found if line is not None])


def _line(index: int, raw: bytes) -> MetricsLine | None:
    try:
        table = parsed(raw)
        step, time_s = number_in(table["step"]), number_in(table["time_s"])
    except (ValueError, KeyError, TypeError):
        return None
    if step is None or time_s is None or not (0 <= step <= _MOST_STEP and 0 <= time_s <= 1e11):
        return None
    values = {
        name: number
        for name, value in table.items()
        if name not in _NAMES_NO_QUANTITY and (number := number_in(value)) is not None
    }
    values |= _not_finite(table.get("not_finite"))
    return MetricsLine(index, time_s, int(step), values) if values else None


def _not_finite(told: Any) -> dict[str, float]:
    words = {"nan", "inf", "-inf"}
    pairs = told.items() if isinstance(told, dict) else ()
    return {str(name): float(word) for name, word in pairs if word in words}


def _as_done_last(lines: Sequence[MetricsLine]) -> list[MetricsLine]:
    """Without numbers of a step that a later line goes back to, or behind, in the same number."""
    kept: list[MetricsLine] = []
    lowest_after: dict[str, int] = {}
    for line in reversed(lines):
        values = {
            name: value
            for name, value in line.values.items()
            if line.step < lowest_after.get(name, _MOST_STEP + 1)
        }
        lowest_after |= dict.fromkeys(values, line.step)
        if values:
            kept.append(replace(line, values=values))
    return kept[::-1]
