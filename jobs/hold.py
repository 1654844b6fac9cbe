"""What `fsdpkit hold` runs, once on each node: it waits, with torch loaded, for runs.

    torchrun ... jobs/hold.py --idle 900

Beside it, on each node, is the process that agents of runs are forked from
(`fsdpkit/launching/holder.py`). The head node's ends the hold when no run was on any node for as
long as `--idle` says, in seconds, and says so before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import fsdpkit
from fsdpkit.launching import fork_safety
from fsdpkit.launching.held import VARIABLE
from fsdpkit.runs.layout import RunPaths

LOOK_S = 1.0
WARN_S = 120.0
"""How long before its end an idle hold says so, if it may be idle for twice as long."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int, default=900, metavar="S")
    limit_s = parser.parse_args().idle
    run = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"]))
    rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    holder = start_holder(run.busy(rank))
    began_s, warned = time.time(), False
    while holder.poll() is None and not fsdpkit.stop_requested():
        time.sleep(LOOK_S)
        idle_s = time.time() - max(began_s, *(used_s(run.busy(node)) for node in range(nodes)))
        if rank or idle_s < max(limit_s / 2, limit_s - WARN_S):
            warned = False
        elif idle_s >= limit_s:
            print(f"idle for {idle_s:.0f} s: the hold ends", flush=True)
            run.task().stop_requested.write_text("idle\n")
        elif not warned:
            print(f"idle: the hold ends in {limit_s - idle_s:.0f} s", flush=True)
            warned = True
    if holder.poll() is not None:
        sys.exit(f"what waits for runs here has ended with status {holder.returncode}")
    holder.kill()


def used_s(path: Path) -> float:
    """When a run was last on the node, Unix time; 0 for never."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def start_holder(busy: Path) -> subprocess.Popen[bytes]:
    """With the environment that agents of runs on this hold are going to have."""
    environ = {k: v for k, v in os.environ.items() if not fork_safety.of_ranks(k)}
    environ[VARIABLE] = Path(os.environ["FSDPKIT_RUN_DIR"]).name
    cores, gpus = (int(os.environ[n]) for n in ("SLURM_CPUS_PER_TASK", "FSDPKIT_GPUS_PER_NODE"))
    if environ.get("OMP_NUM_THREADS") == str(cores):  # the script's default, for one rank
        environ["OMP_NUM_THREADS"] = str(max(1, cores // gpus))
    start = environ["FSDPKIT_START"] = os.environ["FSDPKIT_START"]
    command = [sys.executable, "-u", "-c", start, "fsdpkit.launching.holder", str(busy)]
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, cwd="/")


if __name__ == "__main__":
    main()
