"""Figures of an account, each followed to the lines of the run's files that it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.bounded import NODES_READ, lines_in, open_regular
from fsdpkit.runs.account import USES, Account, Use
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import parsed
from fsdpkit.runs.record import Time
from fsdpkit.runs.samples import sample_in

_METRICS, _ORDERS, _SAMPLES = "metrics.jsonl", "orders.jsonl", "node-*.samples.jsonl"
_STEPS: tuple[Use, ...] = ("training", "waiting", "open", "repeated", "checkpoints", "pauses")
_FILES: dict[Use, tuple[str, ...]] = {
    **dict.fromkeys(_STEPS, (_METRICS,)),
    "loading": (_METRICS, _SAMPLES),
    "unused": (_SAMPLES,),
    "unknown": (_SAMPLES,),
    "staging": ("stage.json",),
}
"""What tells a use from others, if not when launches began and failed."""
_SHOWN = (
    *("event", "launch", "node", "cause", "step", "step_time_s", "loading_s"),
    *("checkpoint_blocked_s", "rank_compute_s"),
)
_SUMS = {
    "observed_s": ("gpu_s", "sampled", 3600.0, "GPU-hours"),
    "busy_s": ("busy_s", "busy", 3600.0, "GPU-hours"),
    "active_s": ("active_s", "active", 3600.0, "GPU-hours"),
    "energy_j": ("energy_j", "energy of GPUs", 3.6e6, "kWh"),
}
"""Of a sample's GPUs: their names in what is measured and for people, and the unit for those."""
_CLOCKS_S = 2.0


@dataclass(frozen=True)
class FileLine:
    """Of a file in the run's directory."""

    file: str
    line: int
    time_s: float
    values: dict[str, Any]


@dataclass(frozen=True)
class FollowedFigure:
    name: str
    value: float
    unit: str
    how: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class FollowedAttempt:
    """All figures of an attempt."""

    run: str
    task: int | None
    attempt: int
    figures: list[FollowedFigure]
    lines: list[FileLine]
    """The first and the last of each file in the time of the attempt."""


def followed(paths: RunPaths, run: str, task: int | None, one: Account) -> FollowedAttempt:
    """The figures of an account."""
    directory = paths.task(task)
    attempt = directory.attempt(one.attempt)
    lasted = f"{one.ended_s - one.began_s:.1f} s, from {one.began_s:.1f} to {one.ended_s:.1f}"
    granted = f"{one.nodes} nodes × {max(1, one.gpus)} × {lasted}"
    unit = "GPU-hours" if one.gpus else "node-hours"
    ends = ("failures", _ORDERS, "ending.json")
    figures = [FollowedFigure("granted", one.gpu_hours, unit, granted, ends)]
    figures += [
        FollowedFigure(*(name, one.hours(use), unit, how), _FILES.get(use, (_ORDERS,)))
        for use, (name, how) in USES.items()
        if one.hours(use)
    ]
    for field, name, parts, in_unit in _SUMS.values():
        if (value := getattr(one.measured, field, None)) is not None:
            how = f"{field} {value:.1f}: the newest lines' sums, of all nodes and GPUs"
            figures.append(FollowedFigure(name, value / parts, in_unit, how, (_SAMPLES,)))
    samples = map(attempt.node_samples, range(min(one.nodes, NODES_READ)))
    files = [attempt.orders, directory.metrics, *samples]
    lines = [line for file in files for line in _ends(paths.dir, file, one)]
    return FollowedAttempt(run, task, one.attempt, figures, lines)


class _Timed(msgspec.Struct):
    time_s: Time


def _ends(top: Path, path: Path, one: Account) -> Iterator[FileLine]:
    """The first and the last line of a file in the time of an attempt."""
    decode = msgspec.json.Decoder(_Timed).decode
    ends: list[tuple[int, bytes, float]] = []
    with contextlib.suppress(OSError), open_regular(path) as file:
        for number, line in enumerate(lines_in(file), 1):
            with contextlib.suppress(ValueError, RecursionError):
                at_s = decode(line).time_s
                if one.began_s - _CLOCKS_S <= at_s <= one.ended_s + _CLOCKS_S:
                    ends = [*ends[:1], (number, line, at_s)]
    for number, line, at_s in ends:
        found = parsed(line)
        values = {name: found[name] for name in _SHOWN if found.get(name) is not None}
        if (sample := sample_in(line)) is not None and sample.sums is not None:
            for name, (shown, *_) in _SUMS.items():
                values[shown] = sum(getattr(gpu, name) or 0.0 for gpu in sample.sums.gpus)
        yield FileLine(str(path.relative_to(top)), number, at_s, values)
