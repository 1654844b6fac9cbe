"""What `fsdpkit hold` runs, once on each node: it waits, with torch loaded, for runs.

    torchrun ... jobs/hold.py --idle 900

Beside it, on each node, is the process that agents of runs are forked from
(`fsdpkit/launching/holder.py`). The head node's ends the hold when no run was on any node for as
long as `--idle` says, in seconds, and says so before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fsdpkit
from fsdpkit.launching import fork_safety
from fsdpkit.launching.held import VARIABLE
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.outcomes import WARNING

LOOK_S = 1.0
EVERY_S = 10.0
"""How often a node with a run says so, and the head node looks, by files that are shared."""
LEAVE_S = 30.0
"""How long runs may take to stop once the hold ends; at its time limit as long as they have."""
WARN_S = 120.0
"""How long before its end an idle hold says so, if it may be idle for twice as long."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int, default=900, metavar="S")
    limit_s = parser.parse_args().idle
    run = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"]))
    rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    every_s = min(EVERY_S, limit_s / 4)
    holder = start_holder(run.busy(rank), every_s)
    idle = Idle([run.busy(node) for node in range(nodes)], limit_s, every_s)
    while holder.poll() is None and not fsdpkit.stop_requested():
        time.sleep(LOOK_S)
        if rank == 0 and idle.too_long():
            run.task().stop_requested.write_text("idle\n")
    if (status := holder.poll()) is not None:
        print(f"what waits for runs here has ended with status {status}", file=sys.stderr)
        if status < 0:  # as it did, so that this node's agent says by which signal
            os.kill(os.getpid(), -status)
        sys.exit(1)
    holder.terminate()  # which asks the runs that are on it to stop
    at_limit = run.task().stop_requested.read_text().strip() == WARNING
    with contextlib.suppress(subprocess.TimeoutExpired):
        holder.wait(None if at_limit else LEAVE_S)
    holder.kill()


class Idle:
    """For how long no run was on any node. Whether a node's file has changed counts, not when: the
    file server has a clock of its own."""

    def __init__(self, files: Sequence[Path], limit_s: float, every_s: float) -> None:
        self.files, self.limit_s, self.every_s = files, limit_s, every_s
        self.seen: list[float | None] = []
        self.since_s = self.looked_s = time.monotonic()
        self.warned = False

    def too_long(self) -> bool:
        """Looks now and then, and says what is to come."""
        now_s = time.monotonic()
        if now_s - self.looked_s < self.every_s:
            return False
        self.looked_s, before = now_s, self.seen
        self.seen = [changed_s(path) for path in self.files]
        if self.seen != before:
            self.since_s, self.warned = now_s, False
        left_s = self.limit_s - (now_s - self.since_s)
        if left_s <= 0:
            print(f"idle for {now_s - self.since_s:.0f} s: the hold ends", flush=True)
        elif left_s <= min(self.limit_s / 2, WARN_S) and not self.warned:
            print(f"idle: the hold ends in {left_s:.0f} s", flush=True)
            self.warned = True
        return left_s <= 0


def changed_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def start_holder(busy: Path, every_s: float) -> subprocess.Popen[bytes]:
    """With the environment that agents of runs on this hold are going to have."""
    environ = {k: v for k, v in os.environ.items() if not fork_safety.of_ranks(k)}
    environ[VARIABLE] = Path(os.environ["FSDPKIT_RUN_DIR"]).name
    cores, gpus = (int(os.environ[n]) for n in ("SLURM_CPUS_PER_TASK", "FSDPKIT_GPUS_PER_NODE"))
    if environ.get("OMP_NUM_THREADS") == str(cores):  # the script's default, for one rank
        environ["OMP_NUM_THREADS"] = str(max(1, cores // gpus))
    start = environ["FSDPKIT_START"] = os.environ["FSDPKIT_START"]
    command = [sys.executable, "-u", "-c", start, "fsdpkit.launching.holder"]
    command += [str(busy), str(every_s)]
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, cwd="/")


if __name__ == "__main__":
    main()
