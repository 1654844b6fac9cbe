"""One trainer, started on a Slurm cluster in three ways: fsdpkit, plain torchrun, submitit.

Each way gives a `Started`: the job and the directory where the trainer writes metrics.jsonl and
checkpoints. The trainer, its settings, the environment and the node's share are the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths
from tests.slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "examples" / "T5-fsdp" / "fsdp_t5.py"
ACCOUNT = "pas1234"
RANKS = 2
_LOOK_S = 0.1

# Python runs it at each start, and asks it where the module is when it imports that.
_COUNTING = """
import os, sys

class Counting:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            with open({file!r}, "a") as file:
                file.write(str(os.getpid()) + "\\n")

sys.meta_path.insert(0, Counting)
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Started:
    """A job, and the directory of its training."""

    job_id: str
    task: TaskPaths

    def steps(self) -> list[dict[str, Any]]:
        """The logged steps so far; evaluations and checkpoints have lines, too."""
        return [line for line in read_json_lines(self.task.metrics) if "step_time_s" in line]


@dataclass
class Jobs:
    """Starts jobs on the cluster, from an empty directory, with a plain environment."""

    cluster: SlurmCluster
    directory: Path

    def environ(self) -> dict[str, str]:
        """A login shell's, without anything that a person set for the tools at hand."""
        outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
        kept = {
            name: value
            for name, value in self.cluster.env().items()
            if not name.startswith(("FSDPKIT_", "TORCH", "MASTER_", "OMP_")) and name not in outer
        }
        return {
            **kept,
            "PATH": f"{sys.prefix}/bin:{kept['PATH']}",
            "VIRTUAL_ENV": sys.prefix,
            "PYTHONPATH": f"{ROOT}:{self.directory / 'python'}",
            "FSDPKIT_CONFIG_DIR": str(self.directory / "no-config"),
            "FSDPKIT_STATE_DIR": str(self.directory / "state"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
        }

    def count_imports(self, module: str) -> Path:
        """A file to which every process that imports the module from now on adds its number."""
        found = self.directory / f"imports-of-{module}"
        found.write_text("")
        site = self.directory / "python" / "sitecustomize.py"
        site.parent.mkdir(exist_ok=True)
        site.write_text(_COUNTING.format(module=module, file=str(found)))
        return found

    # The three ways

    def fsdpkit(self, training: Sequence[str], *more: str, ranks: int = RANKS) -> Started:
        """`fsdpkit submit`; `more` are other settings of the job."""
        settings = [*(f"training.{word}" for word in training), *more, "parameters.omp_threads=1"]
        argv = [
            *(sys.executable, "-m", "fsdpkit", "submit", "--json", "--cluster", "generic"),
            *("--account", ACCOUNT, "--nodes", "1", "--gpus", str(ranks), "--time", "10"),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        answer = json.loads(self._run(argv, {}))
        return Started(answer["job_id"], TaskPaths(Path(answer["dir"])))

    def torchrun(self, training: Sequence[str], *options: str) -> Started:
        """torchrun by sbatch and srun; `options` are its own.

        It keeps one store over its restarts, in which ranks that start again find the addresses of
        dead ones (pytorch/pytorch#135712, #167288; torch 2.13). The variable makes it not do so.
        """
        task = self._task("torchrun")
        script = task.dir / "job.sbatch"
        words = " ".join(["torchrun", *self._torchrun(training, *options)])
        script.write_text(f"#!/bin/bash\nexec srun --unbuffered {words}\n", "utf-8")
        argv = [
            *("sbatch", "--parsable", f"--account={ACCOUNT}", "--time=10", "--nodes=1"),
            *("--ntasks-per-node=1", f"--cpus-per-task={RANKS}", f"--gpus-per-node={RANKS}"),
            str(script),
        ]
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if options else {}
        return Started(self._run(argv, {**self._given(task), **own_store}).strip(), task)

    def submitit(self, training: Sequence[str]) -> Started:
        """torchrun as a submitit job that requeues itself."""
        task = self._task("submitit")
        argv = [
            *(sys.executable, "-m", "benchmarks.fault_parts.requeued"),
            *(str(task.dir / "submitit"), ACCOUNT, str(RANKS)),
            *("torchrun", *self._torchrun(training)),
        ]
        return Started(self._run(argv, self._given(task)).strip(), task)

    def _torchrun(self, training: Sequence[str], *options: str) -> list[str]:
        settings = [word for setting in training for word in ("--set", setting)]
        return [
            *("--standalone", "--nproc-per-node", str(RANKS), *options),
            *(str(TRAINER), "--job", str(self._job()), *settings),
        ]

    def _job(self) -> Path:
        """The resolved job that fsdpkit's trainer reads, for the trainers of the others."""
        return min(self.directory.glob("runs/*/job.json"))

    def _task(self, name: str) -> TaskPaths:
        return TaskPaths(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory)))

    def _given(self, task: TaskPaths) -> dict[str, str]:
        return {
            "FSDPKIT_TASK_DIR": str(task.dir),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
        }

    def _run(self, argv: Sequence[str], given: Mapping[str, str]) -> str:
        cwd = given.get("FSDPKIT_TASK_DIR", str(self.directory))
        environ = {**self.environ(), **given}
        done = self.cluster.run(argv, env=environ, cwd=cwd)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
        return str(done.stdout)

    # Watching

    def until(self, started: Started, found: Callable[[], T | None], timeout_s: float) -> T:
        """What `found` returns once it is not None; RuntimeError with the logs if it never is."""
        give_up_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_s:
            if (answer := found()) is not None:
                return answer
            time.sleep(_LOOK_S)
        raise RuntimeError(f"nothing after {timeout_s:.0f} s; {self._logs(started)}")

    def ended_well(self, started: Started) -> None:
        """Wait for the end; RuntimeError with the logs if it is not a good one."""
        info = self.cluster.wait_job(started.job_id, timeout_s=300)
        if info["JobState"] != "COMPLETED":
            raise RuntimeError(f"{info['JobState']}; {self._logs(started)}")
        self.cluster.wait_idle()

    def cancel(self, started: Started) -> None:
        """End it at once; what would queue it again is refused."""
        self.cluster.run(["scontrol", "update", f"JobId={started.job_id}", "Requeue=0"])
        self.cluster.run(["scancel", started.job_id])
        self.cluster.wait_job(started.job_id)
        self.cluster.wait_idle()

    def _logs(self, started: Started) -> str:
        top = started.task.dir
        logs = [*top.glob("slurm-*"), *top.glob("submitit/*log*"), *top.glob("attempt-*/rank-*")]
        said = [f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in logs]
        return "\n".join([f"job {started.job_id} in {top}", *said])


def processes_of(task: TaskPaths) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    """Processes whose environment names this training, with it; those of nodes are seen, too."""
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        if environ.get("FSDPKIT_TASK_DIR") == str(task.dir):
            yield process, environ


def rank_process(task: TaskPaths, rank: int) -> psutil.Process | None:
    """The trainer's process of a rank, which torchrun told its number."""
    for process, environ in processes_of(task):
        if environ.get("RANK") == str(rank) and "LOCAL_RANK" in environ:
            return process
    return None


def launcher_process(task: TaskPaths) -> psutil.Process | None:
    """The process that started the ranks: their parent."""
    found = rank_process(task, 0)
    try:
        return found.parent() if found else None
    except psutil.Error:
        return None


def kill_rank(task: TaskPaths, rank: int) -> float:
    """SIGKILL to this rank; Unix time just before. Raises RuntimeError if there is none."""
    process = rank_process(task, rank)
    if process is None:
        raise RuntimeError(f"{task.dir}: no process of rank {rank}")
    now = time.time()
    os.kill(process.pid, signal.SIGKILL)
    return now
