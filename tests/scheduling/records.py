"""Records of runs with several jobs, one behind the other."""

from __future__ import annotations

from typing import Any

from fsdpkit.runs.record import JobRecord, RunRecord


def recorded(**fields: Any) -> RunRecord:
    """Of a run as it was submitted to Slurm, on two nodes, with these fields."""
    known: dict[str, Any] = {"id": "run-1", "state": "submitted", "created_s": 1.0, "name": "t5"}
    known |= {"site": "generic", "kind": "slurm", "job_id": "7", "nodes": 2, "ranks_per_node": 4}
    known |= {"work_dir": "/", "version": "0", "template": "torchrun 1", "digests": {}}
    return RunRecord(**{**known, **fields})


def run_of(*jobs: JobRecord) -> RunRecord:
    record = recorded(id="r", name="r", job_id=None, nodes=1, ranks_per_node=1)
    return record.with_jobs(list(jobs), resuming=None)


def job(job_id: str, *after: str, array: list[int] | None = None) -> JobRecord:
    return JobRecord(job_id=job_id, nodes=1, ranks_per_node=1, after=list(after), array=array)
