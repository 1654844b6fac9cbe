"""How soon `fsdpkit status` answers: with many runs on disk, and with a large array in the queue.

A process is timed from its start to its end, Python's own start included, fsdpkit compiled to
bytecode and the files in the page cache, as on the second call of a day. The runs on disk have
records as fsdpkit writes them, with their end; the array is held in the queue of a real Slurm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import Figure
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord, save
from tests.slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
RUNS, TASKS = 10_000, 1_000
_ENDS = ("COMPLETED", "FAILED")


def figures(quick: bool) -> list[Figure]:
    """Both figures; quick: with a tenth of the runs and of the tasks, timed once."""
    share, times = (10, 1) if quick else (1, 5)
    with tempfile.TemporaryDirectory(prefix="fsdpkit-status-") as work:
        return [
            _many_runs(Path(work) / "runs", RUNS // share, times),
            _large_array(Path(work), TASKS // share, times),
        ]


def _many_runs(top: Path, runs: int, times: int) -> Figure:
    for number in range(runs):
        _write_run(top, number)
    what = f"`fsdpkit status` with {runs:,} runs on disk"
    return _figure("status-runs", what, _wall_s(top, times, expect=f"{runs - 20:,} older runs"))


def _large_array(work: Path, tasks: int, times: int) -> Figure:
    """One run, of which every task is asked for, in the queue and at `squeue -r`."""
    script = work / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    with SlurmCluster(work / "slurm", nodes=1, accounting=False) as cluster:
        job_id = cluster.submit("--hold", f"--array=0-{tasks - 1}", str(script))
        _write_run(work / "array", 0, job_id, [*range(tasks)])
        samples = _wall_s(work / "array", times, expect=f"{tasks} PENDING", env=cluster.env())
    return _figure("status-array", f"`fsdpkit status` with {tasks:,} array tasks in Slurm", samples)


def _write_run(
    top: Path, number: int, job_id: str | None = None, array: list[int] | None = None
) -> None:
    """A run that has ended, unless a job id is given."""
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(1.79e9 + 600 * number))
    run_id = f"fsdp-t5-{when}-{number % 65536:04x}"
    end = {
        "state": _ENDS[number % 2],
        "source": "sacct",
        "exit_code": number % 2,
        "exit_signal": 0,
        "derived_exit_code": number % 2,
        "reason": "None",
        "node_list": "node[1-2]",
        "submit_s": 1.79e9,
        "start_s": 1.79e9,
        "end_s": 1.79e9,
    }
    record = RunRecord(
        id=run_id,
        state="submitted",
        created_s=1.79e9 + 600 * number,
        name="fsdp-t5",
        site="generic",
        kind="slurm",
        job_id=job_id or str(number),
        array=array,
        nodes=2,
        ranks_per_node=4,
        ended=None if job_id else {str(number): end},
        work_dir="/home/somebody/project",
        command=["fsdpkit", "submit", "--nodes", "2", "--gpus", "4", "--set", "training.steps=500"],
        version="0.1.0",
        template="torchrun 2.0.0",
        digests=dict.fromkeys(("template", "site", "job"), "0" * 64),
    )
    directory = top / run_id
    directory.mkdir(parents=True)
    save(RunPaths(directory), record)


def _wall_s(
    top: Path, times: int, *, expect: str, env: Mapping[str, str] | None = None
) -> Sequence[float]:
    """Seconds of each of so many processes; one before warms bytecode and page cache."""
    argv = [sys.executable, "-m", "fsdpkit", "status", "--runs", str(top)]
    kept = {k: v for k, v in (env or os.environ).items() if k != "PYTHONDONTWRITEBYTECODE"}
    kept |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(top.parent / "bytecode")}
    samples = []
    for _ in range(times + 1):
        began = time.perf_counter()
        done = subprocess.run(argv, env=kept, capture_output=True, text=True, check=True)
        samples.append(round(time.perf_counter() - began, 4))
        assert expect in done.stdout, done.stdout
    return samples[1:]


def _figure(name: str, what: str, samples: Sequence[float]) -> Figure:
    median = statistics.median(samples)
    kept = {"ours": list(samples)}
    return Figure(name, what, None, "seconds", "≤", 0.5, median, None, median, samples=kept)
