"""How the GPU-hours granted to a run were used; the parts add up to the total.

Granted is, for each attempt, nodes × GPUs per node × the time from the start of the batch shell to
its end. Every moment of it is counted once, separately for nodes that trained and standby nodes:

    |-- start-up --|-- training … checkpoints, pauses … --|-- lost --|-- start-up --|-- training …
    attempt      first step                           last line   launch again
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fsdpkit.reporting.series import Flags, MetricsTable
from fsdpkit.reporting.training import Training
from fsdpkit.runs.history import Attempt, History
from fsdpkit.runs.record import JobRecord, jobs_of_attempts
from fsdpkit.runs.saved_steps import newest_saved
from fsdpkit.scheduling.run import Run

Use = Literal[
    "training",
    "open",
    "startup",
    "staging",
    "repeated",
    "checkpoints",
    "pauses",
    "lost",
    "idle",
    "unknown",
]

FORMULAS: dict[Use, tuple[str, str]] = {
    "training": (
        "trained",
        "time per step × steps that count: done once, or the last time they were done",
    ),
    "open": ("in progress", "since the newest logged step; not known yet"),
    "startup": (
        "start-up",
        "from the allocation, or from a restart, to the first step: checks, imports, loading",
    ),
    "staging": (
        "copying to the nodes' disks",
        "before the ranks start, until every node has what [stage] names",
    ),
    "repeated": ("repeated steps", "time per step × steps that were repeated later"),
    "checkpoints": ("checkpoints", "seconds for which training paused to save"),
    "pauses": ("evaluation and end", "evaluations, the last writes, export and shutdown"),
    "lost": (
        "lost after failures",
        "after the last logged step up to the restart or the end, launches that reached no step, "
        "and steps that no known checkpoint holds",
    ),
    "idle": ("waiting nodes", "standby nodes, and lost nodes, beside those that trained"),
    "unknown": ("unaccounted", "an attempt of a program that logs no steps"),
}
"""For each use its name and its formula in words, in the order of telling."""


@dataclass(frozen=True)
class UsedHours:
    """Hours of one use. `share` is that of all that was granted, 0 to 1."""

    use: Use
    hours: float
    share: float

    @property
    def name(self) -> str:
        return FORMULAS[self.use][0]

    @property
    def formula(self) -> str:
        return FORMULAS[self.use][1]


@dataclass(frozen=True)
class Efficiency:
    """`parts` add up to `granted_h`; those that are nothing are left out."""

    granted_h: float
    unit: str
    """GPU-hours, or process-hours on a machine without."""
    parts: tuple[UsedHours, ...]

    @property
    def _in_minutes(self) -> bool:
        return self.granted_h < 0.5

    @property
    def shown_unit(self) -> str:
        """Of a run that had no hour, minutes."""
        return self.unit.replace("hours", "minutes") if self._in_minutes else self.unit

    def shown(self, hours: float) -> str:
        """In that unit."""
        value = hours * 60 if self._in_minutes else hours
        return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"

    def hours(self, use: Use) -> float:
        return sum(part.hours for part in self.parts if part.use == use)

    @property
    def trained_share(self) -> float | None:
        """Share of what was granted, 0 to 1; None: nothing was granted yet, or it is unknown
        because no program logged steps."""
        if self.granted_h <= 0 or (self.hours("unknown") and not self.hours("training")):
            return None
        return self.hours("training") / self.granted_h


def efficiency_of(run: Run, trainings: Sequence[Training], now_s: float) -> Efficiency:
    """Of these trainings together; what still runs is counted up to Unix time `now_s`."""
    used_s: dict[Use, float] = defaultdict(float)
    granted_s = 0.0
    for one in trainings:
        lines = _Lines(one.metrics, _held_by_nothing(one))
        attempts = one.history.attempts
        numbers = [attempt.number for attempt in attempts]
        jobs = jobs_of_attempts(run.record.jobs, numbers, one.task)
        for attempt, (begin_s, end_s) in zip(attempts, one.bounds, strict=True):
            if begin_s is None:
                continue
            goes_on = attempt is attempts[-1] and end_s is None
            end_s = end_s if end_s is not None else max(now_s, begin_s)
            nodes = _nodes_granted(jobs.get(attempt.number) or run.record.job, attempt)
            account = _Account(nodes, begin_s, end_s, goes_on=goes_on)
            account.attempt(attempt, lines)
            for use, seconds in account.used_s.items():
                used_s[use] += seconds
            granted_s += nodes * (end_s - begin_s)
    to_hours = run.record.ranks_per_node / 3600
    parts = [
        UsedHours(use, used_s[use] * to_hours, used_s[use] / granted_s)
        for use in FORMULAS
        if used_s[use] > 0
    ]
    unit = "GPU-hours" if run.client().gpus else "process-hours"
    return Efficiency(granted_s * to_hours, unit, tuple(parts))


def _nodes_granted(job: JobRecord, attempt: Attempt) -> int:
    at_once = max((len(launch.nodes) for launch in attempt.launches), default=0)
    return max(job.nodes, at_once, len(attempt.nodes))  # agents on standby nodes write, too


def _held_by_nothing(one: Training) -> Flags:
    """[steps]: steps after the newest checkpoint of a run that stands still, and is not done."""
    step = one.metrics.steps["step"]
    if not one.history.attempts:
        return np.zeros(len(step), dtype=bool)
    last = one.history.attempts[-1]
    state = one.states.get(last.job_id or "")
    done = (last.ending is not None and last.ending.cause == "done") or (
        state is not None and state.succeeded
    )
    running = last.ending is None and state is not None and state.phase == "running"
    if done or running:
        return np.zeros(len(step), dtype=bool)
    saved_step = _saved_step(one.history, one.metrics)
    return np.asarray((step > saved_step) & ~one.metrics.superseded)


def _saved_step(history: History, metrics: MetricsTable) -> float:
    """The last logged step whose work is saved, by any writer: by the checkpoints that are
    known, by what a script that stopped as asked has said, and by where a later launch went on."""
    step, newest = metrics.steps["step"], newest_saved(history.paths)
    saved = float(metrics.checkpoints["step"].max(initial=newest[0] if newest else 0.0))
    if not len(step):
        return saved
    told = [a.ending.step for a in history.attempts if a.ending and a.ending.step is not None]
    saved = max([saved, *(float(one) for one in told if one <= step[-1])])
    began_s = [launch.began_s for attempt in history.attempts for launch in attempt.launches]
    firsts = np.searchsorted(metrics.steps["time_s"], sorted(began_s))
    later = firsts[(firsts > 0) & (firsts < len(step))]
    return max(saved, float(step[later[-1]]) - 1) if len(later) else saved


class _Lines:
    """When steps were logged and how long they took, by time."""

    def __init__(self, metrics: MetricsTable, unsaved: Flags) -> None:
        columns = metrics.steps
        order = np.argsort(columns["time_s"], kind="stable")
        self.time_s, self.step = columns["time_s"][order], columns["step"][order]
        self.step_time_s = np.nan_to_num(columns["step_time_s"][order])
        self.again = metrics.superseded[order]
        self.unsaved = unsaved[order]
        apart = np.diff(self.step)
        self.steps_a_line = float(np.median(apart[apart > 0])) if (apart > 0).any() else np.inf
        self.saved_step = metrics.checkpoints["step"]
        self.saved_time_s = metrics.checkpoints["time_s"]
        self.blocked_s = np.nan_to_num(metrics.checkpoints["checkpoint_blocked_s"])

    def between(self, begin_s: float, end_s: float) -> slice:
        first, last = np.searchsorted(self.time_s, [begin_s, end_s], side="right")
        return slice(int(first), int(last))

    def steps_of_first(self, place: int, began_s: float) -> float:
        """Steps that the first line of a launch stands for: since the checkpoint it began from."""
        known = (self.saved_time_s <= began_s) & (self.saved_step < self.step[place])
        since = self.step[place] - self.saved_step[known].max(initial=0.0)
        return float(min(since, self.steps_a_line))  # the checkpoint may be another run's

    def blocked_between_s(self, begin_s: float, end_s: float) -> float:
        inside = (self.saved_time_s > begin_s) & (self.saved_time_s <= end_s)
        return float(self.blocked_s[inside].sum())


class _Account:
    """Node-seconds of one attempt, painted from its beginning to its end without a gap."""

    def __init__(self, nodes: int, begin_s: float, end_s: float, *, goes_on: bool) -> None:
        self.nodes, self.cursor_s, self.end_s, self.goes_on = nodes, begin_s, end_s, goes_on
        self.used_s: dict[Use, float] = defaultdict(float)

    def _until(self, time_s: float) -> float:
        """Seconds from what is painted already to a moment, none of them outside the attempt."""
        return max(0.0, min(time_s, self.end_s) - self.cursor_s)

    def _paint(self, time_s: float, use: Use, nodes: int) -> None:
        seconds = self._until(time_s)
        self.used_s[use] += seconds * nodes
        self.used_s["idle"] += seconds * (self.nodes - nodes)
        self.cursor_s += seconds

    def attempt(self, attempt: Attempt, lines: _Lines) -> None:
        if (stage := attempt.stage) is not None and (attempt.launches or self.goes_on):
            first_s = attempt.launches[0].began_s if attempt.launches else self.end_s
            staged_s = first_s if stage.ended_s is None else min(first_s, stage.ended_s)
            self._paint(min(stage.began_s, first_s), "startup", self.nodes)
            self._paint(staged_s, "staging", self.nodes)
        for place, launch in enumerate(attempt.launches):
            last = place == len(attempt.launches) - 1
            self._paint(launch.began_s, "lost" if place else "startup", self.nodes)
            # The order to relaunch includes the pause before it, which counts as the failure's.
            stop_s = launch.trouble_s if launch.trouble_s is not None else self.end_s
            if launch.trouble_s is None and not last:
                stop_s = attempt.launches[place + 1].began_s
            failed = launch.trouble_s is not None and launch.cause != "stopped"
            unfinished = attempt.verdict is None and attempt.ending is None and not self.goes_on
            self._launch(
                len(launch.nodes), launch.began_s, stop_s, lines, failed or (last and unfinished)
            )
            ends_well = last and not failed
            self._paint(
                stop_s if not last else self.end_s, "pauses" if ends_well else "lost", self.nodes
            )
        if not attempt.launches:
            self._paint(self.end_s, "startup" if self.goes_on else "lost", self.nodes)

    def _launch(
        self, nodes: int, began_s: float, stop_s: float, lines: _Lines, failed: bool
    ) -> None:
        stop_s = min(stop_s, self.end_s)
        inside = lines.between(began_s, stop_s)
        time_s, step = np.maximum(lines.time_s[inside], self.cursor_s), lines.step[inside]
        if not len(time_s):
            use: Use = "lost" if failed else "startup" if self.goes_on else "unknown"
            self._paint(stop_s, use, nodes)
            return
        step_time_s = lines.step_time_s[inside]
        first_s = step_time_s[0] * lines.steps_of_first(inside.start, began_s)
        self._paint(max(began_s, float(time_s[0]) - first_s), "startup", nodes)
        elapsed_s = np.diff(time_s, prepend=self.cursor_s).clip(0)
        steps = np.diff(step, prepend=step[0]).clip(0)
        trained_s = np.minimum(elapsed_s, step_time_s * steps)
        trained_s[0] = elapsed_s[0]
        again, unsaved = lines.again[inside], lines.unsaved[inside]
        for use, seconds in (
            ("repeated", trained_s[again].sum()),
            ("lost", trained_s[unsaved].sum()),
            ("training", trained_s[~again & ~unsaved].sum()),
        ):
            self.used_s[use] += float(seconds) * nodes
        rest_s = float((elapsed_s - trained_s).sum())
        painted_s = float(elapsed_s.sum())
        tail_s = max(0.0, stop_s - self.cursor_s - painted_s)
        if failed:
            self.used_s["lost"] += tail_s * nodes
        elif self.goes_on and stop_s == self.end_s:
            self.used_s["open"] += tail_s * nodes
        else:
            rest_s += tail_s
        saving_s = min(rest_s, lines.blocked_between_s(self.cursor_s, stop_s))
        self.used_s["checkpoints"] += saving_s * nodes
        self.used_s["pauses"] += (rest_s - saving_s) * nodes
        self.used_s["idle"] += (painted_s + tail_s) * (self.nodes - nodes)
        self.cursor_s += painted_s + tail_s
