"""Ending a sweep: first what would go on with it, then its runs."""

from __future__ import annotations

import msgspec

from fsdpkit.scheduling.run import Run
from fsdpkit.sweeps import record as records
from fsdpkit.sweeps.next_job import cancel_next
from fsdpkit.sweeps.record import SweepPaths


def cancel(paths: SweepPaths, *, save: bool = False) -> tuple[list[str], list[str]]:
    """The runs asked to end, and the jobs asked to save first. Raises FsdpkitError."""
    asked: list[str] = []
    saving: list[str] = []
    with records.alone(paths) as record:
        records.save(paths, msgspec.structs.replace(record, cancelled=True))
        runs = [(batch, run) for batch in record.batches for run in batch.all_runs]
        for batch, name in runs:
            run = Run.open(paths.dir.parent.parent / name)
            for job_id in batch.next_jobs.values():
                cancel_next(run, paths.dir, job_id)
            if (state := run.state()) is not None and state.over:
                continue
            saving += run.cancel(save=save)
            asked.append(run.id)
    return asked, saving
