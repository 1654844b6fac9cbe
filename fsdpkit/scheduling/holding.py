"""A hold as it is asked for, and until its nodes wait for runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from fsdpkit.config.site import choose_site
from fsdpkit.runs.reading import table_in
from fsdpkit.scheduling.asking import FIRST_S, Pace
from fsdpkit.scheduling.here.held import USUAL_IDLE_S, idle_limit_s
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.states import JobState

HOLD_JOB, _IDLE = "hold", "--idle"


def hold_args(idle_s: int | None, cluster: str | None) -> tuple[str, str]:
    """The job's own. Raises UsageError for what the cluster's profile does not allow."""
    return _IDLE, str(idle_limit_s(idle_s, choose_site(cluster)[0]))


def idle_s_of(run: OpenRun) -> int:
    """How long that hold may be idle, as it was asked for."""
    words = table_in(run.paths.job).get("args") or []
    return int(words[words.index(_IDLE) + 1]) if _IDLE in words else USUAL_IDLE_S


def until_ready(run: OpenRun, heard: Callable[[JobState], object]) -> JobState:
    """Block until every node's process waits for runs, or the job is over."""
    pace, due_s, before = Pace(), 0.0, ""
    while True:
        ready = all(run.paths.busy(node).exists() for node in range(run.record.nodes))
        if ready or time.monotonic() >= due_s:
            state = run.state()
            due_s = time.monotonic() + pace.pause_s()
            if state is not None and (state.over or (ready and state.phase == "running")):
                return state
            if state is not None and (words := state.describe()) != before:
                heard(state)
                before = words
                pace.news()
        time.sleep(FIRST_S)
