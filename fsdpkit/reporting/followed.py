"""Figures of an account, each followed to the lines of the run's files that it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fsdpkit.bounded import NODES_READ, lines_in, open_regular
from fsdpkit.runs.account import USES, Account, Use
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import parsed
from fsdpkit.runs.record import Time
from fsdpkit.runs.samples import sample_in

_BY_FILE: dict[str, tuple[Use, ...]] = {
    "metrics": ("training", "loading", "waiting", "open", "repeated", "checkpoints", "pauses"),
    "orders": ("startup", "staging", "lost", "idle"),
    "samples": ("unused", "unknown"),
}
"""Uses by what tells them from one another."""
_SHOWN = (
    *("event", "launch", "node", "cause", "step", "step_time_s", "loading_s"),
    *("checkpoint_blocked_s", "rank_compute_s"),
)
_SUMS = {"observed_s": "gpu_s", "busy_s": "busy_s", "active_s": "active_s", "energy_j": "energy_j"}
"""Of the GPUs in a sample, added up, by their names in what is measured."""
_CLOCKS_S = 2.0


@dataclass(frozen=True)
class FileLine:
    """One line of a file in the run's directory."""

    file: str
    line: int
    time_s: float
    values: dict[str, float | str | list[float]]


@dataclass(frozen=True)
class FollowedFigure:
    name: str
    value: float
    unit: str
    how: str


@dataclass(frozen=True)
class FollowedFigures:
    """Those of an attempt that were made of the same lines."""

    run: str
    task: int | None
    attempt: int
    figures: list[FollowedFigure]
    lines: list[FileLine]
    """The first and the last of each file in the time of the attempt."""


def followed(
    paths: RunPaths, run: str, task: int | None, one: Account
) -> Iterator[FollowedFigures]:
    """All figures of one attempt."""
    directory = paths.task(task)
    attempt = directory.attempt(one.attempt)
    unit = "GPU-hours" if one.gpus else "node-hours"
    samples = [attempt.node_samples(node) for node in range(min(one.nodes, NODES_READ))]
    files = {
        "events": [attempt.node_events(0), attempt.orders],
        "orders": [attempt.orders],
        "metrics": [directory.metrics],
        "samples": samples,
    }
    lines = {name: list(_ends(paths.dir, each, one)) for name, each in files.items()}

    def group(figures: list[FollowedFigure], file: str) -> Iterator[FollowedFigures]:
        if figures:
            yield FollowedFigures(run, task, one.attempt, figures, lines[file])

    count = f"{one.nodes} nodes × {one.gpus} GPUs" if one.gpus else f"{one.nodes} nodes"
    granted = (
        f"{count} × {one.ended_s - one.began_s:,.1f} s, from {one.began_s:.1f} to {one.ended_s:.1f}"
    )
    yield from group([FollowedFigure("granted", one.gpu_hours, unit, granted)], "events")
    for file, uses in _BY_FILE.items():
        known = [(USES[use], one.hours(use)) for use in USES if use in uses and one.hours(use)]
        yield from group([FollowedFigure(n, h, unit, how) for (n, how), h in known], file)
    if (measured := one.measured) is not None:
        found = [
            FollowedFigure(name, value, name[-1], "last line less first, of all nodes' GPUs")
            for name in _SUMS.values()
            if (value := getattr(measured, name)) is not None
        ]
        yield from group(found, "samples")


class _Timed(msgspec.Struct):
    time_s: Time


def _ends(top: Path, files: list[Path], one: Account) -> Iterator[FileLine]:
    """The first and the last line of each file in the time of an attempt."""
    decode = msgspec.json.Decoder(_Timed).decode
    for path in files:
        ends: list[tuple[int, bytes, float]] = []
        with contextlib.suppress(OSError), open_regular(path) as file:
            for number, line in enumerate(lines_in(file), 1):
                with contextlib.suppress(ValueError, RecursionError):
                    at_s = decode(line).time_s
                    if one.began_s - _CLOCKS_S <= at_s <= one.ended_s + _CLOCKS_S:
                        ends = [*ends[:1], (number, line, at_s)]
        for number, line, at_s in ends:
            yield FileLine(str(path.relative_to(top)), number, at_s, _values(line))


def _values(line: bytes) -> dict[str, float | str | list[float]]:
    found = parsed(line)
    values = {name: found[name] for name in _SHOWN if found.get(name) is not None}
    if (sample := sample_in(line)) is not None and sample.sums is not None:
        for name, shown in _SUMS.items():
            values[shown] = sum(getattr(gpu, name) or 0.0 for gpu in sample.sums.gpus)
    return values
