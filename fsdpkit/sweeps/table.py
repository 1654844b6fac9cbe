"""A sweep in a line and in a table: a row a trial, the best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fsdpkit.config.array_tasks import ARGUMENT, text
from fsdpkit.reporting.words import ABSENT, number, shown
from fsdpkit.sweeps.record import SweepRecord
from fsdpkit.sweeps.results import Result, best


def in_a_line(record: SweepRecord, found: Sequence[Result]) -> str:
    """`lr: 32 trials, 3 rungs: 28 DROPPED, 4 RUNNING; lowest eval_loss: 1.333, of trial 4`."""
    states = ", ".join(f"{n} {word}" for word, n in Counter(one.state for one in found).items())
    rungs = f", {record.file.rungs} rungs" if record.halving else ""
    trials = f"{len(found)} trial{'s' * (len(found) != 1)}"
    top = best(found, highest=record.highest)
    value = "none yet" if top is None else f"{number(top.value or 0, 4)}, of trial {top.trial}"
    what = f"{record.file.best} {record.file.metric}"
    return f"{record.name}: {trials}{rungs}: {states}; {what}: {value}"


def in_order(record: SweepRecord, found: Sequence[Result]) -> list[Result]:
    """Those that came the farthest first, of these the best, and without a value by number."""

    def order(one: Result) -> tuple[bool, int, float, int]:
        value = one.value if one.value is not None else 0.0
        return one.value is None, -one.rung, -value if record.highest else value, one.trial

    return sorted(found, key=order)


def short(key: str) -> str:
    return key.removeprefix("training.").removeprefix(ARGUMENT)


def rows(record: SweepRecord, found: Sequence[Result]) -> list[list[str]]:
    """The head and a row for each trial."""
    keys = list(dict.fromkeys(key for one in found for key in one.settings))
    head = ["TRIAL", "STATE", *(["RUNG"] if record.halving else []), "STEP"]
    head += [record.file.metric.upper(), *map(short, keys)]
    return [head, *(_cells(record, one, keys) for one in in_order(record, found))]


def _cells(record: SweepRecord, one: Result, keys: Sequence[str]) -> list[str]:
    return [
        str(one.trial),
        one.state,
        *([str(one.rung)] if record.halving else []),
        ABSENT if one.step is None else str(one.step),
        shown(one.value, 4),
        *(text(one.settings[key]) if key in one.settings else ABSENT for key in keys),
    ]
