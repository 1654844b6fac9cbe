"""`fsdpkit stacks` and `fsdpkit shell` beside the ranks of a real job: 2 nodes of 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.launching import stacks as spy
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import RunPaths
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import until
from tests.slurm_cluster import SlurmCluster
from tests.terminals import Terminal

pytestmark = pytest.mark.slurm
WAITS = """
    import os, pathlib, threading, time
    over = pathlib.Path(__file__).with_name("over")
    def load_batch():
        while not over.exists():
            time.sleep(0.1)
    def wait_for_others():
        done = threading.Event()
        while not over.exists():
            done.wait(0.1)
    load_batch() if os.environ["RANK"] == "2" else wait_for_others()
"""


def test_a_visitor_sees_the_ranks_and_leaves_no_trace_on_the_run(
    on_slurm: SlurmCluster, submit: Submit, fsdpkit: Fsdpkit, write_script: Write
) -> None:
    script = write_script("train.py", WAITS)
    answer = submit(str(script), "--nodes", "2", "--gpus", "2", warm=True)
    directory = answer["dir"]
    attempt = RunPaths(Path(directory)).task(None).attempt(0)
    events = [attempt.node_events(node) for node in (0, 1)]
    until(lambda: all(path.exists() and "ranks-started" in path.read_text() for path in events))

    def seen() -> dict[tuple[int, ...], dict[str, Any]]:
        done = fsdpkit("stacks", directory, "--json")
        places = json.loads(done.stdout or "{}").get("places", [])
        return {tuple(place["ranks"]): place for place in places}

    until(lambda: (2,) in seen(), "the ranks in their loops")
    # Where the ranks are
    lines = fsdpkit("stacks", directory, status=0)
    first, second, told = lines.stdout.splitlines()
    assert "rank 2" in told, "who the others wait for"
    assert first.startswith("rank 2 on node2: train.py:")
    assert first.endswith("in load_batch")
    assert second.startswith("ranks 0-1,3 on node1, node2: threading.py:")
    assert "in wait_for_others" in second
    assert not attempt.rank_file(2, "stacks", 0).exists(), "that is what a hang leaves"

    # One that runs no code
    (started,) = [e for e in read_json_lines(events[1]) if e["event"] == "ranks-started"]
    kill = ("shell", directory, "--node", "node2", "--", "kill")  # nodes number their processes
    assert fsdpkit(*kill, "-STOP", str(started["pids"]["3"])).returncode == 0
    done = fsdpkit("stacks", directory)
    assert fsdpkit(*kill, "-CONT", str(started["pids"]["3"])).returncode == 0
    assert done.returncode == (0 if spy._spy() else 69)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rank 3 on node2")]
    assert "stopped" in line

    # A command, and how it ends
    done = fsdpkit("shell", directory, "--node", "1", "--", "env")
    environ = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert (environ["SLURMD_NODENAME"], environ["FSDPKIT_VISIT"]) == ("node2", "1")
    assert environ["VIRTUAL_ENV"] == sys.prefix
    for name in ("FSDPKIT_TASK_DIR", "FSDPKIT_RUN_DIR", "FSDPKIT_SECRET", "FSDPKIT_HEARTBEAT_DIR"):
        assert name not in environ
    assert fsdpkit("shell", directory, "--", "sh", "-c", "exit 7").returncode == 7
    assert fsdpkit("shell", directory, "--node", "node9", "--", "true").returncode == 66
    assert fsdpkit("shell", directory).returncode == 2, "no terminal, no shell"

    # A shell on a terminal
    shell = [sys.executable, "-m", "fsdpkit", "shell", directory, "--node", "node2"]
    terminal = Terminal(shell, 31, 97)
    terminal.wait_for("node2]")
    terminal.type("stty size; echo on $SLURMD_NODENAME\n")
    assert "31 97" in terminal.wait_for("\non node2")
    terminal.resize(40, 120)
    terminal.type("until stty size | grep '40 120'; do sleep 0.1; done; echo wi''der\n")
    assert "40 120" in terminal.wait_for("\nwider")
    terminal.type("exit 5\n")
    assert terminal.end() == 5

    # The job does not notice
    script.with_name("over").touch()
    state = Run.open(directory).wait(poll_s=0.2)
    assert state.succeeded
    assert not state.derived, "how a visitor's command ended says nothing about the job"
    done = fsdpkit("shell", directory, "--", "true", status=2)
    assert "has ended" in done.stderr
