"""The small job between two rungs of a sweep: it starts when the first is over, however it ended,
looks at what came out, and submits what follows. Nothing waits on a login node.

It asks for one core, no GPU and minutes, of the account, partition and QOS of the job that it
follows. Where a cluster lets no job submit another, the command that it runs does the same on a
login node: `fsdpkit sweep advance`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from fsdpkit.errors import storage_errors
from fsdpkit.rendering.directives import Directive, resource_directives
from fsdpkit.rendering.quoting import directive_quote, shell_quote
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import write_atomically
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.run import Run
from fsdpkit.sweeps import record as records
from fsdpkit.sweeps.record import SweepPaths

LOOK_S = 2.0
"""Between two looks of who waits for the jobs that it follows."""
ADVANCE_WITHIN_S = 600.0
"""How long a command waits for them, which a person has told to."""
_TIME = "00:20:00"
_MEMORY_MB = 1000
_LEFT_OUT = frozenset(
    [
        *("gres", "gpus-per-node", "nodelist", "exclude", "exclusive", "constraint", "time"),
        *("nodes", "ntasks-per-node", "cpus-per-task", "mem", "reservation"),
    ]
)
"""What is asked for the training's sake."""
_HANDED_ON = ("FSDPKIT_SITE_PATH", "FSDPKIT_CONFIG_DIR", "FSDPKIT_STATE_DIR", "SLURM_CONF")


def submit_next(
    plan: Plan, sweep: Path, name: str, *, after: OpenRun, script: Path, log: Path
) -> str:
    """Have `fsdpkit sweep advance` run once the newest job of `after` is over; the id of the job
    that will. plan: of the job that it follows. sweep: the sweep's directory. Raises StorageError,
    SchedulerError."""
    text = script_of(plan, sweep, name, after=after, log=log)
    with storage_errors(script, "written"):
        write_atomically(script, text)
    profile = plan.site.profile
    return cluster_of(profile.kind, profile.slurm_clusters).submit(script).job_id


def cancel_next(run: OpenRun, sweep: Path, job_id: str) -> None:
    """End the small job that waits for a job of this run, if it is not over. Raises SchedulerError
    where that cannot be told."""
    job = MarkedJob(job_id, JobMark.of(sweep, _comment(sweep, run.dir)))
    if not run.client().forgot(job):
        run.client().cancel(job)


def _comment(sweep: Path, run_dir: Path) -> str:
    """Names of sweeps return, ids of runs do not."""
    return f"fsdpkit-next:{sweep.name}:{run_dir.name}"


def script_of(plan: Plan, sweep: Path, name: str, *, after: OpenRun, log: Path) -> str:
    """The small job's script."""
    lines = ["#!/bin/bash -p"]
    for one in _directives(plan, _comment(sweep, after.dir), name, str(after.job_id), log):
        value = "" if one.value is None else f"={directive_quote(one.value)}"
        lines.append(f"#SBATCH --{one.name}{value}")
    lines += ["", "set -euo pipefail"]
    for variable in _HANDED_ON:
        if given := os.environ.get(variable):
            lines.append(f"export {variable}={shell_quote(given)}")
    # As in the job's own script: the working directory is no place to take modules from.
    start = "import sys; sys.path[:] = filter(None, sys.path)"
    start += "; from fsdpkit.cli.main import main; main()"
    words = (sys.executable, "-c", start, "sweep", "advance", str(sweep), "--wait")
    command = " ".join(map(shell_quote, words))
    return "\n".join([*lines, f"exec {command}", ""])


def _directives(plan: Plan, comment: str, name: str, after: str, log: Path) -> list[Directive]:
    resources = msgspec.structs.replace(plan.job.spec.resources, nodes=1, gpus=1, spare=0)
    kept = resource_directives(resources, plan.placement, plan.site.profile)
    return [
        Directive("job-name", name),
        Directive("comment", comment),
        *(one for one in kept if one.name not in _LEFT_OUT),
        Directive("nodes", "1"),
        Directive("ntasks", "1"),
        Directive("cpus-per-task", "1"),
        Directive("mem", f"{_MEMORY_MB}M"),
        Directive("time", _TIME),
        Directive("chdir", str(plan.work_dir)),
        Directive("output", str(log).replace("%", "%%")),
        Directive("open-mode", "append"),
        # A failed node takes no decision with it: the job is queued again, and decides the same.
        Directive("requeue", None),
        Directive("dependency", f"afterany:{after}"),
    ]


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
