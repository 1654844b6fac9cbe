"""A run directory as agents and ranks leave it, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fsdpkit.runs.failures import FailureRecord, in_a_line
from fsdpkit.runs.layout import AttemptPaths, RunPaths, write_atomically
from fsdpkit.runs.record import save
from fsdpkit.scheduling.run import Run
from tests.scheduling.records import recorded

T0_S = 1_795_295_000.0


def make_run(directory: Path, **fields: Any) -> Run:
    """A run of two nodes with two ranks each, job 12."""
    directory.mkdir(parents=True, exist_ok=True)
    told = {"id": directory.name, "job_id": "12", "ranks_per_node": 2, "created_s": T0_S}
    record = recorded(**{**told, "template": "torchrun 2.0.0", **fields})
    save(RunPaths(directory), record)
    return Run(directory, record)


def append(path: Path, data: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def attempt_of(run: Run, number: int = 0) -> AttemptPaths:
    paths = run.paths.task().attempt(number)
    paths.failures.mkdir(parents=True, exist_ok=True)
    return paths


def launch(attempt: AttemptPaths, number: int, at_s: float) -> None:
    nodes = ["node1", "node2"]
    _event(attempt.dir / "orders.jsonl", at_s, event="launch", launch=number, nodes=nodes)


def trouble(attempt: AttemptPaths, at_s: float, message: str, cause: str = "crash") -> None:
    path = attempt.dir / "orders.jsonl"
    _event(path, at_s, event="trouble", cause=cause, message=message, step=None)


def failure(attempt: AttemptPaths, at_s: float, node: int, rank: int | None, line: str) -> None:
    """line: `3 rank 2 on node1: words`, of which an agent makes a record."""
    status, _, told = line.partition(" ")
    who, _, words = told.partition(": ")
    record = FailureRecord(
        by="agent" if rank is None else "rank",
        name=who.rpartition(" ")[2],
        rank=rank,
        status=int(status),
        words=words,
    )
    at_rank = "" if rank is None else f"-rank-{rank}"
    file = attempt.failures / f"{round(at_s * 1e9):020}-node-{node}{at_rank}"
    file.write_text(in_a_line(record))


def raised(attempt: AttemptPaths, rank: int, at_s: float, line: str, launch: int = 0) -> None:
    """line: `ValueError: words`."""
    kind, _, message = line.partition(": ")
    told = {"time_ns": int(at_s * 1e9), "chain": [{"type": kind, "message": message}]}
    text = json.dumps({"status": 1, **told}) + "\n"
    attempt.rank_file(rank, "raised.json", launch).write_text(text)


def ready(attempt: AttemptPaths, node: int, clock_offset_s: float = 0.0) -> None:
    path = attempt.node_events(node)
    told = {"node": f"node{node + 1}", "clock_offset_s": clock_offset_s}
    _event(path, T0_S - 1, event="node-ready", **told)


def ending(attempt: AttemptPaths, cause: str, why: str = "") -> None:
    told = {"action": "end", "status": int(cause != "done"), "cause": cause, "why": why}
    write_atomically(attempt.ending, json.dumps(told))


def _event(path: Path, at_s: float, **fields: Any) -> None:
    append(path, json.dumps({"time_s": at_s, **fields}) + "\n")
