"""Records of runs with several jobs, one behind the other."""

from __future__ import annotations

from fsdpkit.runs.record import JobRecord, RunRecord


def run_of(*jobs: JobRecord) -> RunRecord:
    record = RunRecord(
        id="r",
        state="submitted",
        created_s=0.0,
        name="r",
        site="generic",
        kind="slurm",
        nodes=1,
        ranks_per_node=1,
        work_dir="/",
        version="0",
        template="",
        digests={},
    )
    return record.with_jobs(list(jobs), resuming=None)


def job(job_id: str, *after: str, array: list[int] | None = None) -> JobRecord:
    return JobRecord(job_id=job_id, nodes=1, ranks_per_node=1, after=list(after), array=array)
