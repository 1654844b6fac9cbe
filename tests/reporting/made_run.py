"""Run directories as agents, trainer and batch shell leave them, made in a moment.

Slurm's last word is on record, so that nobody is asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fsdpkit.runs.layout import RunPaths, TaskPaths
from fsdpkit.runs.record import save
from fsdpkit.scheduling.run import Run
from tests.scheduling.records import recorded

T0 = 1_790_000_000.0
"""When runs are submitted, Unix time."""
JOB = "7"


def made_run(
    directory: Path,
    *,
    state: str | None = "COMPLETED",
    exit_code: int = 0,
    nodes: int = 2,
    ranks_per_node: int = 2,
    array: list[int] | None = None,
    job: dict[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """state: of every job, as Slurm told it at the end; None: nobody knows it."""
    directory.mkdir(parents=True)
    ids = [JOB] if array is None else [f"{JOB}_{task}" for task in array]
    told = {"state": state, "source": "sacct", "exit_code": exit_code, "exit_signal": 0}
    given: dict[str, Any] = {
        "id": directory.name,
        "created_s": T0,
        "submitted_s": T0,
        "name": "made",
    }
    given |= {"job_id": JOB, "nodes": nodes, "ranks_per_node": ranks_per_node, "array": array}
    given |= {"kind": "local" if state is None else "slurm", "version": "0.1.0"}
    given |= {"ended": None if state is None else dict.fromkeys(ids, told), "template": "torchrun"}
    record = recorded(**{**given, **fields})
    save(RunPaths(directory), record)
    RunPaths(directory).job.write_text(
        json.dumps(job or {"name": "made", "training": {"steps": 20}})
    )
    return Run(directory, record)


def write_lines(path: Path, *lines: dict[str, Any] | str) -> None:
    """Append records; a text is written as it stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        for line in lines:
            file.write(line if isinstance(line, str) else json.dumps(line) + "\n")


def trains(
    task: TaskPaths, first: int, last: int, at_s: float, *, step_s: float = 1.0, **fields: Any
) -> float:
    """Metrics of the steps from `first` to `last`, begun at `at_s`; when the last was done."""
    for step in range(first, last + 1):
        at_s += step_s
        told = {"loss": 5.0 / step, "step_time_s": step_s, "tokens_per_s": 100.0 + step}
        write_lines(task.metrics, {"time_s": at_s, "step": step, **told, **fields})
    return at_s


def saves(
    task: TaskPaths, step: int, at_s: float, blocked_s: float, *, on_disk: bool = True
) -> float:
    """A checkpoint for which training stood still; when it went on."""
    sizes = {"checkpoint_bytes": 8, "checkpoint_written_s": 1.0}
    line = {"time_s": at_s + blocked_s, "step": step, "checkpoint_blocked_s": blocked_s, **sizes}
    write_lines(task.metrics, line)
    if on_disk:
        (task.checkpoints / f"step-{step}").mkdir(parents=True)
    return at_s + blocked_s


def starts(
    task: TaskPaths,
    number: int,
    begin_s: float,
    *,
    ready_s: float = 10.0,
    nodes: Iterable[str] = ("node1", "node2"),
    offsets_s: Iterable[float] = (),
) -> None:
    """An attempt whose nodes are ready after `ready_s`; with how far their clocks are off."""
    attempt = task.attempt(number)
    attempt.failures.mkdir(parents=True)
    off = [*offsets_s, *[0.0] * 100]
    for place, name in enumerate(nodes):
        write_lines(
            attempt.node_events(place),
            {
                "time_s": begin_s + ready_s + off[place],
                "event": "node-ready",
                "node": name,
                "preflight_s": ready_s,
                "clock_offset_s": off[place],
            },
        )
    os.utime(attempt.failures, (begin_s, begin_s))


def launches(
    task: TaskPaths,
    number: int,
    at_s: float,
    launch: int = 0,
    nodes: Iterable[str] = ("node1", "node2"),
) -> None:
    order = {"time_s": at_s, "event": "launch", "launch": launch, "nodes": [*nodes]}
    write_lines(task.attempt(number).dir / "orders.jsonl", order)


def breaks(
    task: TaskPaths,
    number: int,
    at_s: float,
    step: int,
    message: str = "boom",
    cause: str = "crash",
) -> None:
    order = {"time_s": at_s, "event": "trouble", "cause": cause, "message": message, "step": step}
    write_lines(task.attempt(number).dir / "orders.jsonl", order)


def ends(task: TaskPaths, number: int, at_s: float, cause: str = "done", why: str = "") -> None:
    action = "end" if cause == "done" else "requeue"
    path = task.attempt(number).ending
    path.write_text(json.dumps({"action": action, "status": 0, "cause": cause, "why": why}))
    os.utime(path, (at_s, at_s))
