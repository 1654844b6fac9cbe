"""What monitoring and preflight see of a real GPU: NVML's readings, at rest and at work, and each
check of a node before training.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

import msgspec
import torch

from benchmarks.gpu_parts.part import Part, Row
from fsdpkit.launching import nvml, preflight
from fsdpkit.launching.torch_release import too_old

_BUSY = """
import torch, time
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 8
while time.time() < end:
    for _ in range(20):
        y = x @ x
    torch.cuda.synchronize()
"""


def run(part: Part) -> None:
    lacks = None if nvml.handles(os.environ) else "NVML finds no GPU here"
    if part.dry:
        lacks = None
    part.measure("NVML at rest", functools.partial(readings, part), lacks=lacks)
    part.measure("NVML at work", functools.partial(at_work, part), lacks=lacks, needs_s=15)
    for name in preflight.CHECKS:
        # This measurement takes torch from 2.11 on, training with fsdpkit's own agent does not.
        lacks = too_old(torch.__version__) if name == "software" else None
        part.measure(
            f"preflight {name}", functools.partial(check, part, name), lacks=lacks, needs_s=5
        )


def readings(part: Part) -> Row:
    """Of the first GPU, and which questions it leaves unanswered."""
    began = time.perf_counter()
    states = [msgspec.to_builtins(state) for state in nvml.gpu_states(os.environ)]
    first = states[0] if states else {}
    return {
        "took_ms": 1e3 * (time.perf_counter() - began),
        "gpus": len(states),
        "state": first,
        "unanswered": [key for key, value in first.items() if value is None],
    }


def at_work(part: Part) -> Row:
    """While another process multiplies matrices: its clock, and that it is seen."""
    if part.dry:
        return readings(part)
    with subprocess.Popen([sys.executable, "-c", _BUSY], stderr=subprocess.DEVNULL) as busy:
        time.sleep(6)
        found = readings(part)
        seen = [str(busy.pid) in process for process in found["state"].get("processes") or []]
        found["sees_process"] = any(seen)
        busy.kill()
    return found


def check(part: Part, name: str) -> Row:
    """What the check of a node finds for a job of one rank here; its error makes the row fail."""
    attempt = part.scratch / "attempt"
    attempt.mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "FSDPKIT_RANKS_PER_NODE": "1",
        "FSDPKIT_ATTEMPT_DIR": str(attempt),
        "FSDPKIT_DEVICE": "cpu" if part.dry else "gpu",
    }
    began = time.perf_counter()
    found = preflight.CHECKS[name](environ)
    return {"took_ms": 1e3 * (time.perf_counter() - began), "found": msgspec.to_builtins(found)}
