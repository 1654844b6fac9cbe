"""How Slurm's commands are called."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class SbatchAnswer:
    """sbatch's answer."""

    job_id: str
    cluster: str | None


def parse_sbatch(text: str) -> SbatchAnswer | None:
    """The job in sbatch's output: a line of `--parsable`, else a wrapper's usual sentence. Lines
    that a site prints around it ("this job 2 nodes charged…") are not mistaken for it. None if
    there is no such line, or if several differ: one of them may count something else."""
    lines = [line.strip() for line in text.splitlines()]
    for form in (_PARSABLE, _SENTENCE):
        found = {SbatchAnswer(m[1], m[2]) for line in lines if (m := form.fullmatch(line))}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


_PARSABLE = re.compile(r"(\d+)(?:;(\S+))?", re.ASCII)
_SENTENCE = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?", re.ASCII)


def last_words(error: subprocess.TimeoutExpired) -> str:
    """What a command that was ended had said: sbatch says so before it sleeps at a full queue."""
    text = error.stderr or b""  # bytes also in text mode, up to now
    said = (text if isinstance(text, str) else text.decode(errors="replace")).strip().splitlines()
    return f" ({said[-1].removeprefix('sbatch: error: ')})" if said else ""
