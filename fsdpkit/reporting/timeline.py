"""When a run waited, started, trained, broke and saved: intervals on one clock.

The clock is that of an attempt's head node, which writes the orders and, through rank 0, the
metrics. Times of other nodes are corrected by the difference that both nodes' checks measured
against the file server's clock, if it exceeds a second. What was not recorded is estimated from the
last sign of life: the newest line of metrics, samples, orders or failures.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from fsdpkit.bounded import read_end
from fsdpkit.config.units import format_bytes
from fsdpkit.reporting.series import Floats, MetricsTable
from fsdpkit.runs.history import Attempt, History, NodeStory
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.record import JobRecord, RunRecord
from fsdpkit.runs.samples import decoded
from fsdpkit.scheduling.run_states import States

Kind = Literal["queue", "attempt", "stage", "launch", "fault", "stop", "checkpoint"]
Bounds = tuple[float | None, float | None]
"""Of an attempt, see `bounds_of`."""
_CLOCK_S = 1.0
"""Smaller differences are within what the check can measure."""
_SHUTDOWN_S = 600.0
"""The batch shell writes its ending soon after the agents; later, the file was copied."""
_LONGEST_CHECK_S = 86400.0
_TAIL_BYTES = 1 << 16


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
    array_task: int | None = None
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
        spans += _of_attempt(attempt, history.array_task, begin_s, end_s, guessed=not over)
    return sorted(spans, key=lambda span: span.begin_s)


def bounds_of(
    history: History, states: States, metrics: MetricsTable | None = None
) -> list[Bounds]:
    """When each attempt was given its nodes and when it gave them back, Unix times. An end of None:
    it runs. A beginning of None: nothing of it is on record."""
    begins = [_begin_s(attempt) for attempt in history.attempts]
    logged_s = np.sort(metrics.steps["time_s"]) if metrics is not None else np.empty(0)
    found: list[Bounds] = []
    for place, attempt in enumerate(history.attempts):
        begin_s = begins[place]
        next_s = next((b for b in islice(begins, place + 1, None) if b is not None), None)
        if begin_s is None:
            found.append((None, None))
            continue
        state = states.get(attempt.job_id or "")
        newest = place == len(history.attempts) - 1
        if newest and attempt.ending is None and state is not None and state.phase == "running":
            found.append((begin_s, None))
            continue
        end_s = _end_s(attempt, begin_s, next_s, logged_s)
        found.append((begin_s, max(begin_s, end_s)))
    return found


def head_offset_s(attempt: Attempt) -> float:
    """The head node's clock minus the file server's, if the check found a difference."""
    return next((_offset_s(node) for node in attempt.nodes if node.number == 0), 0.0)


def shift_s(attempt: Attempt, node: NodeStory) -> float:
    """What to add to a node's times to have them on the head node's clock."""
    return head_offset_s(attempt) - _offset_s(node)


def _offset_s(node: NodeStory) -> float:
    offset_s = _seconds(node, "clock_offset_s")
    return offset_s if abs(offset_s) > _CLOCK_S else 0.0


def _seconds(node: NodeStory, name: str) -> float:
    """A finding of the node's check; 0 if it is none, or longer than any."""
    found = node.findings.get(name)
    fine = isinstance(found, int | float) and abs(found) <= _LONGEST_CHECK_S
    return float(found or 0) if fine else 0.0


def _begin_s(attempt: Attempt) -> float | None:
    known = [launch.began_s for launch in attempt.launches]
    known += [failure.time_s for failure in attempt.failures]
    known += [attempt.stage.began_s] if attempt.stage is not None else []
    for node in attempt.nodes:
        if node.ready_s is not None:
            took_s = max(0.0, _seconds(node, "preflight_s"))
            known.append(node.ready_s - took_s + shift_s(attempt, node))
    with contextlib.suppress(OSError):
        # The batch shell made it first; a later failure, or a copy, makes it look newer.
        known.append(attempt.paths.failures.stat().st_mtime + head_offset_s(attempt))
    return min(known, default=None)


def _end_s(attempt: Attempt, begin_s: float, next_s: float | None, logged_s: Floats) -> float:
    ended = [
        node.ended_s + shift_s(attempt, node) for node in attempt.nodes if node.ended_s is not None
    ]
    if attempt.ended_s is not None:
        shell_s = attempt.ended_s + head_offset_s(attempt)
        last_s = max(ended, default=begin_s)
        if not ended or 0 <= shell_s - last_s <= _SHUTDOWN_S:
            ended = [shell_s]
    end_s = max(ended) if ended else last_sign_s(attempt, begin_s, next_s, logged_s)
    return end_s if next_s is None else min(end_s, next_s)


def last_sign_s(attempt: Attempt, begin_s: float, next_s: float | None, logged_s: Floats) -> float:
    """The newest time on record within an attempt. logged_s: of all logged steps, in order."""
    known = [begin_s, *(failure.time_s for failure in attempt.failures)]
    known += [attempt.stage.last_s] if attempt.stage is not None else []
    for launch in attempt.launches:
        known += [launch.began_s, launch.trouble_s or 0.0]
    nodes = {node.number: node for node in attempt.nodes}
    for file in attempt.dir.glob("node-*.samples.jsonl"):
        number = file.name.split(".")[0].removeprefix("node-")
        if (sampled_s := last_time_s(file)) is not None:
            node = nodes.get(int(number)) if number.isdecimal() else None
            known.append(sampled_s + (shift_s(attempt, node) if node else 0.0))
    if before := int(np.searchsorted(logged_s, next_s or np.inf)):
        known.append(float(logged_s[before - 1]))
    return max(known)


def last_time_s(path: Path) -> float | None:
    """Of a node's newest sample; reads only the file's end."""
    with contextlib.suppress(OSError):
        return max((one.time_s for one in decoded(read_end(path, _TAIL_BYTES))), default=None)
    return None


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
                yield TimelineSpan("queue", since_s, begin_s, what, attempt.number, task)
            since_s = end_s
        state = states.get(id_of(str(job.job_id), task))
        if since_s is not None and state is not None and state.phase == "pending":
            yield TimelineSpan("queue", since_s, None, state.describe(), None, task)


def _of_attempt(
    attempt: Attempt,
    task: int | None,
    begin_s: float | None,
    end_s: float | None,
    *,
    guessed: bool,
) -> Iterable[TimelineSpan]:
    if begin_s is None:
        return
    number, job = attempt.number, f" (job {attempt.job_id})" if attempt.job_id else ""
    why = f": {attempt.ending.why}" if attempt.ending and attempt.ending.why else ""
    yield TimelineSpan(
        "attempt", begin_s, end_s, f"attempt {number}{job}{why}", number, task, guessed
    )
    if (stage := attempt.stage) is not None:
        first_s = attempt.launches[0].began_s if attempt.launches else end_s
        until_s = stage.last_s if stage.ended_s is not None else first_s
        label = f"copy of {format_bytes(stage.bytes)} to the nodes' disks"
        open_end = stage.ended_s is None
        yield TimelineSpan("stage", stage.began_s, until_s, label, number, task, open_end)
    for place, launch in enumerate(attempt.launches):
        following = attempt.launches[place + 1].began_s if place + 1 < len(attempt.launches) else 0
        stop_s = launch.trouble_s or following or end_s
        nodes = "1 node" if len(launch.nodes) == 1 else f"{len(launch.nodes)} nodes"
        label = f"launch {launch.number} on {nodes}"
        yield TimelineSpan("launch", launch.began_s, stop_s, label, number, task)
        if launch.trouble_s is not None and launch.cause != "stopped":
            done = f", after step {launch.step}" if launch.step and launch.step > 0 else ""
            told = f"{launch.message or launch.cause}{done}"
            yield TimelineSpan("fault", launch.trouble_s, launch.trouble_s, told, number, task)
    if not attempt.launches:  # nothing was started: only the agents' own failures exist
        for failure in attempt.failures[:1]:
            at_s = failure.time_s
            yield TimelineSpan("fault", at_s, at_s, failure.message, number, task)
    if (idle := attempt.idle) is not None:
        told = idle.sentence("since then")
        yield TimelineSpan("fault", idle.since_s, idle.since_s, told, number, task)
    if attempt.stop_requested_s is not None:
        asked_s = attempt.stop_requested_s
        unheeded = ", but its script never checked" if attempt.stop_ignored else ""
        yield TimelineSpan(
            "stop", asked_s, asked_s, f"asked to save and stop{unheeded}", number, task
        )


def _checkpoints(history: History, metrics: MetricsTable | None) -> Iterable[TimelineSpan]:
    saved = [(one.time_s, float(one.step)) for one in history.checkpoints]
    if metrics is not None:
        logged = metrics.checkpoints
        saved = list(zip(logged["time_s"].tolist(), logged["step"].tolist(), strict=True))
    for time_s, step in saved:
        label = f"checkpoint of step {step:,.0f}"
        yield TimelineSpan("checkpoint", time_s, time_s, label, None, history.array_task)
