"""Runs on the local cluster whose ranks are forked, or cannot be: what the agents do and say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.rank_ends import read_rank_ends
from tests.conftest import Completed
from tests.programs import Write

pytestmark = pytest.mark.torch
Command = Callable[..., Completed]

SHAPE = ("--cluster", "local", "--nodes", "2", "--gpus", "2", "--time", "15", "--wait")
QUICK = ("--set", "retry.backoff_s=0", "--set", "parameters.omp_threads=1")
RESTARTS = """
    import os, sys
    import psutil
    launch = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "launch", launch)
    if launch == 0 and os.environ["RANK"] == "3":
        for process in psutil.Process(os.getppid()).children(recursive=True):
            if "fork-server" in " ".join(process.cmdline()):
                process.kill()
        sys.exit(9)
"""


def submit(fsdpkit: Command, script: Path, *words: str) -> tuple[Completed, Path]:
    done = fsdpkit("submit", str(script), *SHAPE, *QUICK, *words)
    (run,) = (script.parent / "runs").iterdir()
    return done, run


def events(run: Path, node: int, name: str) -> list[dict[str, Any]]:
    path = RunPaths(run).task(None).attempt(0).node_events(node)
    return [line for line in read_json_lines(path) if line["event"] == name]


def forked(run: Path, node: int) -> list[int]:
    """How many of the node's ranks were forked, by launch."""
    return [line["forked"] for line in events(run, node, "ranks-started")]


def printed(run: Path, rank: int, launch: int) -> str:
    attempt = RunPaths(run).task(None).attempt(0)
    return attempt.rank_file(rank, "out", launch).read_text()


def test_fork_servers_that_are_killed_cost_a_cold_start_and_not_the_run(
    fsdpkit: Command, write_script: Write
) -> None:
    """Even where the job insists on forked ranks, as the other node's are at the restart, too."""
    script = write_script("train.py", RESTARTS)
    done, run = submit(fsdpkit, script, "--set", "launch.warm=on")
    assert done.returncode == 0, done.stderr
    assert [forked(run, node) for node in (0, 1)] == [[2, 2], [2, 0]]  # rank 3 is on node 1
    (told,) = events(run, 1, "ranks-not-forked")
    assert "fork server" in told["reason"]
    for rank in range(4):
        for launch in (0, 1):
            assert printed(run, rank, launch) == f"rank {rank} of 4 launch {launch}\n"
    path = RunPaths(run).task(None).attempt(0).node_events(1)
    ended = read_rank_ends(path, 0)
    assert (ended[3].status, ended[3].killed) == (9, False)
    assert ended.keys() == {2, 3}
    assert {rank: end.status for rank, end in read_rank_ends(path, 1).items()} == {2: 0, 3: 0}


def test_what_only_the_nodes_see_ends_the_job_before_training(
    fsdpkit: Command, write_script: Write, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    script = write_script("own/train.py", "import torch\n")
    write_script("own/fractions.py", "mine = True\n")  # torch has loaded Python's own
    alone = (*SHAPE, *QUICK, "--nodes", "1", "--set", "launch.warm=on")
    fsdpkit("submit", str(script), *alone, status=78)
    (run,) = (tmp_path / "runs").iterdir()
    assert "fractions.py" in "".join(path.read_text() for path in run.glob("*.log"))
    assert len(events(run, 0, "ranks-starting")) == 1  # and not again: it is in the settings


APART = """
import multiprocessing, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
def train():
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
"""


def test_a_world_apart_ends_the_job_whatever_the_rank_makes_of_its_process(
    fsdpkit: Command, write_script: Write
) -> None:
    script = write_script("train.py", APART)
    done = fsdpkit("submit", str(script), *SHAPE, *QUICK, "--nodes", "1", status=78)
    assert "line 6, trains in a process group of 1, in a process that rank" in done.stderr
