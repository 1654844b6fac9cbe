"""When a run waited, started, trained, broke and saved: intervals on one clock, that of
runs/bounds.py."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fsdpkit.config.units import format_bytes
from fsdpkit.reporting.series import MetricsTable
from fsdpkit.runs.bounds import Bounds, attempt_bounds
from fsdpkit.runs.history import Attempt, History
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.record import JobRecord, RunRecord
from fsdpkit.scheduling.run_states import States

Kind = Literal["queue", "attempt", "stage", "launch", "fault", "stop", "checkpoint"]


@dataclass(frozen=True)
class TimelineSpan:
    """Something that took time, or with `end_s` equal to `begin_s` happened at a moment."""

    kind: Kind
    begin_s: float
    """Unix time."""
    end_s: float | None
    """None: it goes on."""
    label: str
    attempt: int | None = None
    guessed: bool = False
    """Whether `end_s` is only the time of the last record, and the end itself is not on record."""


def timeline_of(
    record: RunRecord, history: History, states: States, metrics: MetricsTable | None = None
) -> list[TimelineSpan]:
    """All spans of a history, by their beginning; `states` as of `Run.job_states`. Checkpoints come
    from `metrics`, or without it from what is still on disk."""
    bounds = bounds_of(history, states, metrics)
    spans = [*_queues(record.jobs, history, bounds, states), *_checkpoints(history, metrics)]
    newest = history.attempts[-1] if history.attempts else None
    for attempt, (begin_s, end_s) in zip(history.attempts, bounds, strict=True):
        state = states.get(attempt.job_id or "")
        over = attempt is not newest or attempt.ending or (state is not None and state.over)
        spans += _of_attempt(attempt, begin_s, end_s, guessed=not over)
    return sorted(spans, key=lambda span: span.begin_s)


def bounds_of(
    history: History, states: States, metrics: MetricsTable | None = None
) -> list[Bounds]:
    """When each attempt had its nodes: `attempt_bounds`."""
    running = {job_id for job_id, state in states.items() if state and state.phase == "running"}
    logged_s = sorted(metrics.steps["time_s"].tolist()) if metrics is not None else []
    return attempt_bounds(history, running, logged_s)


def _queues(
    jobs: Sequence[JobRecord],
    history: History,
    bounds: Sequence[Bounds],
    states: States,
) -> Iterable[TimelineSpan]:
    """Before each attempt: since its job was submitted, or since the previous attempt ended."""
    task = history.array_task
    mine = [job for job in jobs if task is None or task in (job.array or [])]
    numbers = [attempt.number for attempt in history.attempts]
    for place, job in enumerate(mine):
        later = mine[place + 1].first_attempt if place + 1 < len(mine) else math.inf
        ours = slice(bisect_left(numbers, job.first_attempt), bisect_left(numbers, later))
        since_s = job.submitted_s
        for attempt, (begin_s, end_s) in zip(history.attempts[ours], bounds[ours], strict=True):
            if since_s is not None and begin_s is not None and begin_s > since_s:
                what = "in the queue" if since_s == job.submitted_s else "in the queue again"
                yield TimelineSpan("queue", since_s, begin_s, what, attempt.number)
            since_s = end_s
        state = states.get(id_of(str(job.job_id), task))
        if since_s is not None and state is not None and state.phase == "pending":
            yield TimelineSpan("queue", since_s, None, state.describe())


def _of_attempt(
    attempt: Attempt,
    begin_s: float | None,
    end_s: float | None,
    *,
    guessed: bool,
) -> Iterable[TimelineSpan]:
    if begin_s is None:
        return
    number, job = attempt.number, f" (job {attempt.job_id})" if attempt.job_id else ""
    why = f": {attempt.ending.why}" if attempt.ending and attempt.ending.why else ""
    yield TimelineSpan("attempt", begin_s, end_s, f"attempt {number}{job}{why}", number, guessed)
    if (stage := attempt.stage) is not None:
        first_s = attempt.launches[0].began_s if attempt.launches else end_s
        until_s = stage.last_s if stage.ended_s is not None else first_s
        label = f"copy of {format_bytes(stage.bytes)} to the nodes' disks"
        open_end = stage.ended_s is None
        yield TimelineSpan("stage", stage.began_s, until_s, label, number, open_end)
    for place, launch in enumerate(attempt.launches):
        following = attempt.launches[place + 1].began_s if place + 1 < len(attempt.launches) else 0
        stop_s = launch.trouble_s or following or end_s
        nodes = "1 node" if len(launch.nodes) == 1 else f"{len(launch.nodes)} nodes"
        label = f"launch {launch.number} on {nodes}"
        yield TimelineSpan("launch", launch.began_s, stop_s, label, number)
        if launch.trouble_s is not None and launch.cause != "stopped":
            done = f", after step {launch.step}" if launch.step and launch.step > 0 else ""
            told = f"{launch.message or launch.cause}{done}"
            yield TimelineSpan("fault", launch.trouble_s, launch.trouble_s, told, number)
    if not attempt.launches:  # nothing was started: only the agents' own failures exist
        for failure in attempt.failures[:1]:
            at_s = failure.time_s
            yield TimelineSpan("fault", at_s, at_s, failure.message, number)
    if (idle := attempt.idle) is not None:
        told = idle.sentence("since then")
        yield TimelineSpan("fault", idle.since_s, idle.since_s, told, number)
    if attempt.stop_requested_s is not None:
        asked_s = attempt.stop_requested_s
        unheeded = ", but its script never checked" if attempt.stop_ignored else ""
        yield TimelineSpan("stop", asked_s, asked_s, f"asked to save and stop{unheeded}", number)


def _checkpoints(history: History, metrics: MetricsTable | None) -> Iterable[TimelineSpan]:
    saved = [(one.time_s, float(one.step)) for one in history.checkpoints]
    if metrics is not None:
        logged = metrics.checkpoints
        saved = list(zip(logged["time_s"].tolist(), logged["step"].tolist(), strict=True))
    for time_s, step in saved:
        label = f"checkpoint of step {step:,.0f}"
        yield TimelineSpan("checkpoint", time_s, time_s, label)
