"""The agent sees each of its ranks end, by itself or by the agent's hand."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch


def test_ranks_that_ended_by_themselves_are_told_from_those_that_were_ended() -> None:
    from fsdpkit.launching.ranks import _Ends

    programs = {0: "import time; time.sleep(600)", 1: "raise SystemExit(7)", 2: "", 3: "input()"}
    processes = {
        local: subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        for local, program in programs.items()
    }
    handlers = {k: SimpleNamespace(proc=process) for k, process in processes.items()}
    ends = _Ends(SimpleNamespace(subprocess_handlers=handlers), {k: 4 + k for k in programs})
    try:
        processes[1].wait(), processes[2].wait()
        ends.look()
        assert ends.failed_alone().keys() == {5}
        processes[0].kill()
        processes[0].wait()
        ends.look(killed=True)
        found = ends.by_rank()
        assert {rank: (e.status, e.killed) for rank, e in found.items()} == {
            4: (137, True),
            5: (7, False),
            6: (0, False),
            7: (None, True),  # the kernel does not let it go
        }
        assert found[5].time_s <= found[4].time_s
        assert ends.failed_alone().keys() == {5}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
