"""What `fsdpkit plan` says of each row that was measured: bytes, and seconds of a step.

Computed on the CPU, so that it may also be done once the GPU is gone: `gpu.py --only plans`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import Part, Row

ROOT = Path(__file__).resolve().parents[2]
OF = ("step", "memory")


def run(part: Part) -> None:
    known = {row["name"] for row in part.known("plans")}
    measured = {
        row["name"]: row for name in OF for row in part.known(name)[: 1 if part.dry else None]
    }
    for name, row in measured.items():
        if name not in known:
            part.measure(name, functools.partial(planned, part, row), needs_s=60)


def planned(part: Part, row: Row) -> Row:
    """Memory with compiled blocks where they were; speed is planned without a look at that."""
    compiled = "compile=true" in row["words"]
    answer = plan(part, row, *(["--compiled"] if compiled else []))
    memory = answer["plans"][0]["memory"]
    speed = (plan(part, row) if compiled else answer)["speed"]
    return {
        "allocated_bytes": memory["allocated_bytes"],
        "reserved_bytes": memory["reserved_bytes"],
        "step_s": speed["step_s"] if speed else None,
    }


def plan(part: Part, row: Row, *options: str) -> dict[str, Any]:
    source, target = row["lengths"]
    rows = (f"batch_size={row['rows']}", f"data.source_length={source}")
    argv = [sys.executable, "-m", "fsdpkit", "plan", "--nodes", "1", "--gpus", "1"]
    argv += ["--gpu", part.card, "--no-calibration", "--json", *options]
    for word in (*row["words"], *rows, f"data.target_length={target}"):
        argv += ["--set", f"training.{word}"]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        argv, env=environ, cwd=part.scratch, capture_output=True, text=True, check=False
    )
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if "plans" not in answer:
        raise RuntimeError(f"fsdpkit plan ended with {done.returncode}: {done.stderr[-500:]}")
    return answer
