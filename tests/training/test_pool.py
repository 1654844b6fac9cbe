"""What tests on the pool may rely on: ranks as torchrun starts them, and cases that stay apart."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import environment, run_ranks, run_torchrun, the_pool

pytestmark = pytest.mark.torch
Write = Callable[[str, str], Path]

DESCRIBE = """
    import json, os, sys

    def described():
        rank = os.environ["RANK"]
        ours = {name: value for name, value in os.environ.items() if name.startswith((
            "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_RANK", "MASTER_ADDR", "FSDPKIT_", "OMP_"))}
        found = {"environment": ours, "argv": sys.argv, "name": __name__, "file": __file__,
                 "path": sys.path[0], "main": described.__module__,
                 "directory": os.getcwd(), "unbuffered": sys.stdout.write_through}
        with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
            json.dump(found, file)

    described()
"""


def test_a_rank_finds_what_it_finds_under_torchrun(write_script: Write, tmp_path: Path) -> None:
    script = write_script("describe.py", DESCRIBE)
    found = []
    for name, run in (("pool", run_ranks), ("torchrun", run_torchrun)):
        (tmp_path / name).mkdir()
        done = run(2, script, str(tmp_path / name), "a word", FSDPKIT_X="1")
        assert done.returncode == 0, done.stdout[-3000:]
        each = [json.loads((tmp_path / name / f"{rank}.json").read_text()) for rank in (0, 1)]
        for rank in each:
            del rank["environment"]["MASTER_ADDR"]
            rank["argv"].remove(str(tmp_path / name))
        found.append(each)
    assert found[0] == found[1]


def test_what_a_rank_raises_is_in_the_output_and_its_status_the_answer(write_script: Write) -> None:
    script = write_script(
        "raises.py",
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(65)
        time.sleep(1)
        raise ValueError("follows")
        """,
    )
    done = run_ranks(2, script)
    assert done.returncode == 65
    assert "ValueError: follows" in done.stdout


def test_ranks_out_of_time_leave_their_stacks_and_no_process(
    write_script: Write, tmp_path: Path
) -> None:
    script = write_script(
        "hangs.py",
        """
        import os, signal, sys
        def forever():
            open(sys.argv[1] + "/" + str(os.getpid()), "w")
            if os.fork() == 0:
                open(sys.argv[1] + "/" + str(os.getpid()), "w")
            signal.pause()
        forever()
        """,
    )
    started = tmp_path / "pids"
    started.mkdir()
    for timeout_s in (2, 20, 200):  # whichever is enough to get so far, here and now
        before = set(os.listdir(started))
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            the_pool().run(1, script, str(started), environment=environment(), timeout_s=timeout_s)
        pids = [int(name) for name in {*os.listdir(started)} - before]
        if len(pids) == 2:
            break
    assert "in forever" in raised.value.output
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(alive, pids)):  # ended, but not yet gone
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
