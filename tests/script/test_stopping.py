"""`fsdpkit.stop_requested`: all ranks hear it after the same step, whichever node hears first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fsdpkit.runs.heartbeat import HeartbeatDir


def rank(tmp_path: Path, source: str, number: int = 0, **env: str) -> subprocess.Popen[str]:
    own = {
        "FSDPKIT_TASK_DIR": str(tmp_path / "task"),
        "FSDPKIT_HEARTBEAT_DIR": str(tmp_path / f"node-{number}"),
        "RANK": str(number),
        "LOCAL_RANK": "0",
    }
    (tmp_path / "task").mkdir(exist_ok=True)
    (tmp_path / f"node-{number}").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", "import fsdpkit\n" + textwrap.dedent(source)],
        env={**os.environ, **own, **env},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_rank_hears_its_agent_and_leaves_a_mark_that_it_looks(tmp_path: Path) -> None:
    node = HeartbeatDir(tmp_path / "node-0")
    process = rank(
        tmp_path,
        """
        from pathlib import Path
        import os
        print(fsdpkit.stop_requested())
        Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop").touch()
        print(fsdpkit.stop_requested(), fsdpkit.stop_requested(), fsdpkit.task_dir().name)
        raise SystemExit(fsdpkit.STOPPED)
        """,
    )
    out, _ = process.communicate(timeout=300)
    assert (out, process.returncode) == ("False\nTrue True task\n", 75)
    assert node.looks.exists()


@pytest.mark.torch
def test_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    """Two nodes, of which the second alone is told, in its fourth step."""
    source = f"""
        import os
        from pathlib import Path
        import torch.distributed as dist
        rank = int(os.environ["RANK"])
        store = dist.FileStore({str(tmp_path / "store")!r}, 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        for step in range(1, 20):
            if rank == 1 and step == 4:
                Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop").touch()
            if fsdpkit.stop_requested():
                break
        print(step)
        dist.destroy_process_group()
    """
    ranks = [rank(tmp_path, source, number) for number in (0, 1)]
    assert [process.communicate(timeout=120)[0] for process in ranks] == ["4\n", "4\n"]


@pytest.mark.torch
def test_a_message_is_given_back_before_the_answer(tmp_path: Path) -> None:
    """A thread keeps it as gloo's does, which would otherwise wait for a destructor of the process
    group, and the destructor for it."""
    process = rank(
        tmp_path,
        """
        import threading, time
        import torch
        import torch.distributed as dist
        dist.is_initialized = lambda: True
        dist.get_world_size = lambda: 2
        dist.get_backend_config = lambda: "cpu:gloo"
        given_back = []

        def all_reduce(tensor):
            def keep(held):
                time.sleep(0.3)
                given_back.append(True)

            threading.Thread(target=keep, args=(tensor,)).start()

        dist.all_reduce = all_reduce
        print(fsdpkit.stop_requested(), given_back)
        """,
    )
    assert process.communicate(timeout=300)[0] == "False [True]\n"
