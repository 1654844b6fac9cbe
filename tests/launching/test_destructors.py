"""What a process still does at its end when torch's C++ destructors are left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, ctypes, sys
from fsdpkit.launching.destructors import skip_destructors

libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p

def at_exit_of_c(text):
    libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(text)), None)

class Speaks:
    def __del__(self):
        libc.puts(b"deleted")

atexit.register(lambda: libc.puts(b"atexit"))
at_exit_of_c(b"loaded before")
skip_destructors(ENVIRON)
at_exit_of_c(b"loaded later")
speaks = Speaks()
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ["atexit", "deleted", "loaded later"]),
        ({"LD_PRELOAD": ""}, ["atexit", "deleted", "loaded later"]),
        ({"LD_PRELOAD": "libdarshan.so"}, ["atexit", "deleted", "loaded later", "loaded before"]),
        ({"LD_AUDIT": "tool.so"}, ["atexit", "deleted", "loaded later", "loaded before"]),
        (
            {"CUDA_INJECTION64_PATH": "tool.so"},
            ["atexit", "deleted", "loaded later", "loaded before"],
        ),
    ],
    ids=["alone", "no-tool", "profiled", "audited", "injected"],
)
def test_all_is_heard_but_what_was_loaded_before(environ: dict[str, str], said: list[str]) -> None:
    """And what C has printed comes out, with the program's own status."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("ENVIRON", repr(environ))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (3, said, "")


def test_an_agent_leaves_with_its_status_and_all_that_it_said() -> None:
    program = """
import atexit, sys
from fsdpkit.launching.destructors import leave

class Never:
    def __del__(self):
        print("taken apart")

never = Never()
atexit.register(print, "atexit")
sys.stdout.write("out ")
sys.stderr.write("err")
leave(75)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, "out atexit\n", "err")
