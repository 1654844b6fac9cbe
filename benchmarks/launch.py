"""How fast and how surely a run starts: `python benchmarks/launch.py`, as root, about half an hour.

Every figure compares two things measured alternately (A B A B …) in one run on one real Slurm
cluster, so that a slow or busy machine slows both. Medians are compared; all samples are kept in
results/launch.json. `--quick` takes few samples, prints the table and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.installed import Installed, install_fsdpkit, install_torchx  # noqa: E402
from benchmarks.measured import measured, slurm_version  # noqa: E402
from benchmarks.report import Figure, finish, ratio, with_earlier_figures, with_load  # noqa: E402
from fsdpkit.runs.events import read_json_lines  # noqa: E402
from tests.slurm_cluster import SlurmCluster  # noqa: E402

RESULTS = HERE / "results" / "launch.json"
ACCOUNT = "pas1234"
SHAPE = ("--nodes", "2", "--gpus", "4")
# Three logged steps and nothing else: the clock stops at the first.
SHORT_TRAINING = (
    "training.steps=3",
    "training.metrics.every_steps=1",
    "training.checkpoint.every_steps=0",
    "training.checkpoint.at_end=false",
    "training.evaluation.batches=0",
)


@dataclass(frozen=True)
class Counts:
    """How many samples of each figure."""

    commands: int = 25
    starts: int = 8
    arrays: int = 5
    submissions: int = 20


QUICK = Counts(commands=3, starts=1, arrays=1, submissions=1)


def alternate(
    count: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """`count` samples of each, in turns."""
    pairs: list[tuple[float, float]] = []
    for _ in range(count):
        pairs.append((round(ours(), 4), round(theirs(), 4)))
        print(f"  {pairs[-1][0]:.3f} s, {pairs[-1][1]:.3f} s", file=sys.stderr)
    return [a for a, _ in pairs], [b for _, b in pairs]


@dataclass
class Bench:
    """The cluster, the two installations and an empty directory to run in."""

    cluster: SlurmCluster
    ours: Installed
    torchx: Installed
    directory: Path
    counts: Counts

    # Commands

    def dry_run(self) -> Figure:
        (self.directory / "train.py").write_text("print('trains')\n")
        ours = ["fsdpkit", "submit", *SHAPE, "--dry-run", "--cluster", "generic"]
        theirs = ["torchx", "run", "--dryrun", "-s", "slurm"]
        theirs += ["dist.ddp", "-j", "2x4", "--script", "train.py"]
        samples = self._commands(self.ours, ours, self.torchx, theirs)
        return ratio("dry-run", _code(ours), _code(theirs), "≤", 0.5, samples, "s")

    def help(self) -> Figure:
        ours, theirs = ["fsdpkit", "--help"], ["python", "-c", "pass"]
        samples = self._commands(self.ours, ours, self.ours, theirs)
        return ratio("help", _code(ours), _code(theirs), "≤", 5.0, samples, "s")

    def _commands(
        self, a: Installed, ours: Sequence[str], b: Installed, theirs: Sequence[str]
    ) -> tuple[list[float], list[float]]:
        a.run(ours, self.directory)
        b.run(theirs, self.directory)
        return alternate(
            self.counts.commands,
            lambda: a.wall_s(ours, self.directory),
            lambda: b.wall_s(theirs, self.directory),
        )

    # Submission to first step

    def first_step(self) -> Figure:
        job, trainer = self._job_and_trainer()
        ours, theirs = alternate(
            self.counts.starts,
            self._first_step_of_fsdpkit,
            lambda: self._first_step_of_osc_style(job, trainer),
        )
        what = f"{_code(['fsdpkit', 'submit', *SHAPE])} to the first training step"
        against = "`sbatch osc_style.sbatch`, the same trainer and settings"
        return ratio("first-step", what, against, "≤", 0.5, (ours, theirs), "s")

    def _job_and_trainer(self) -> tuple[Path, Path]:
        """The trainer and its settings as fsdpkit hands them over; also warms every cache."""
        answer = self._submit(json_answer=True)
        self.cluster.wait_job(answer["job_id"], timeout_s=300)
        self.cluster.wait_idle()
        script = (Path(answer["dir"]) / "job.sbatch").read_text()
        package = "lib/python*/site-packages/fsdpkit"
        (trainer,) = self.ours.prefix.glob(f"{package}/_shared/examples/*/fsdp_t5.py")
        assert str(trainer) in script
        return Path(answer["dir"]) / "job.json", trainer

    def _submit(self, *words: str, json_answer: bool = False) -> dict[str, Any]:
        settings = [word for text in SHORT_TRAINING for word in ("--set", text)]
        # torchrun's own default, which the other script gets as well.
        settings += ["--set", "parameters.omp_threads=1"]
        told = [*SHAPE, "--cluster", "generic", "--account", ACCOUNT, "--time", "10"]
        argv = ["fsdpkit", "submit", *told, *settings, *words]
        if json_answer:
            return dict(json.loads(self.ours.run([*argv, "--json"], self.directory).stdout))
        return {"status": self.ours.attempt(argv, self.directory).returncode}

    def _first_step_of_fsdpkit(self) -> float:
        started = time.time()
        answer = self._submit(json_answer=True)
        return self._until_first_step(started, answer["job_id"], Path(answer["dir"]))

    def _first_step_of_osc_style(self, job: Path, trainer: Path) -> float:
        task = Path(tempfile.mkdtemp(prefix="osc-style-", dir=self.directory))
        given = {
            "VENV": self.ours.prefix,
            "TRAINER": trainer,
            "JOB": job,
            "FSDPKIT_TASK_DIR": task,  # where the trainer writes metrics.jsonl
        }
        environ = {**self.ours.environ, **{k: str(v) for k, v in given.items()}}
        words = [f"--account={ACCOUNT}", str(HERE / "osc_style.sbatch")]
        started = time.time()
        job_id = self.cluster.submit(*words, env=environ, cwd=task)
        return self._until_first_step(started, job_id, task)

    def _until_first_step(self, started: float, job_id: str, task: Path) -> float:
        """Seconds from `started` to the trainer's own time of step 1; waits for the job's end."""
        info = self.cluster.wait_job(job_id, timeout_s=900)
        if info["JobState"] != "COMPLETED":
            logs = "\n".join(p.read_text()[-3000:] for p in task.glob("slurm-*"))
            raise RuntimeError(f"job {job_id} in {task}: {info['JobState']}\n{logs}")
        first = next(line for line in read_json_lines(task / "metrics.jsonl") if line["step"] == 1)
        self.cluster.wait_idle()
        return float(first["time_s"]) - started

    # On a hold

    def hold(self) -> Figure:
        """The hold has two of the cluster's nodes; what is submitted beside it finds two free."""
        argv = ["fsdpkit", "hold", *SHAPE, "--cluster", "generic", "--account", ACCOUNT]
        told = self.ours.run([*argv, "--time", "60", "--json"], self.directory).stdout
        name = str(json.loads(told)["run"])
        try:
            ours, theirs = alternate(
                self.counts.starts,
                lambda: self._first_step_beside("--on", name),
                lambda: self._first_step_beside("--wait"),
            )
        finally:
            self.ours.run(["fsdpkit", "release", name], self.directory)
        what = f"{_code(['fsdpkit', 'submit', *SHAPE, '--on', 'HOLD'])} to the first training step"
        against = f"{_code(['fsdpkit', 'submit', *SHAPE])} on free nodes"
        return ratio("hold", what, against, "≤", 0.35, (ours, theirs), "s")

    def _first_step_beside(self, *words: str) -> float:
        started = time.time()
        answer = self._submit(*words, json_answer=True)
        lines = read_json_lines(Path(answer["dir"]) / "metrics.jsonl")
        return float(next(line for line in lines if line["step"] == 1)["time_s"]) - started

    # Arrays

    def array(self) -> Figure:
        """1,000 tasks in one call. The partition is down meanwhile, so that none of them starts."""
        self._partition("DOWN")
        try:
            ours, theirs = alternate(self.counts.arrays, self._array, self._array_of_sbatch)
        finally:
            self._partition("UP")
        middle = statistics.median(ours)
        return Figure(
            "array",
            _code(["fsdpkit", "submit", *SHAPE, "--array", "0-999"]),
            "`sbatch --array=0-999`",
            "seconds",
            "≤",
            2.0,
            middle,
            statistics.median(theirs),
            middle,
            samples={"ours": ours, "theirs": theirs},
        )

    def _partition(self, state: str) -> None:
        argv = ["scontrol", "update", "PartitionName=main", f"State={state}"]
        self.cluster.run(argv, check=True)

    def _array(self) -> float:
        started = time.perf_counter()
        answer = self._submit("--array", "0-999", json_answer=True)
        taken = time.perf_counter() - started
        self._cancel(answer["job_id"])
        return taken

    def _array_of_sbatch(self) -> float:
        words = [f"--account={ACCOUNT}", "--array=0-999", str(HERE / "osc_style.sbatch")]
        started = time.perf_counter()
        job_id = self.cluster.submit(*words, env=dict(self.ours.environ), cwd=self.directory)
        taken = time.perf_counter() - started
        self._cancel(job_id)
        return taken

    def _cancel(self, job_id: str) -> None:
        self.cluster.run(["scancel", job_id], check=True)
        self.cluster.wait_job(job_id)

    # Start-up success

    def submissions(self) -> Figure:
        """How many submissions train and end with exit status 0."""
        count = self.counts.submissions
        good = [float(self._submit("--wait")["status"] == 0) for _ in range(count)]
        what = f"{count} × {_code(['fsdpkit', 'submit', *SHAPE, '--wait'])} with exit status 0"
        return Figure(
            "submissions", what, None, "count", "≥", count, sum(good), None, sum(good),
            samples={"ours": good},
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        versions = {name: self.ours.version(name) for name in ("torch", "fsdpkit")}
        torchx = self.torchx.version("torchx")
        return measured(**versions, torchx=torchx, slurm=slurm_version(self.cluster))


PARTS: dict[str, Callable[[Bench], Figure]] = {
    "dry-run": Bench.dry_run,
    "help": Bench.help,
    "first-step": Bench.first_step,
    "hold": Bench.hold,
    "array": Bench.array,
    "submissions": Bench.submissions,
}


def _code(words: Sequence[str]) -> str:
    return f"`{' '.join(words)}`"


def measure(parts: Sequence[str], counts: Counts, work: Path) -> dict[str, Any]:
    """All figures of these parts, as results/launch.json holds them."""
    directory = work / "empty"
    directory.mkdir()
    with SlurmCluster(work / "slurm", nodes=4) as cluster:
        ours, torchx = install_fsdpkit(work, cluster.env()), install_torchx(work, cluster.env())
        bench = Bench(cluster, ours, torchx, directory, counts)
        figures = []
        for name in parts:
            load = os.getloadavg()[0]
            figure = PARTS[name](bench)
            print(f"{name}: {figure.value:.2f}, load before {load:.1f}", file=sys.stderr)
            figures += with_load([figure], load)
        return {"measured": bench.about(), "figures": figures}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how runs start.")
    parser.add_argument("--quick", action="store_true", help="few samples; write no results")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; replaces its row of the results"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    counts = QUICK if arguments.quick else Counts()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as work:
        result = measure(arguments.only or list(PARTS), counts, Path(work))
    if arguments.quick:
        return finish(result, None)
    return finish(with_earlier_figures(result, RESULTS), RESULTS)


if __name__ == "__main__":
    sys.exit(main())
