"""What a plan of a large job takes: `plan.py --only cost`, a minute and a half.

`fsdpkit plan` as it is typed, of T5-11B on 64 ranks, with a cache directory of its own. CPU seconds
are the system's count of its processes; memory is what they have resident together, pages that they
share counted once (Pss), looked at ten times a second. Wall time depends on who else is there: the
load is beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown, source
from benchmarks.measured import measured

ASKED = ("--gpu", "h100-80", "--nodes", "8", "--gpus", "8", "--no-calibration")
JOBS: dict[str, tuple[str, ...]] = {
    "T5-11B on 64 ranks": ("training.model.preset=t5-11b",),
    "the same, every block checkpointed": (
        "training.model.preset=t5-11b",
        "training.sharding.activation_checkpointing=full",
    ),
}
QUICK = ("training.model.preset=tiny-byt5",)
MOST_S, MOST_BYTES = 60.0, 10**9
EVERY_S = 0.1
MIB = 2**20


def planned(sets: tuple[str, ...]) -> dict[str, Any]:
    """One plan by a process of its own. Raises RuntimeError for one that is no answer."""
    words = [word for one in sets for word in ("--set", one)]
    with tempfile.TemporaryDirectory() as folder:
        started, load = time.perf_counter(), os.getloadavg()[0]
        before = os.times()
        process = subprocess.Popen(
            [sys.executable, "-m", "fsdpkit", "plan", *ASKED, *words],
            env={**os.environ, "XDG_CACHE_HOME": folder},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(EVERY_S)
        wall_s, after = time.perf_counter() - started, os.times()
        if process.returncode not in (0, 1):
            raise RuntimeError(process.stderr.read() if process.stderr else "no answer")
    return {
        "cpu_s": round(
            after.children_user - before.children_user
            + after.children_system - before.children_system, 2
        ),
        "wall_s": round(wall_s, 2),
        "peak_bytes": most,
        "load": round(load, 1),
    }  # fmt: skip


def _family(pid: int) -> Iterator[int]:
    """A process and those that it and they have started."""
    yield pid
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return
    for word in words:
        yield from _family(int(word))


def _resident(pid: int) -> int:
    """Bytes, each shared page divided by how many have it; 0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def measure(quick: bool, _: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    jobs = {"tiny-byt5 on 64 ranks": QUICK} if quick else JOBS
    rows = [{"job": name, **planned(sets)} for name, sets in jobs.items()]
    yield {
        "plan_cost": "of one plan",
        "measured": measured("torch"),
        "rows": rows,
    }


def all_within(result: Mapping[str, Any]) -> bool:
    """By CPU seconds: it runs on one core at a time, so that a quiet machine takes as long."""
    return all(r["cpu_s"] <= MOST_S and r["peak_bytes"] <= MOST_BYTES for r in result["rows"])


def table(result: Mapping[str, Any]) -> str:
    head = ("Plan", "CPU time", "≤ 60 s", "Peak memory", "≤ 1 GB", "Wall time", "Load before")
    lines = []
    for row in result["rows"]:
        lines.append((
            row["job"],
            f"{row['cpu_s']:.1f} s",
            _verdict(row["cpu_s"] <= MOST_S),
            f"{row['peak_bytes'] / MIB:,.0f} MiB",
            _verdict(row["peak_bytes"] <= MOST_BYTES),
            f"{row['wall_s']:.1f} s",
            f"{row['load']:g}",
        ))  # fmt: skip
    closing = (
        "A plan computes on one core at a time, so on an idle machine wall time equals CPU time; "
        "otherwise it also depends on the load."
    )
    return "\n\n".join([markdown(head, lines), closing, source(result["measured"])])


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"
