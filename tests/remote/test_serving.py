"""The login node's side alone: what becomes of a command when the laptop is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fsdpkit.remote.protocol import RemoteRequest

# A command that waits; it is interrupted soon, and as good as never ended.
SERVE = """
import sys, time
from fsdpkit.remote import serving

def command():
    try:
        print("waits", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
    finally:
        print("left", flush=True)

sleep, graces = time.sleep, iter((0.1, 300))
time.sleep = lambda s: sleep(next(graces) if s == serving._GRACE_S else s)
sys.exit(serving.serve(sys.argv[1], command))
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_is_interrupted_when_the_laptop_is_gone(terminal: bool) -> None:
    """Its input ends, or its terminal hangs up; what it was doing has time to finish first."""
    request = RemoteRequest("run", ("watch",), terminal=terminal)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, request.encode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        if terminal:
            os.killpg(process.pid, signal.SIGHUP)
        else:
            process.stdin.close()
        assert process.stdout.read() == "interrupted\nleft\n"
        assert process.wait() == 130


def test_a_request_of_another_protocol_is_answered_with_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fsdpkit", "_remote", RemoteRequest("hello", protocol=99).encode()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert '"version"' in done.stdout


def test_what_a_command_leaves_behind_is_a_traceback_not_silence() -> None:
    program = "import sys\nfrom fsdpkit.remote import serving\n"
    program += "def command(): raise ZeroDivisionError('unforeseen')\n"
    program += "sys.exit(serving.serve(sys.argv[1], command))"
    done = subprocess.run(
        [sys.executable, "-c", program, RemoteRequest("run", ("watch",)).encode()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "unforeseen" in done.stderr) == (1, True)


LATE = """
import os
fork = os.fork

def late():
    child = fork()
    if child:
        time.sleep(0.5)
    return child

os.fork = late
"""


def test_a_terminal_that_hangs_up_as_the_command_starts_ends_it() -> None:
    request = RemoteRequest("run", ("watch",), terminal=True)
    script = SERVE.replace("sleep, graces", f"{LATE}sleep, graces")
    with subprocess.Popen(
        [sys.executable, "-c", script, request.encode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.killpg(process.pid, signal.SIGHUP)
        assert process.stdout.read() == "interrupted\nleft\n"
