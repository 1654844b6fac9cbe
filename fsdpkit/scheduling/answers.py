"""How Slurm's commands are called."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.job_ids import ONE, job_of
from fsdpkit.scheduling.environment import scrubbed


def call(
    argv: Sequence[str], limit_s: float, variables: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's. variables: over this process's own; None: without it. Raises
    SchedulerError if it cannot be run, subprocess.TimeoutExpired."""
    environ = {**scrubbed(os.environ)[0], **(variables or {})}
    try:
        return subprocess.run(
            argv,
            env={name: value for name, value in environ.items() if value is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise SchedulerError(
            f"there is no {argv[0]} on PATH: is this a login node? "
            "Without Slurm, use --cluster local"
        ) from error
    except OSError as error:
        raise SchedulerError(f"{argv[0]} cannot be run: {error.strerror}") from error


def checked_id(job_id: str) -> str:
    """The id as an argument: one with a dash would be an option. Raises SchedulerError for none."""
    if not re.fullmatch(ONE, job_id):
        raise SchedulerError(f"{job_id[:80]!r} is not a job id")
    return job_id


def parents_of(job_ids: Iterable[str]) -> str:
    """The jobs that these are, or are tasks of, as one argument. Raises SchedulerError."""
    return ",".join(dict.fromkeys(job_of(checked_id(job_id)) for job_id in job_ids))
