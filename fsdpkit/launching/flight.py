"""torch's flight recorder: enabled for the ranks of any script, and read after they have hung.

It keeps each rank's last collectives at almost no cost. NCCL's watchdog dumps it when a collective
times out. NCCL's monitor dumps it when somebody writes to the rank's pipe, which is how the agent
asks a rank that hangs in anything else. Source of the variables and the pipe:
torch/csrc/distributed/c10d/FlightRecorder.cpp and ProcessGroupNCCL.hpp, torch 2.13.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fsdpkit.launching.job_log import say
from fsdpkit.runs.flight_record import DUMP, in_words, read_flight_record
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths

_ANALYSIS_S = 180.0
_OTHERS_WAIT_S = 60.0
_NO_DUMPS_S = 3.0
# Slurm sends its warnings to every process of a step, even after another node's agent has ended.
_SHIELDED = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')
_OTHER_NAMES = {"TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}


def switched_on(
    environ: Mapping[str, str], attempt: AttemptPaths, launch: int, node: HeartbeatDir
) -> dict[str, str]:
    """The environment that ranks need to leave their dumps in the attempt's directory. Nothing set
    by the user is changed. Makes the directory, closed to others; if that fails, or no GPU takes
    part, a rank that has something to dump makes it."""
    dumps = attempt.flight_dumps(launch)
    if environ.get("FSDPKIT_DEVICE", "gpu") != "cpu":
        with contextlib.suppress(OSError):
            dumps.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(dumps / DUMP),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(node.flight),
    }
    return {
        name: value
        for name, value in wanted.items()
        if name not in environ and _OTHER_NAMES.get(name, name) not in environ
    }


def may_be_asked(node: HeartbeatDir) -> bool:
    """Whether a rank of this node has opened its pipe."""
    return any(node.dir.glob("flight-*.pipe"))


def ask(node: HeartbeatDir, ranks: Iterable[int]) -> None:
    """Make these ranks dump their last collectives, if NCCL monitors them."""
    for rank in ranks:
        # No reader any more, or never opened: ENXIO, ENOENT.
        with contextlib.suppress(OSError):
            pipe = os.open(f"{node.flight}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                os.write(pipe, b"1\n")
            finally:
                os.close(pipe)


@dataclass
class Analyses:
    """The analyses of an attempt's launches, each in a process beside the next launch."""

    _running: list[tuple[subprocess.Popen[bytes], AttemptPaths, int, float]] = field(
        default_factory=list
    )

    def start(self, attempt: AttemptPaths, launch: int, world_size: int) -> None:
        """Begin with the dumps of this launch, some of which may still be written."""
        command = [
            *_SHIELDED,
            *(sys.executable, "-m", "fsdpkit.launching.flight_analysis"),
            *(str(attempt.flight_dumps(launch)), str(attempt.flight_record(launch))),
            *(str(launch), str(world_size)),
        ]
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # No module in the job's working directory can replace one of torch's.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
            deadline = time.monotonic() + _ANALYSIS_S
            self._running.append((process, attempt, launch, deadline))

    def close(self) -> None:
        """Wait for them, each at most for its time limit, and say what they found."""
        for process, attempt, launch, deadline in self._running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(Exception):  # unreadable dumps are left to `diagnose`
                record = read_flight_record(attempt.flight_record(launch))
                if record is not None and (words := in_words(record)):
                    say(f"flight recorder: {words}")


def wait_for_record(attempt: AttemptPaths, launch: int, every_s: float) -> None:
    """On a node other than the head: do not end before the head's agent has the record, which is
    looked for `every_s`. Slurm ends a whole step at once when the first of its tasks fails."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < _OTHERS_WAIT_S:
        if attempt.flight_record(launch).exists():
            return
        if waited_s > _NO_DUMPS_S and not any(attempt.flight_dumps(launch).glob(f"{DUMP}*")):
            return
        time.sleep(every_s)
