"""What fsdpkit costs while nothing happens, and gains when a rank dies: `benchmarks/overhead.py`.

On a real Slurm cluster on this machine, as root, in about nine minutes. One trainer (T5 under
FSDP2, two ranks on one node) runs in turns under fsdpkit and under plain torchrun:

- steps: seconds a step, with agent, heartbeat and samples of the machine against none of them, in
  pairs (A B, B A, …), with a confidence interval over the pairs;
- memory: what the processes of eight ranks on a node hold after their first step, forked and
  started anew, and how many of these processes import torch;
- restart: from the SIGKILL of a rank to the first step after it, against `torchrun --max-restarts`
  and a submitit job that requeues itself, with the same checkpoints.

Writes results/overhead.json and the tables in README.md. `--only steps` measures one part and keeps
the other's rows; `--quick` takes few samples and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.fault_parts.jobs import (  # noqa: E402
    Jobs,
    Started,
    kill_rank,
    launcher_process,
    processes_of,
)
from benchmarks.markdown import markdown, seconds  # noqa: E402
from benchmarks.measured import measured, slurm_version  # noqa: E402
from benchmarks.report import Figure, finish, ratio  # noqa: E402
from tests.slurm_cluster import SlurmCluster  # noqa: E402

RESULTS = HERE / "results" / "overhead.json"
# Steps of a quarter of a second or more on two cores, and nothing beside steps.
MODEL = (
    "batch_size=8",
    "model.d_model=256",
    "model.d_ff=512",
    "model.d_kv=32",
    "model.num_heads=8",
    "model.num_layers=2",
    "model.num_decoder_layers=2",
    "evaluation.batches=0",
    "checkpoint.at_end=false",
)
EVERY = 4  # steps between two checkpoints, where they are saved
ONE_RESTART = ("retry.restarts=1", "retry.backoff_s=0")  # torchrun has no back-off
LIMIT = 1.01
FASTER = 0.4
NODE = 8  # ranks on a node whose memory is measured

# Two-sided 95 % points of Student's distribution, by degrees of freedom from 1.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)

WAYS = {
    "fsdpkit": "fsdpkit, restarted in the job",
    "torchrun": "`torchrun --max-restarts=1`",
    "submitit": "submitit, the job requeued",
}


@dataclass(frozen=True)
class Counts:
    """How many samples, and how many steps are timed in each run."""

    pairs: int = 4
    steps: int = 40
    rounds: int = 2


QUICK = Counts(pairs=2, steps=10, rounds=1)
_WARM = 5  # steps before the first that counts


# What samples say


@dataclass(frozen=True)
class Interval:
    """The geometric mean of paired ratios and its 95 % confidence interval."""

    middle: float
    low: float
    high: float


def interval(ratios: Sequence[float]) -> Interval:
    """Student's, of the logarithms; ValueError for fewer than two pairs."""
    logs = [math.log(each) for each in ratios]
    middle = statistics.fmean(logs)
    quantile = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(*(math.exp(x) for x in (middle, middle - half, middle + half)))


def seconds_a_step(lines: Sequence[Mapping[str, Any]]) -> float:
    """Wall time from the first logged step, which follows the warm-up, to the last."""
    first, last = lines[0], lines[-1]
    return float((last["time_s"] - first["time_s"]) / (last["step"] - first["step"]))


@dataclass(frozen=True)
class Again:
    """The first step after a restart: Unix time, and how many steps were done twice."""

    time_s: float
    repeated: int


def first_step_again(lines: Sequence[Mapping[str, Any]], killed_s: float) -> Again | None:
    """Where the count of steps falls back; None as long as it has not.

    A step that was under way when the rank died may still be logged afterwards.
    """
    for before, line in pairwise(lines):
        if line["step"] <= before["step"] and line["time_s"] > killed_s:
            return Again(line["time_s"], before["step"] - line["step"] + 1)
    return None


# Measuring


@dataclass
class Bench:
    jobs: Jobs
    counts: Counts

    def steps(self) -> dict[str, Any]:
        """Figure, note and samples of training that nothing disturbs."""
        last = _WARM + self.counts.steps
        training = (
            *MODEL,
            f"steps={last}",
            f"metrics.every_steps={_WARM}",
            "checkpoint.every_steps=0",
        )
        ways: dict[str, Callable[[], Started]] = {
            "ours": lambda: self.jobs.fsdpkit(training),
            "theirs": lambda: self.jobs.torchrun(training),
        }
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        self._warm_up()
        for number in range(self.counts.pairs):
            for name in list(ways) if number % 2 == 0 else reversed(ways):
                samples[name].append(self._run(ways[name]()))
                print(f"  {name}: {samples[name][-1]}", file=sys.stderr)
        found = {name: [s["step_s"] for s in each] for name, each in samples.items()}
        pairs = [a / b for a, b in zip(found["ours"], found["theirs"], strict=True)]
        cost = interval(pairs)
        return {
            "figures": [asdict(steps_figure(found["ours"], found["theirs"], cost))],
            "notes": [told_about_steps(cost, samples)],
            "samples": {**samples, "ratios": pairs, "interval": asdict(cost)},
        }

    def _warm_up(self) -> None:
        """Fills the page cache, and leaves the job that the other ways read."""
        self.jobs.ended_well(self.jobs.fsdpkit((*MODEL, "steps=2", "checkpoint.every_steps=0")))

    def _run(self, started: Started) -> dict[str, float]:
        """Seconds a step, and the launcher's share of one core meanwhile."""
        self.jobs.until(started, lambda: started.steps() or None, 120)
        launcher = launcher_process(started.task)
        if launcher is None:
            raise RuntimeError(f"{started.task.dir}: nobody started the ranks")
        began_s, began_cpu_s = time.monotonic(), sum(launcher.cpu_times()[:2])
        last = _WARM + self.counts.steps

        def nearly_done() -> bool | None:
            return started.steps()[-1]["step"] >= last - _WARM or None

        self.jobs.until(started, nearly_done, 300)
        used = sum(launcher.cpu_times()[:2]) - began_cpu_s
        share = used / (time.monotonic() - began_s)
        self.jobs.ended_well(started)
        return {"step_s": seconds_a_step(started.steps()), "launcher_cpu": share}

    def memory(self) -> dict[str, Any]:
        """Figures and samples of a node full of ranks."""
        training = (*MODEL, "steps=100000", "metrics.every_steps=1", "checkpoint.every_steps=0")
        samples: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
        for _ in range(self.counts.rounds):
            for warm, found in samples.items():
                found.append(self._memory(training, f"launch.warm={warm}"))
                print(f"  launch.warm={warm}: {found[-1]}", file=sys.stderr)
        return {
            "figures": [asdict(row) for row in memory_figures(samples)],
            "notes": [],
            "samples": samples,
        }

    def _memory(self, training: Sequence[str], warm: str) -> dict[str, float]:
        """Proportional memory in MiB once all ranks have done a step, and who imported torch."""
        imports = self.jobs.count_imports("torch")
        started = self.jobs.fsdpkit(training, warm, ranks=NODE)
        self.jobs.until(started, lambda: started.steps() or None, 300)
        pss_bytes = sum(process.memory_full_info().pss for process, _ in processes_of(started.task))
        self.jobs.cancel(started)
        return {"pss_mib": pss_bytes / 2**20, "imports": len(set(imports.read_text().split()))}

    def restart(self) -> dict[str, Any]:
        """Figures, table and samples of the death of a rank."""
        training = (
            *MODEL,
            "steps=100000",
            "metrics.every_steps=1",
            f"checkpoint.every_steps={EVERY}",
        )
        ways: dict[str, Callable[[], Started]] = {
            "fsdpkit": lambda: self.jobs.fsdpkit(training, *ONE_RESTART),
            "torchrun": lambda: self.jobs.torchrun(training, "--max-restarts=1"),
            "submitit": lambda: self.jobs.submitit(training),
        }
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        self._warm_up()
        for _ in range(self.counts.rounds):
            for name, start in ways.items():
                samples[name].append(self._kill(start()))
                print(f"  {name}: {samples[name][-1]}", file=sys.stderr)
        return {
            "figures": [asdict(row) for row in restart_figures(samples)],
            "notes": [table_of_restarts(samples), told_about_restarts(self._requeue_delay_s())],
            "samples": samples,
        }

    def _kill(self, started: Started) -> dict[str, float]:
        """Kill a rank two steps after the second checkpoint, when it is whole."""
        saved = started.task.checkpoints / f"step-{2 * EVERY}"

        def ready() -> bool | None:
            steps = started.steps()
            return bool(saved.exists() and steps and steps[-1]["step"] >= 2 * EVERY + 2) or None

        self.jobs.until(started, ready, 120)
        killed_s = kill_rank(started.task, 1)
        again = self.jobs.until(started, lambda: first_step_again(started.steps(), killed_s), 300)
        self.jobs.cancel(started)
        return {"first_step_s": again.time_s - killed_s, "repeated": again.repeated}

    def _requeue_delay_s(self) -> int:
        return self.jobs.cluster.options.requeue_delay_s


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "steps": Bench.steps,
    "memory": Bench.memory,
    "restart": Bench.restart,
}

# Tables


def steps_figure(ours: Sequence[float], theirs: Sequence[float], cost: Interval) -> Figure:
    return Figure(
        "steps",
        "a step with agent, heartbeat and samples of the machine",
        "plain `torchrun`",
        "ratio",
        "≤",
        LIMIT,
        statistics.median(ours),
        statistics.median(theirs),
        cost.middle,
        samples={"ours": list(ours), "theirs": list(theirs)},
    )


def told_about_steps(cost: Interval, samples: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    share = {
        name: statistics.median(each["launcher_cpu"] for each in runs)
        for name, runs in samples.items()
    }
    more = 100 * (cost.middle - 1)
    return (
        f"Over {len(samples['ours'])} pairs of runs the agent changes the time of a step by "
        f"{more:+.2f} %, with 95 % confidence by {100 * (cost.low - 1):+.2f} to "
        f"{100 * (cost.high - 1):+.2f} %. The agent itself uses "
        f"{100 * share['ours']:.1f} % of one core, torchrun's {100 * share['theirs']:.1f} %."
    )


def memory_figures(samples: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Figure]:
    pss = {name: [each["pss_mib"] for each in runs] for name, runs in samples.items()}
    imports = {name: [each["imports"] for each in runs] for name, runs in samples.items()}
    what = f"processes of {NODE} ranks on a node"
    against = "the same with `launch.warm=off`"
    most = max(imports["on"])
    return [
        ratio("memory", f"memory of the {what}", against, "≤", 1.0, (pss["on"], pss["off"]), "MiB"),
        Figure(
            *("imports", f"{what} that import torch", against, "count", "≤", 1.0),
            *(most, max(imports["off"]), most, "processes"),
            samples={"ours": imports["on"], "theirs": imports["off"]},
        ),
    ]


def restart_figures(samples: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Figure]:
    times = {name: [each["first_step_s"] for each in runs] for name, runs in samples.items()}
    what = "a killed rank to the first step after it"
    return [
        ratio(f"restart-{name}", what, WAYS[name], "≤", limit, (times["fsdpkit"], times[name]), "s")
        for name, limit in (("torchrun", FASTER), ("submitit", 1.0))
    ]


def table_of_restarts(samples: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for name, shown in WAYS.items():
        times = [each["first_step_s"] for each in samples[name]]
        repeated = statistics.median(each["repeated"] for each in samples[name])
        row = (shown, *map(seconds, (statistics.median(times), min(times), max(times))))
        rows.append((*row, f"{repeated:.0f}"))
    columns = ("When a rank was killed", "First step after", "Least", "Most", "Steps repeated")
    return markdown(columns, rows)


def told_about_restarts(requeue_delay_s: int) -> str:
    return (
        "fsdpkit ran with `retry.backoff_s=0`; its default adds 5 s before the first restart. "
        "torchrun ran with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: without it, ranks that torch "
        "2.13 restarts may find the addresses of dead ones and fail (pytorch/pytorch#135712). The "
        f"test cluster holds a requeued job for {requeue_delay_s} s and has free nodes; Slurm's "
        "default is 120 s, and waiting in the queue is additional."
    )


def measure(parts: Sequence[str], counts: Counts, work: Path) -> dict[str, Any]:
    """These parts, each with its figures, notes and samples, and where they come from."""
    found: dict[str, Any] = {}
    (work / "jobs").mkdir()
    with SlurmCluster(work / "slurm", nodes=1, gpus=NODE, cpus=2 * NODE) as cluster:
        bench = Bench(Jobs(cluster, work / "jobs"), counts)
        for name in parts:
            load = os.getloadavg()[0]
            print(f"{name}: load before {load:.1f}", file=sys.stderr)
            found[name] = {**PARTS[name](bench), "load_before": round(load, 2)}
        about = measured("torch", "submitit", "fsdpkit", slurm=slurm_version(cluster))
        return {"measured": about, "parts": found}


def as_result(found: Mapping[str, Any], names: Iterable[str] = PARTS) -> dict[str, Any]:
    """What report.py reads: the rows and notes of all parts in their order, and the parts."""
    parts = [found["parts"][name] for name in names if name in found["parts"]]
    return {
        "measured": found["measured"],
        "figures": [row for part in parts for row in part["figures"]],
        "notes": [note for part in parts for note in part["notes"]],
        "parts": found["parts"],
    }


def with_earlier_parts(found: Mapping[str, Any], path: Path = RESULTS) -> dict[str, Any]:
    """A part that was not measured this time keeps what was found before."""
    earlier = json.loads(path.read_text("utf-8"))["parts"] if path.exists() else {}
    return {**found, "parts": {**earlier, **found["parts"]}}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what fsdpkit costs and gains.")
    parser.add_argument("--quick", action="store_true", help="few samples; write no results")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    counts = QUICK if arguments.quick else Counts()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as work:
        found = measure(arguments.only or list(PARTS), counts, Path(work))
    result = as_result(found if arguments.quick else with_earlier_parts(found))
    return finish(result, None if arguments.quick else RESULTS)


if __name__ == "__main__":
    sys.exit(main())
