"""An agent of a run on a hold: has the hold's process on this node (`holder.py`) fork it.

The process that srun started stays, passes signals on and ends as the forked one does. If none can
be forked it runs itself, as without a hold, and its connection says as long that the hold is used.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fsdpkit.launching.job_log import say

if TYPE_CHECKING:
    from fsdpkit.runs.layout import AttemptPaths
    from fsdpkit.runs.outcomes import AttemptVerdict

VARIABLE = "FSDPKIT_HOLD"
"""Name of the hold's run, in the environment of runs on it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
LIMITS = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE")
_CREDENTIALS = struct.Struct("3i")
_ANSWER_S = 30.0


def address_of(hold: str, node: str) -> str:
    """Where the holder of a hold listens on a node: a name in Linux's abstract namespace."""
    return f"\0fsdpkit-{os.getuid()}-{hold}-{node}"


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's (unix(7), SO_PEERCRED)."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def process_of(connection: socket.socket) -> int:
    """Id of the process at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[0])


def hand_over(environ: Mapping[str, str]) -> None:
    """Be replaced by a forked agent, if this run is on a hold that can fork one. Returns if this
    process has to be the agent itself."""
    if (hold := environ.get(VARIABLE)) is None:
        return
    from fsdpkit.launching.fork_server import receive, send

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(address_of(hold, environ.get("SLURMD_NODENAME", "")))
        if not is_own(connection):
            raise OSError("it is another user's")
        send(connection, _request(environ), [0, 1, 2])
        answer = receive(connection)[0] or {}
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        say(f"the hold's process on this node does not answer ({error}): torch is imported anew")
        return
    if "pid" in answer:
        _stand_for(connection, int(answer["pid"]), environ)
    # As a file that this process was started with, it is no obstacle to forking.
    os.set_inheritable(connection.detach(), True)
    say(f"torch is imported anew: {answer.get('cold', 'the hold has ended')}")


def _request(environ: Mapping[str, str]) -> dict[str, Any]:
    os.umask(umask := os.umask(0o77))
    return {
        "executable": sys.executable,
        "command": sys.orig_argv,
        "argv": sys.argv,
        "path": sys.path,
        "environ": dict(environ),
        "directory": os.getcwd(),
        "umask": umask,
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in LIMITS],
    }


def _stand_for(connection: socket.socket, pid: int, environ: Mapping[str, str]) -> NoReturn:
    """Pass signals on to the agent, and end with its status."""
    from fsdpkit.launching.fork_server import receive

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    try:
        answer = receive(connection)[0] or {}
    except OSError:
        answer = {}
    status = int(answer.get("status", -signal.SIGKILL))
    if status and answer.get("hold_ends", True):
        _record_end_of_hold(status, environ)
    if status < 0:
        with contextlib.suppress(OSError):  # of SIGKILL there is no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _record_end_of_hold(status: int, environ: Mapping[str, str]) -> None:
    """Leave word that the run did not end by itself, for the batch shell and `diagnose`."""
    from fsdpkit.launching.node_failure import record_failure
    from fsdpkit.runs.failures import HOLD_GONE, FailureRecord, Level
    from fsdpkit.runs.layout import AttemptPaths

    name = environ.get("SLURMD_NODENAME", "")
    failure = FailureRecord(
        by="agent",
        rule=HOLD_GONE,
        status=status if status > 0 else 128 - status,
        cause="cancelled",
        level=Level.OUTSIDE,
        words=f"the hold {environ[VARIABLE]} has ended",
        time_ns=time.time_ns(),
    )
    attempt = AttemptPaths(Path(environ["FSDPKIT_ATTEMPT_DIR"]))
    record_failure(failure, attempt, int(environ["SLURM_NODEID"]), name)


def end_of_hold(attempt: AttemptPaths, verdict: AttemptVerdict | None) -> str:
    """What is on record of that, unless a failure of its own had ended the run before."""
    from fsdpkit.runs.failures import HOLD_GONE
    from fsdpkit.runs.history import failures_in

    if verdict is not None and verdict.by_itself and verdict.trouble and not verdict.trouble.lost:
        return ""
    told = (each.record for each in failures_in(attempt))
    return next((one.words for one in told if one is not None and one.rule == HOLD_GONE), "")
