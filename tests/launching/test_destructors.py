"""What a process still does at its end when torch's C++ destructors are left out."""

from __future__ import annotations

import sys

from tests.programs import ran


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
    done = ran([sys.executable, "-c", program], timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (75, "out atexit\n", "err")
