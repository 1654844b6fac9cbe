"""When attempts had their nodes, on the clock of each one's head node.

That writes the orders and, through rank 0, the metrics. Times of other nodes are corrected by the
difference that both nodes' checks measured against the file server's clock, if it exceeds a second.
What was not recorded is estimated from the last sign of life: the newest line of metrics, samples,
orders or failures.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import islice

from fsdpkit.runs.history import Attempt, History, NodeStory
from fsdpkit.runs.samples import newest_sample

Bounds = tuple[float | None, float | None]
"""Of an attempt, see `attempt_bounds`."""
_CLOCK_S = 1.0
"""Smaller differences are within what the check can measure."""
_SHUTDOWN_S = 600.0
"""The batch shell writes its ending soon after the agents; later, the file was copied."""
_LONGEST_CHECK_S = 86400.0


def attempt_bounds(
    history: History, running: Collection[str], logged_s: Sequence[float] = ()
) -> list[Bounds]:
    """When each attempt was given its nodes and when it gave them back, Unix times. An end of None:
    it runs. A beginning of None: nothing of it is on record.

    running: ids of jobs; logged_s: when steps were logged, in order."""
    begins = [_begin_s(attempt) for attempt in history.attempts]
    found: list[Bounds] = []
    for place, attempt in enumerate(history.attempts):
        begin_s = begins[place]
        next_s = next((b for b in islice(begins, place + 1, None) if b is not None), None)
        if begin_s is None:
            found.append((None, None))
            continue
        newest = place == len(history.attempts) - 1
        if newest and attempt.ending is None and attempt.job_id in running:
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


def _end_s(
    attempt: Attempt, begin_s: float, next_s: float | None, logged_s: Sequence[float]
) -> float:
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


def last_sign_s(
    attempt: Attempt, begin_s: float, next_s: float | None, logged_s: Sequence[float]
) -> float:
    """The newest time on record within an attempt. logged_s: of all logged steps, in order."""
    known = [begin_s, *(failure.time_s for failure in attempt.failures)]
    known += [attempt.stage.last_s] if attempt.stage is not None else []
    for launch in attempt.launches:
        known += [launch.began_s, launch.trouble_s or 0.0]
    for file, node in attempt.sampled():
        with contextlib.suppress(OSError):
            if (sample := newest_sample(file)) is not None:
                known.append(sample.time_s + (shift_s(attempt, node) if node else 0.0))
    if before := bisect_left(logged_s, next_s or math.inf):
        known.append(logged_s[before - 1])
    return max(known)
