"""How often commands that watch ask the scheduler: soon at first, then ever more rarely.

The one home of their pace: `--wait`, `--follow`, `watch` and `status --watch`. Five hundred people
who watch their runs must not be a load on slurmctld; what a run does by itself is read from its
directory as often as anybody likes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.job_mark import marked_jobs
from fsdpkit.scheduling.run_states import Standing, standings
from fsdpkit.scheduling.states import JobState

FIRST_S, LONGEST_S = 2.0, 60.0
UNHEARD_S = 300.0
"""How long nobody may know a job, or no script look whether to stop, until who waits gives up."""
_LONGER = 1.3
Clock = Callable[[], float]


class Pace:
    """Pauses between questions. Without `fixed_s` they grow, and begin anew when there is news."""

    def __init__(self, fixed_s: float | None = None) -> None:
        self._first_s = FIRST_S if fixed_s is None else fixed_s
        self._longest_s = LONGEST_S if fixed_s is None else fixed_s
        self._next_s = self._first_s

    def pause_s(self) -> float:
        """Seconds until the next question."""
        pause_s = self._next_s
        self._next_s = min(pause_s * _LONGER, self._longest_s)
        return pause_s * random.uniform(0.9, 1.1)  # people who began together drift apart

    def news(self) -> None:
        """Something has happened that the scheduler may have more to say about."""
        self._next_s = self._first_s


class Asking:
    """Questions to the scheduler, asked whenever somebody wants the answer."""

    def standings(self, runs: Sequence[tuple[RunPaths, RunRecord]]) -> list[Standing]:
        """How these runs stand."""
        return standings(runs)

    def details(
        self, paths: RunPaths, record: RunRecord, job_id: str, state: JobState
    ) -> tuple[dict[str, str], list[str]]:
        """What slurmctld has of a job that stands so, by Slurm's names; and why it did not say."""
        from fsdpkit.scheduling.slurm import Round

        asked, job = Round(), marked_jobs(paths.dir, record)[job_id]
        return cluster_of(record.kind, record.cluster).details(job, asked), asked.unread


class PacedAsking(Asking):
    """The same, for one who looks again and again: between two questions the last answers."""

    def __init__(self, pace: Pace | None = None, clock: Clock = time.monotonic) -> None:
        self._pace, self._clock = pace or Pace(), clock
        self._due_s = self.asked_s = -1e9
        self._known: dict[RunPaths, tuple[RunRecord, Standing]] = {}
        self._details: dict[tuple[str, str, str, str | None], tuple[dict[str, str], list[str]]] = {}

    @property
    def age_s(self) -> float:
        """How old the oldest of the last answers is."""
        return self._clock() - self.asked_s

    def standings(self, runs: Sequence[tuple[RunPaths, RunRecord]]) -> list[Standing]:
        due = self._clock() >= self._due_s
        to_ask = [(p, r) for p, r in runs if due or not self._has(p, r)]
        for (paths, record), standing in zip(to_ask, standings(to_ask), strict=True):
            self._known[paths] = record, standing
        if due:
            self.asked_s = self._clock()
            self._due_s = self.asked_s + self._pace.pause_s()
        return [self._known[paths][1] for paths, _ in runs]

    def _has(self, paths: RunPaths, record: RunRecord) -> bool:
        """Not of a run that is new, or was given another job."""
        known = self._known.get(paths)
        return known is not None and known[0].job_ids == record.job_ids

    def details(
        self, paths: RunPaths, record: RunRecord, job_id: str, state: JobState
    ) -> tuple[dict[str, str], list[str]]:
        key = record.id, job_id, state.state, state.reason
        if key not in self._details:
            self._details[key] = super().details(paths, record, job_id, state)
        return self._details[key]
