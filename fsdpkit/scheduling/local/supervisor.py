"""One local job from start to end: the batch script, its time limit, its warning, its end.

Runs detached. All processes of the job are below this one, even orphans (it is their subreaper),
so ending them needs no names, only the process tree.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from fsdpkit.config.units import parse_time_s
from fsdpkit.launching.kernel import adopt_orphans as adopt_orphans
from fsdpkit.scheduling.local import store
from fsdpkit.scheduling.local.commands import KILL_WAIT_S, write_commands
from fsdpkit.scheduling.states import JobState

_GONE_WAIT_S = 30.0
"""After SIGKILL: what is told of as ended should be gone, and a busy machine takes its time."""
_AT_ONCE_S = 0.5
"""Between SIGTERM and SIGKILL instead of KILL_WAIT_S."""
_LOOK_S = 0.1


def main() -> int:
    adopt_orphans()
    job = store.LocalJob(Path(sys.argv[1]))
    description = job.description
    tasks = description["tasks"] or [None]
    if description["after"] and not _wait_for(job, description["after"], tasks):
        return 0
    for task in tasks:
        state = JobState("CANCELLED", "local")
        if not job.cancel_requested.exists():
            start_s = time.time()
            limit_s = parse_time_s(description["options"]["time"])
            running = JobState("RUNNING", "local", node_list="this machine", start_s=start_s)
            job.save_state(replace(running, end_s=start_s + limit_s), task)
            state = replace(_run(job, description, task), node_list=running.node_list)
            state = replace(state, start_s=start_s, end_s=time.time())
        job.save_state(state, task)
    return 0


def _wait_for(job: store.LocalJob, after: str, tasks: list[int | None]) -> bool:
    """Wait until the job `after` succeeded; False if it did not, or this job was cancelled."""
    for task in tasks:
        job.save_state(JobState("PENDING", "local", reason="Dependency"), task)
    other = store.find(after)
    while not job.cancel_requested.exists():
        states = list(_all_states(other)) if other else []
        if states and all(s.phase == "ended" for s in states):
            if all(s.succeeded for s in states):
                return True
            break
        time.sleep(_LOOK_S)
    for task in tasks:
        job.save_state(JobState("CANCELLED", "local", reason="DependencyNeverSatisfied"), task)
    return False


def _all_states(job: store.LocalJob) -> Iterator[JobState]:
    numbers = [int(p.stem.removeprefix("state-")) for p in job.dir.glob("state-*.json")]
    for state in [job.state(n) for n in numbers] or [job.state()]:
        if state is not None:
            yield state


def nodes_of(job_number: int, count: int) -> list[str]:
    """The loopback addresses that stand for the nodes of a job; another job gets others."""
    return [
        f"127.{1 + job_number // 250 % 250}.{1 + job_number % 250}.{1 + i}" for i in range(count)
    ]


def _environment(
    job: store.LocalJob, description: Mapping[str, Any], task: int | None
) -> dict[str, str]:
    """What Slurm would set for the batch script."""
    options = description["options"]
    nodes = description.get("nodes") or nodes_of(
        int(job.id) * 7 + (task or 0), int(options["nodes"])
    )
    own_id = job.id if task is None else str(int(job.id) * 1000 + task)
    environment = dict(os.environ)  # as the submitter had it, without its Slurm variables
    bin_dir = job.dir / "bin"
    write_commands(bin_dir)
    environment |= {
        "PATH": f"{bin_dir}:{environment.get('PATH', os.defpath)}",
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), own_id),
        "SLURM_JOB_NAME": options["job-name"],
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(nodes)),
        "SLURM_JOB_NUM_NODES": options["nodes"],
        "SLURM_NNODES": options["nodes"],
        "SLURM_NTASKS": options["nodes"],
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        "SLURM_SUBMIT_DIR": options["chdir"],
        "SLURMD_NODENAME": nodes[0],
        "SLURM_NODEID": "0",
    }
    if task is not None:
        environment |= {"SLURM_ARRAY_JOB_ID": job.id, "SLURM_ARRAY_TASK_ID": str(task)}
    return environment


def _run(job: store.LocalJob, description: Mapping[str, Any], task: int | None) -> JobState:
    """Run the batch script to its end."""
    environment = _environment(job, description, task)
    ids = {"j": environment["SLURM_JOB_ID"], "A": job.id, "a": str(task), "%": "%"}
    options = description["options"]
    return run_script(job, options, environment, ids, parse_time_s(options["time"]))


def run_script(
    job: store.LocalJob,
    options: Mapping[str, str],
    environment: Mapping[str, str],
    names: Mapping[str, str],
    limit_s: float,
) -> JobState:
    """Run the job's script, and end all that it started. names: of `%j` and such in paths."""
    output = re.sub(r"%([jAa%])", lambda m: names[m[1]], options["output"])
    with open(output, "ab") as log:
        batch = subprocess.Popen(
            ["/bin/bash", "-p", str(job.dir / "script.sh")],
            cwd=options["chdir"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        state = _watch(job, batch, options, limit_s)
    _end_all()
    return state


def _watch(
    job: store.LocalJob, batch: subprocess.Popen[bytes], options: Mapping[str, str], limit_s: float
) -> JobState:
    warning_s = int(options["signal"].rpartition("@")[2])
    started, warned = time.monotonic(), False
    while (status := batch.poll()) is None:
        elapsed_s = time.monotonic() - started
        if job.cancel_requested.exists():
            on_hold = job.description.get("hold")  # where somebody waits to try again
            _end_all(_AT_ONCE_S if on_hold else KILL_WAIT_S)
            return JobState("CANCELLED", "local", exit_code=0, exit_signal=signal.SIGTERM)
        if elapsed_s >= limit_s:
            _end_all()
            return JobState("TIMEOUT", "local", exit_code=0, exit_signal=signal.SIGTERM)
        if elapsed_s >= limit_s - warning_s and not warned:
            batch.send_signal(signal.SIGUSR1)  # B:USR1, to the batch shell alone
            warned = True
        time.sleep(_LOOK_S)
    if status < 0:
        return JobState("FAILED", "local", exit_code=0, exit_signal=-status)
    return JobState(
        "COMPLETED" if status == 0 else "FAILED", "local", exit_code=status, exit_signal=0
    )


def _end_all(patience_s: float = KILL_WAIT_S) -> None:
    """SIGTERM, then SIGKILL, to every process below this one."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _GONE_WAIT_S)):
        left = psutil.Process().children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, alive = psutil.wait_procs(left, timeout=wait_s if left else 0)
        if not alive and not psutil.Process().children(recursive=True):
            return


if __name__ == "__main__":
    sys.exit(main())
