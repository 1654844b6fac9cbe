"""A run on two nodes that a test lets grow, and a Slurm that says what the test wants."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.record import save
from tests.scheduling.records import recorded

RUN_ID = "t5-20261121-101500-3f2a"
RECORD = recorded(id=RUN_ID, ranks_per_node=2, submitted_s=2.0)


class WatchedRun:
    """`bin` belongs on PATH: its squeue and sacct print what `slurm_says` was given."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        for command in ("squeue", "sacct", "scontrol"):
            script = self.bin / command
            script.write_text(
                f"#!/bin/bash\necho {command} >>{self.bin}/asked\n"
                f"cat {self.bin}/{command}.txt 2>/dev/null || true\n"
            )
            script.chmod(0o755)
        self.paths = RunPaths(directory / "runs" / RUN_ID)
        self.paths.dir.mkdir(parents=True)
        save(self.paths, RECORD)
        self.paths.job.write_text(json.dumps({"name": "t5", "training": {"steps": 100}}))

    def slurm_says(self, state: str, reason: str = "None", nodes: str = "node[1-2]") -> None:
        self._answers("squeue", f"7|{state}|{reason}|{nodes}|2|3|4|0|2|/x|fsdpkit:{RUN_ID}\n")

    def slurm_remembers(self, state: str, exit_code: str = "0:0") -> None:
        # In this order: a job that neither knows would be one that Slurm has forgotten.
        self._answers("sacct", f"7|{state}|{exit_code}|0:0||node[1-2]|2|3|4|c||fsdpkit:{RUN_ID}\n")
        self._answers("squeue", "")

    def _answers(self, command: str, text: str) -> None:
        write_atomically(self.bin / f"{command}.txt", text)

    def times_asked(self) -> int:
        asked = self.bin / "asked"
        return asked.read_text().split().count("squeue") if asked.exists() else 0

    def begins(self, number: int = 0) -> None:
        attempt = self.paths.task().attempt(number)
        (attempt.failures).mkdir(parents=True)
        for node in (0, 1):
            name = f"node{node + 1}"
            _append(attempt.node_events(node), event="node-ready", node=name)
        _append(attempt.dir / "orders.jsonl", event="launch", launch=0, nodes=["node1", "node2"])
        attempt.rank_file(0, "out", 0).touch()

    def trains(self, *steps: int, loss: float | None = None, **fields: Any) -> None:
        for step in steps:
            told = {"loss": loss or 10.0 / step, "tokens_per_s": 1000.0 + step, "step_time_s": 0.5}
            _append(self.paths.task().metrics, step=step, **{**told, **fields})

    def samples(self, node: int, **fields: Any) -> None:
        number = self.paths.task().attempts()[-1]
        _append(self.paths.task().attempt(number).node_samples(node), **fields)

    def says(self, *lines: str) -> None:
        number = self.paths.task().attempts()[-1]
        with self.paths.task().attempt(number).rank_file(0, "out", 0).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def ends(self, action: str = "end", status: int = 0, why: str = "all ranks are done") -> None:
        number = self.paths.task().attempts()[-1]
        ending = {"action": action, "status": status, "cause": "done", "why": why}
        attempt = self.paths.task().attempt(number)
        attempt.verdict.write_text(json.dumps({"trouble": None, "why": ""}))
        attempt.ending.write_text(json.dumps(ending))


def _append(path: Path, **fields: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"time_s": time.time(), **fields}) + "\n")
