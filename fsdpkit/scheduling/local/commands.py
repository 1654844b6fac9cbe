"""srun, scontrol and scancel for a script on the local cluster.

Only what our templates use, and what a person may add to them by hand (`--label`); anything else is
refused by name, because a stand-in that ignores an option would hide a difference to Slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from fsdpkit.runs.job_ids import job_of
from fsdpkit.scheduling.local import store

KILL_WAIT_S = 10.0
"""Between SIGTERM and SIGKILL, as Slurm's KillWait."""


def write_commands(directory: Path) -> None:
    """Executables named srun, scontrol and scancel, for a job's PATH."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for name in ("srun", "scontrol", "scancel"):
        path = directory / name
        # The interpreter by absolute path: the script may activate another environment.
        path.write_text(
            f"#!{sys.executable} -I\nimport sys\nsys.path[:0] = {sys.path!r}\n"
            f"from fsdpkit.scheduling.local.commands import {name}\n"
            f"sys.exit({name}(sys.argv[1:]))\n"
        )
        path.chmod(0o700)


def scontrol(argv: list[str]) -> int:
    """`scontrol show hostnames [LIST]`, also as `show hostname`."""
    if argv[:1] != ["show"] or argv[1:2] not in (["hostnames"], ["hostname"]) or len(argv) > 3:
        print("the local cluster's scontrol only knows: show hostnames [LIST]", file=sys.stderr)
        return 1
    nodes = argv[2] if len(argv) == 3 else os.environ["SLURM_JOB_NODELIST"]
    print("\n".join(nodes.split(",")))
    return 0


def scancel(argv: list[str]) -> int:
    """`scancel JOB…`."""
    jobs = [store.find(job_of(one)) for one in argv]
    for one, job in zip(argv, jobs, strict=True):
        if job is None:
            print(f"the local cluster knows no job {one}", file=sys.stderr)
            return 1
        job.cancel_requested.touch(mode=0o600)
    return 0


def _srun_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False, add_help=False)
    parser.add_argument("--nodes", "-N", type=int, default=int(os.environ["SLURM_JOB_NUM_NODES"]))
    parser.add_argument("--ntasks-per-node", type=int, choices=[1], default=1)
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--mpi", choices=["none"])
    parser.add_argument("--kill-on-bad-exit", type=int, choices=[0, 1], default=0)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--wait", type=float, default=0)
    parser.add_argument("--unbuffered", action="store_true")
    parser.add_argument("--label", action="store_true")
    parser.add_argument("--open-mode", choices=["append", "truncate"], default="truncate")
    parser.add_argument("--output")
    parser.add_argument("--error")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
    if not options.command or not 1 <= options.nodes <= len(nodes):
        parser.error(f"needs a command, and 1 to {len(nodes)} nodes")
    return options


def _open(pattern: str | None, task: int, mode: str) -> IO[bytes] | None:
    if pattern is None:
        return None
    values = {"t": str(task), "j": os.environ["SLURM_JOB_ID"], "%": "%"}
    return open(re.sub(r"%([tj%])", lambda m: values[m[1]], pattern), mode)


def srun(argv: list[str]) -> int:
    """One task on each node, standard input to all, the highest exit status back."""
    options = _srun_options(argv)
    script = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    mode = "ab" if options.open_mode == "append" else "wb"
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")[: options.nodes]
    tasks = []
    for number, node in enumerate(nodes):
        environment = os.environ | {
            "SLURM_NODEID": str(number),
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": "0",
            **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), "0"),
            "SLURM_STEP_NODELIST": ",".join(nodes),
            "SLURMD_NODENAME": node,
        }
        with contextlib.ExitStack() as files:
            out, err = (_open(p, number, mode) for p in (options.output, options.error))
            for file in (out, err):
                if file is not None:
                    files.enter_context(file)
            task = subprocess.Popen(
                options.command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err
            )
        assert task.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            task.stdin.write(script)
            task.stdin.close()
        tasks.append(task)
    return _wait(tasks, options.kill_on_bad_exit == 1, options.wait)


def _wait(tasks: list[subprocess.Popen[bytes]], kill_on_bad_exit: bool, wait_s: float) -> int:
    """Wait for all; end the rest after a failure, or `wait_s` after the first one's end."""
    deadline = kill_at = float("inf")
    told = False
    while any(task.poll() is None for task in tasks):
        now = time.monotonic()
        statuses = [s for task in tasks if (s := task.poll()) is not None]
        if statuses and wait_s and deadline == float("inf"):
            deadline = now + wait_s
        if not told and ((kill_on_bad_exit and any(statuses)) or now > deadline):
            _signal(tasks, signal.SIGTERM)
            told, kill_at = True, now + KILL_WAIT_S
        if now > kill_at:
            _signal(tasks, signal.SIGKILL)
        time.sleep(0.05)
    return max(128 - s if s < 0 else s for s in (task.wait() for task in tasks))


def _signal(tasks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """To every process of the tasks that still run, as Slurm signals a step."""
    import psutil

    for task in tasks:
        if task.poll() is not None:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(task.pid)
            for process in [*top.children(recursive=True), top]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
