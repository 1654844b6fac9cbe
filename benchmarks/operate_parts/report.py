"""The report of a long run of many ranks: seconds and megabytes.

The run is made up, file by file as agents and trainer write them: a day and a half of training on
128 nodes, three attempts, a crash, the loss of a node, one slow rank, checkpoints, samples of every
node. A report reads it in a process of its own, as the command does.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.report import Figure
from fsdpkit.config.job import JobSpec, Resources
from fsdpkit.config.training import TrainingSettings
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord, save

NODES, RANKS_PER_NODE, STEPS = 128, 8, 100_000
QUICK = (4, 4, 2_000)
_STEP_S = 1.2
_CHECK_S, _LOAD_S, _REQUEUED_S, _QUEUED_S = 30.0, 90.0, 1500.0, 4 * 3600.0
_START_S = 1_790_000_000.0
_SAMPLE_S = 10.0
_GIB = 2**30


def figures(quick: bool) -> list[Figure]:
    """How long one report takes, the interpreter's start included, and how large it is."""
    nodes, per_node, steps = QUICK if quick else (NODES, RANKS_PER_NODE, STEPS)
    with tempfile.TemporaryDirectory(prefix="fsdpkit-report-") as work:
        run = synthetic(Path(work) / "synthetic-20260921-120000-0000", nodes, per_node, steps)
        html = Path(work) / "report.html"
        seconds = [_report_s(run, html) for _ in range(1 if quick else 5)]
        megabytes = html.stat().st_size / 1e6
    what = f"`fsdpkit report` of {nodes * per_node:,} ranks × {steps:,} steps"
    middle, most = statistics.median(seconds), 5.0
    return [
        Figure(
            "report", what, None, "seconds", "≤", 10.0, middle, None, middle,
            samples={"ours": seconds},
        ),
        Figure(
            "report-size", "its size", "5 MB", "ratio", "≤", 1.0, megabytes, most,
            megabytes / most, unit="MB", samples={"ours": [megabytes]},
        ),
    ]  # fmt: skip


def _report_s(run: Path, html: Path) -> float:
    started = time.perf_counter()
    argv = [sys.executable, "-m", "fsdpkit", "report", str(run), "-o", str(html)]
    subprocess.run(argv, check=True, capture_output=True)
    return round(time.perf_counter() - started, 3)


class _Stretch(NamedTuple):
    """One launch: the steps it did, and how it ended."""

    attempt: int
    launch: int
    first: int
    last: int
    trouble: dict[str, Any] | None


def synthetic(directory: Path, nodes: int, ranks_per_node: int, steps: int) -> Path:
    """A run's directory; the same for the same numbers. Returns it."""
    directory.mkdir(parents=True)
    paths, rng = RunPaths(directory), random.Random(nodes * steps)
    every = max(1, steps // 50)
    save(paths, _record(directory.name, nodes, ranks_per_node))
    paths.job.write_text(json.dumps(_job(nodes, ranks_per_node, steps, every)))
    now_s = _START_S + _QUEUED_S
    stretches = _stretches(nodes, steps, every)
    with open(paths.task().metrics, "wb") as metrics:
        for number in sorted({one.attempt for one in stretches}):
            attempt = paths.task().attempt(number)
            attempt.failures.mkdir(parents=True)
            began_s, orders = now_s, []
            now_s += _CHECK_S
            for one in (s for s in stretches if s.attempt == number):
                names = [_name(n) for n in range(nodes)]
                if one.launch:
                    names[nodes // 2] = _name(nodes)  # a spare took the lost node's place
                orders.append(
                    {"time_s": now_s, "event": "launch", "launch": one.launch, "nodes": names}
                )
                now_s += _LOAD_S
                for line in _metrics(one, now_s, nodes * ranks_per_node, steps, every, rng):
                    metrics.write(msgspec.json.encode(line) + b"\n")
                    now_s = line["time_s"]
                now_s += 20
                if one.trouble:
                    orders.append({"time_s": now_s, "event": "trouble", **one.trouble})
            _write_attempt(attempt, nodes, ranks_per_node, orders, began_s, now_s, stretches, rng)
            now_s += _REQUEUED_S
    newest = paths.task().checkpoints / f"step-{steps}"
    newest.mkdir(parents=True)
    return directory


def _stretches(nodes: int, steps: int, every: int) -> list[_Stretch]:
    """The first attempt crashes and starts anew, loses a node, and runs out of time; the second
    crashes once more at the end and is done in the third."""
    crash, lost, limit = (round(steps * share) for share in (0.2037, 0.4519, 0.7))
    back = [step // every * every for step in (crash, lost)]
    fault = {"cause": "crash", "message": f"rank 5 on {_name(0)}: ended by signal 9 (SIGKILL)"}
    gone = {"cause": "node-failure", "message": f"{_name(nodes // 2)}: no sign of life"}
    stop = {"cause": "stopped", "message": f"rank 0 on {_name(0)}: stopped early as asked"}
    return [
        _Stretch(0, 0, 1, crash, {**fault, "step": crash}),
        _Stretch(0, 1, back[0] + 1, lost, {**gone, "step": lost}),
        _Stretch(1, 0, back[1] + 1, limit, {**stop, "step": limit}),
        _Stretch(2, 0, limit + 1, steps, None),
    ]


def _name(node: int) -> str:
    return f"node{node + 1:03d}"


def _record(run_id: str, nodes: int, ranks_per_node: int) -> RunRecord:
    ended = {"4711": {"state": "COMPLETED", "source": "sacct", "exit_code": 0, "exit_signal": 0}}
    return RunRecord(
        id=run_id,
        state="submitted",
        created_s=_START_S,
        name="synthetic",
        site="generic",
        kind="slurm",
        job_id="4711",
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        submitted_s=_START_S,
        ended=ended,
        work_dir="/",
        version="0.1.0",
        template="torchrun",
        digests={},
    )


def _job(nodes: int, ranks_per_node: int, steps: int, every: int) -> dict[str, Any]:
    job = JobSpec(
        schema="fsdpkit.job/1",
        name="synthetic",
        entry="train.py",
        resources=Resources(nodes=nodes, gpus=ranks_per_node, time="2-0:00:00", spare=1),
        training=TrainingSettings(steps=steps),
    )
    return dict(msgspec.to_builtins(job))


def _metrics(
    one: _Stretch, begin_s: float, ranks: int, steps: int, every: int, rng: random.Random
) -> Iterator[dict[str, Any]]:
    now_s = begin_s
    for step in range(one.first, one.last + 1):
        step_s = _STEP_S * rng.uniform(0.97, 1.05) * (1.15 if 0.3 < step / steps < 0.5 else 1)
        now_s += step_s
        line: dict[str, Any] = {
            "time_s": round(now_s, 3),
            "step": step,
            "loss": 1.8 + 8 / (1 + 300 * step / steps) + rng.gauss(0, 0.04),
            "grad_norm": abs(rng.gauss(0.8, 0.1)),
            "lr": 3e-4 * (1 - step / steps),
            "step_time_s": step_s,
            "tokens_per_s": ranks * 4096 * 4 / step_s,
            "tokens": step * ranks * 4096,
            "skipped": 0,
            "tflops_per_device": 480 / step_s,
            "mfu": 0.52 / step_s,
            "memory_bytes": 61 * _GIB,
            "memory_reserved_bytes": 70 * _GIB,
        }
        if step % 10 == 0:
            times = np.random.default_rng(step).uniform(0.35, 0.36, ranks)
            if 0.3 < step / steps < 0.5:  # one rank, on one GPU that runs hot
                times[ranks // 3] *= 1.4
            slowest = int(times.argmax())
            line |= {"slowest_rank": slowest, "slowest_ratio": float(times[slowest] / 0.355)}
            line["rank_compute_s"] = times.round(4).tolist()
        yield line
        if step % every == 0:
            now_s += 25
            yield {"time_s": round(now_s, 3), "step": step, "eval_loss": line["loss"] + 0.05}
            now_s += 6
            written = {"checkpoint_bytes": 80 * 10**9, "checkpoint_blocked_s": 6.0}
            yield {
                "time_s": round(now_s, 3),
                "step": step,
                **written,
                "checkpoint_written_s": 41.0,
            }


def _write_attempt(
    attempt: AttemptPaths,
    nodes: int,
    ranks_per_node: int,
    orders: list[dict[str, Any]],
    began_s: float,
    ended_s: float,
    stretches: list[_Stretch],
    rng: random.Random,
) -> None:
    last = attempt.dir.name == f"attempt-{stretches[-1].attempt}"
    _write_lines(attempt.dir / "orders.jsonl", orders)
    action, cause = ("end", "done") if last else ("requeue", "node-failure")
    why = "all ranks are done" if last else "queued again"
    ending = {"action": action, "status": 0 if last else 71, "cause": cause, "why": why}
    attempt.ending.write_text(json.dumps(ending))
    for path in (attempt.ending, attempt.failures):
        moment_s = began_s if path == attempt.failures else ended_s
        os.utime(path, (moment_s, moment_s))
    for node in range(nodes + 1):
        ready = {
            "time_s": began_s + _CHECK_S,
            "event": "node-ready",
            "node": _name(node),
            "preflight_s": _CHECK_S - 2,
            "clock_offset_s": 0.0,
            "gpus": ranks_per_node,
            "software": {"python": "3.11.7", "torch": "2.13.0", "fsdpkit": "0.1.0"},
        }
        ended = {"time_s": ended_s - 1, "event": "node-ended", "node": _name(node)}
        _write_lines(attempt.node_events(node), [ready, ended])
        samples = _samples(node, ranks_per_node, began_s + _CHECK_S, ended_s, rng)
        _write_lines(attempt.node_samples(node), samples)


def _samples(
    node: int, gpus: int, begin_s: float, end_s: float, rng: random.Random
) -> Iterator[dict[str, Any]]:
    now_s, sent = begin_s, 0.0
    while now_s < end_s:
        busy = 0.0 if now_s < begin_s + _LOAD_S else 95.0 if node != 17 else 80.0
        interval_s = max(_SAMPLE_S, (now_s - begin_s) / 360)
        sent += interval_s * busy * 2.5e8 * rng.uniform(0.95, 1.05)
        yield {
            "time_s": round(now_s, 3),
            "cpu_percent": round(busy / 4 + 5 * rng.random(), 1),
            "memory_used_bytes": 200 * _GIB + node * _GIB // 8,
            "memory_total_bytes": 1024 * _GIB,
            "network_sent_bytes": int(sent),
            "network_received_bytes": int(sent * 1.01),
            "gpus": [
                {
                    "utilization_percent": round(busy * rng.uniform(0.96, 1.04)),
                    "memory_used_bytes": 72 * _GIB,
                    "memory_total_bytes": 80 * _GIB,
                    "temperature_c": 64,
                    "power_w": round(90 + busy * 6 * rng.uniform(0.97, 1.03), 1),
                }
                for _ in range(gpus)
            ],
        }
        now_s += interval_s


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.write_bytes(msgspec.json.Encoder().encode_lines(lines))
