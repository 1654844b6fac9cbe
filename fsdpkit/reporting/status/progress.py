"""The progress of a training: its step, speed and newest checkpoint, from the end of its metrics.

A run of months has a metrics file of many megabytes, and its status is requested often, so only the
last lines are read. What another framework's trainer does not write is None.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.bounded import read_end
from fsdpkit.config.training.settings import DEFAULT_STEPS
from fsdpkit.config.units import roughly
from fsdpkit.runs.history import History
from fsdpkit.runs.reading import number_in, parsed
from fsdpkit.runs.saved_steps import newest_saved

_MOST_STEPS = 1 << 53
_TAILS_BYTES = (1 << 16, 1 << 20, 1 << 24)
"""A line may hold a number for each rank, so its length is not known: more is read if needed."""


class TrainingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a training stands. None: not known."""

    step: int | None = None
    """Steps done."""
    steps: int | None = None
    """Steps to do in all."""
    loss: float | None = None
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    """Median over the newest lines."""
    mfu: float | None = None
    eta_s: float | None = None
    """From `updated_s` to the last step, checkpoints and evaluations included. None also when the
    newest attempt has ended."""
    checkpoint_step: int | None = None
    checkpoint_s: float | None = None
    """When the newest whole checkpoint was written, Unix time."""
    updated_s: float | None = None
    """When the newest line was written, Unix time."""


def progress_of(history: History, job: Mapping[str, Any]) -> TrainingProgress:
    """Where one training stands. `job`: what is in `job.json`; empty if that cannot be read."""
    lines = _newest_lines(history.paths.metrics)
    newest = newest_saved(history.paths)
    last = lines[-1] if lines else {}
    steps = _planned(last, job)
    ended = bool(history.attempts) and history.attempts[-1].ending is not None
    return TrainingProgress(
        step=last.get("step"),
        steps=steps,
        loss=_latest(lines, "loss"),
        tokens_per_s=_latest(lines, "tokens_per_s"),
        step_time_s=_median([line.get("step_time_s") for line in lines[-10:]]),
        mfu=_latest(lines, "mfu"),
        eta_s=None if ended or steps is None else _eta_s(_of_newest_launch(lines, history), steps),
        checkpoint_step=newest[0] if newest else None,
        checkpoint_s=newest[1] if newest else None,
        updated_s=last.get("time_s"),
    )


def steps_to_do(job: Mapping[str, Any]) -> int | None:
    """In all, by `job.json`; None where it leaves that to the length of epochs."""
    training = job.get("training", {})
    steps = training.get("steps") if isinstance(training, Mapping) else None
    if steps == 0 and not training.get("epochs"):
        return DEFAULT_STEPS
    return steps if isinstance(steps, int) and 0 < steps <= _MOST_STEPS else None


def steps_done(metrics: Path, job: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """By the newest line, and how many there are to do, if that is known."""
    lines = _newest_lines(metrics)
    return (lines[-1]["step"], _planned(lines[-1], job)) if lines else None


Line = dict[str, Any]


def _planned(line: Line, job: Mapping[str, Any]) -> int | None:
    """As the trainer says, which knows the length of an epoch, else from the job."""
    planned = line.get("planned_steps")
    if isinstance(planned, int) and 0 < planned <= _MOST_STEPS:
        return planned
    return steps_to_do(job)


def _newest_lines(metrics: Path) -> list[Line]:
    """Lines about training steps at the end of the file, oldest first; at least one if there is
    any within the last 16 MiB. A file that cannot be read has none."""
    with contextlib.suppress(OSError):
        for most in _TAILS_BYTES:
            lines = map(_step_line, read_end(metrics, most).split(b"\n"))
            if found := [line for line in lines if line is not None]:
                return found
    return []


def _step_line(text: bytes) -> Line | None:
    try:
        line = parsed(text)
    except ValueError:
        return None
    fine = (
        isinstance(line, dict)
        and isinstance(line.get("step"), int)
        and 0 <= line["step"] <= _MOST_STEPS
        and isinstance(line.get("time_s"), int | float)
        and 0 <= line["time_s"] <= 1e11
        and "step_time_s" in line
    )
    return line if fine else None


def _latest(lines: Sequence[Line], name: str) -> float | None:
    """The newest number of that name; steps that were skipped have no loss."""
    return next(
        (v for line in reversed(lines) if (v := number_in(line.get(name))) is not None), None
    )


def _median(values: Sequence[object]) -> float | None:
    numbers = [number for value in values if (number := number_in(value)) is not None]
    return statistics.median(numbers) if numbers else None


def _of_newest_launch(lines: Sequence[Line], history: History) -> list[Line]:
    """Lines since the ranks were last started: the time between two starts is not training."""
    launches = history.attempts[-1].launches if history.attempts else ()
    since_s = launches[-1].began_s if launches else 0.0
    kept: list[Line] = []
    for line in reversed(lines):
        if line["time_s"] < since_s or (kept and line["step"] >= kept[-1]["step"]):
            break
        kept.append(line)
    return kept[::-1]


def _eta_s(lines: Sequence[Line], steps: int) -> float | None:
    """Seconds for the remaining steps, at the pace of these lines in wall-clock time."""
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    done: int = last["step"] - first["step"]
    pace_s = (last["time_s"] - first["time_s"]) / done if done else number_in(last["step_time_s"])
    return None if pace_s is None else max(0, steps - last["step"]) * max(0.0, pace_s)


def left_s(progress: TrainingProgress, now_s: float) -> float | None:
    """Seconds to the last step as of now. None: not known, or it should be done by now: it stands
    still, or was queued again."""
    if progress.eta_s is None or progress.updated_s is None:
        return progress.eta_s
    left = progress.eta_s - (now_s - progress.updated_s)
    return left if left > 0 or progress.eta_s == 0 else None


def limit_first(limit_s: float | None, left: float | None, now_s: float) -> str | None:
    """That the time limit is reached before the last step, if so. left: as of `left_s`."""
    if limit_s is None or left is None or left <= limit_s - now_s:
        return None
    return f"the time limit comes first, in {roughly(limit_s - now_s)}"
