"""sbatch's answer, among what a site's wrapper prints around it. Pure."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass


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
