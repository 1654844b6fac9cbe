"""What Slurm's accounting says of the GPUs that jobs were granted, also jobs that are no run.

One line a start: a job that was queued again has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpkit.scheduling.states import parse_time

GRANTED_FORMAT = "JobID,Start,ElapsedRaw,Account,AllocTRES,Comment"
"""Free text comes last, and may hold what separates the columns."""
_GPUS = re.compile(r"gres/gpu(:[^=,]*)?=([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class GrantedJob:
    """One start of a job, or of a task of an array."""

    job_id: str
    began_s: float
    account: str | None
    gpu_hours: float
    comment: str


def parse_granted(text: str) -> Iterator[GrantedJob]:
    """Those with a GPU that have begun."""
    for row in (line.split("|", 5) for line in text.splitlines()):
        if len(row) < 6 or not row[2].isdecimal() or (began_s := parse_time(row[1])) is None:
            continue
        counts = [(kind, int(count)) for kind, count in _GPUS.findall(row[4])]
        # All GPUs, and often those of each kind beside it.
        gpus = next((n for kind, n in counts if not kind), sum(n for kind, n in counts if kind))
        if gpus:
            hours = gpus * int(row[2]) / 3600
            yield GrantedJob(row[0].strip(), began_s, row[3].strip() or None, hours, row[5].strip())
