"""Slurm's commands about the allocation that a run is in, and about the steps in it.

The number of an allocation comes from this process's own environment, or from a run whose mark was
compared; steps are the run's by their names, which hold its id.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.answers import call
from fsdpkit.scheduling.refusals import refusal

_LIMIT_S = 20.0
SCRIPT_STEP = "fsdpkit-here:"
"""Before the run's id, the name of the step that its script is. Its own steps have its id alone."""


def job_text(job_id: str) -> str:
    """`scontrol show job -d` in one line, times in seconds. Raises SchedulerError."""
    return _told("scontrol", "show", "job", "-d", "-o", job_id)


def host_names(node_list: str) -> list[str]:
    """The nodes of a list such as `n[1-2]`. Raises SchedulerError."""
    return _told("scontrol", "show", "hostnames", node_list).split()


class AllocationStep(NamedTuple):
    """A running step of an allocation."""

    id: str
    name: str
    nodes: str
    """As Slurm lists them: `n[1-2]`."""

    @property
    def run(self) -> str:
        """The run that it is of, if it is one's: its script, or what that started."""
        return self.name.removeprefix(SCRIPT_STEP)


def steps_of(job_id: str, cluster: str | None = None) -> list[AllocationStep] | None:
    """The running steps of an allocation; None if Slurm does not say."""
    try:
        told = _told("squeue", *_where(cluster), "-s", "-h", "-o", "%i|%j|%N", "-j", job_id)
    except SchedulerError:
        return None
    rows = (line.strip().split("|") for line in told.splitlines())
    found = [AllocationStep(row[0], "|".join(row[1:-1]), row[-1]) for row in rows if len(row) > 2]
    return [step for step in found if step.id.partition(".")[0] == job_id]


def end_steps(steps: Sequence[str], cluster: str | None = None) -> None:
    """End these steps, by their ids. Raises SchedulerError."""
    if steps:
        _told("scancel", *_where(cluster), *steps)


def warn_step(step: str, cluster: str | None = None) -> None:
    """Send SIGTERM to a step's processes. Raises SchedulerError."""
    _told("scancel", *_where(cluster), "--signal=TERM", step)


def _where(cluster: str | None) -> list[str]:
    return ["-M", cluster] if cluster else []


def _told(*argv: str) -> str:
    try:
        done = call(argv, _LIMIT_S, {"SLURM_TIME_FORMAT": "%s"})
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{argv[0]} has not answered within {_LIMIT_S:.0f} s") from error
    if done.returncode != 0 and "already completing or completed" not in done.stderr:
        raise SchedulerError(refusal(argv[0], done))
    return done.stdout
