"""Visits to runs of the local cluster, and to those that let nobody in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.errors import NotFoundError, SchedulerError, UsageError
from fsdpkit.launching import stacks as spy
from fsdpkit.scheduling.stacks import ask_for_stacks
from fsdpkit.scheduling.visiting import running
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Write
from tests.slurm.conftest import until

WAITS = """
    import time
    def load_batch():
        time.sleep(600)
    load_batch()
"""


@pytest.fixture
def submitted(fsdpkit: Fsdpkit, write_script: Write) -> Callable[..., Any]:
    """A run of a script that waits, started by no process of ours; ended behind the block."""

    @contextmanager
    def submit(*words: str) -> Iterator[Run]:
        script = write_script("train.py", WAITS)
        cold = ("--cluster", "local", "--set", "launch.warm=off", "--json")
        run = Run.open(answer_of(fsdpkit("submit", str(script), *cold, *words))["dir"])
        try:
            yield run
        finally:
            run.cancel()

    return submit


def is_up(run: Run, nodes: int, task: int | None = None) -> bool:
    try:
        visited = running(run, task)
    except (SchedulerError, UsageError):
        return False
    files = [visited.attempt.paths.node_events(node.number) for node in visited.nodes]
    return len(files) == nodes and all("ranks-started" in file.read_text() for file in files)


@pytest.mark.local
def test_a_foreign_script_on_the_local_cluster(
    fsdpkit: Fsdpkit, submitted: Callable[..., Any]
) -> None:
    with submitted("--nodes", "2", "--gpus", "1") as run:
        until(lambda: is_up(run, 2), "the ranks")
        if spy._spy():
            # A rank that has just been started has no Python yet.
            until(lambda: "in load_batch" in fsdpkit("stacks", str(run.dir)).stdout)
            answer = answer_of(fsdpkit("stacks", str(run.dir), "--json"))
            ranks = [rank for node in answer["nodes"] for rank in node["ranks"]]
            assert [rank["by"] for rank in ranks] == ["py-spy", "py-spy"]
        assert not run.paths.task(None).stacks_requested.exists()

        first, second = running(run).nodes
        done = fsdpkit("shell", str(run.dir), "--node", second.name, "--", "env")
        environ = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        assert (environ["SLURMD_NODENAME"], environ["FSDPKIT_VISIT"]) == (second.name, "1")
        assert environ["VIRTUAL_ENV"] == sys.prefix
        inside = {name for name in environ if name.startswith("FSDPKIT_")}
        assert inside <= {"FSDPKIT_VISIT", "FSDPKIT_CONFIG_DIR", "FSDPKIT_RUNS"}
        odd = ["it's", "$HOME", "a=b", "", "-x"]
        words = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", *odd]
        done = fsdpkit("shell", str(run.dir), "--", *words)
        assert (done.returncode, done.stdout) == (3, f"{odd}\n")
        assert fsdpkit("shell", str(run.dir), "--", "nosuchprogram").returncode == 127
        with pytest.raises(NotFoundError, match=first.name):
            running(run).node("node9")
        with pytest.raises(NotFoundError, match="task"):
            running(run, 3)

        if os.geteuid() == 0:
            os.chown(run.dir, 65534, -1)
            with pytest.raises(UsageError, match="nobody"):
                running(run)
            os.chown(run.dir, 0, -1)
    until(lambda: run.state() is not None and run.state().phase == "ended")
    for words in (("stacks", str(run.dir)), ("shell", str(run.dir), "--", "true")):
        done = fsdpkit(*words)
        assert (done.returncode, "has ended" in done.stderr) == (2, True)


@pytest.mark.local
def test_a_node_whose_agent_is_silent_is_named(submitted: Callable[..., Any]) -> None:
    with submitted("--nodes", "1", "--gpus", "2") as run:
        until(lambda: is_up(run, 1), "the ranks")
        visited = running(run)
        os.chmod(visited.attempt.dir, 0o500)
        asked = ask_for_stacks(visited, wait_s=0)
        os.chmod(visited.attempt.dir, 0o700)
        assert asked.answers == ()
        assert [node.name for node in asked.silent] == [visited.nodes[0].name]
        assert asked.ranks_of(visited.nodes[0]) == [0, 1]
