"""`fsdpkit.log`: what is written and beaten, and that no argument harms a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs.heartbeat import Beat, HeartbeatDir, read_heartbeat
from fsdpkit.runs.layout import TaskPaths
from tests.programs import ran

Rank = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """Runs a script as rank 0 (or another) of a run whose directory is `task`."""
    (tmp_path / "task").mkdir()
    (tmp_path / "node").mkdir()

    def run(source: str, number: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        own = {
            "FSDPKIT_TASK_DIR": str(tmp_path / "task"),
            "FSDPKIT_HEARTBEAT_DIR": str(tmp_path / "node"),
            "RANK": str(number),
            "LOCAL_RANK": str(number),
        }
        return ran(
            [sys.executable, "-c", "import fsdpkit\n" + textwrap.dedent(source)],
            env={**os.environ, **own, **env},
            timeout=120,
        )

    return run


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    path = TaskPaths(tmp_path / "task").metrics
    return [json.loads(line) for line in path.read_text().splitlines()]


def beat(tmp_path: Path, local_rank: int = 0) -> Beat | None:
    return read_heartbeat(HeartbeatDir(tmp_path / "node").rank(local_rank))


def test_a_line_a_step_with_the_rates_worked_out(rank: Rank, tmp_path: Path) -> None:
    done = rank("""
        import time
        for step in range(1, 4):
            fsdpkit.log(step, loss=1 / step, tokens=100 * step, planned_steps=3, recall=0.5)
            time.sleep(0.05)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = lines(tmp_path)
    assert (first["step"], first["step_time_s"]) == (1, None)
    assert [line["step"] for line in others] == [2, 3]
    assert [line["loss"] for line in others] == [1 / 2, 1 / 3]
    assert all(line["step_time_s"] >= 0.05 and line["tokens_per_s"] <= 2000 for line in others)
    assert others[-1]["planned_steps"] == 3
    assert others[-1]["recall"] == 0.5
    assert beat(tmp_path) == Beat(3, 3, "logging")


def test_other_ranks_beat_and_write_nothing(rank: Rank, tmp_path: Path) -> None:
    assert rank("fsdpkit.log(7, loss=1.0)", number=3).returncode == 0
    assert beat(tmp_path, 3) == Beat(1, 7, "logging")
    assert not TaskPaths(tmp_path / "task").metrics.exists()


@pytest.mark.torch
def test_a_sharded_tensor_is_never_read(rank: Rank, tmp_path: Path) -> None:
    done = rank(
        """
        import torch, torch.distributed as dist
        from torch.distributed.tensor import distribute_tensor, init_device_mesh
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        sharded = distribute_tensor(torch.ones(4), mesh).sum()
        type(sharded).item = type(sharded).full_tensor = None  # a collective of one rank hangs
        fsdpkit.log(1, loss=sharded, lr=1.0)
        fsdpkit.log(sharded, lr=1.0)
        """
    )
    assert done.returncode == 0, done.stderr
    (line,) = lines(tmp_path)
    assert "loss" not in line
    assert "sharded" in done.stderr


def test_a_gpu_is_not_waited_for(rank: Rank, tmp_path: Path) -> None:
    """With a GPU in a class's place: what `log` calls on a tensor there, and when."""
    done = rank(
        """
        import sys, types
        ready = []
        class Event:
            def record(self): self.number = len(ready); ready.append(False)
            def query(self): return ready[self.number]
            def synchronize(self): ready[self.number] = True
        class Host:
            def __init__(self, value): self.value = value
            def item(self):
                assert all(ready[: int(self.value)]), "read before it was copied"
                return self.value
        class OnGpu:
            is_cuda = True
            def __init__(self, value): self.value = value
            def numel(self): return 1
            def is_complex(self): return False
            def detach(self): return self
            def to(self, device, non_blocking): assert non_blocking; return Host(self.value)
            def __getattr__(self, name): raise AttributeError(name)
            def __float__(self): raise AssertionError("the host waits")
            __index__ = item = __float__
        cuda = types.SimpleNamespace(Event=Event, is_initialized=lambda: False)
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
        from fsdpkit.script import log
        log._WRITE_EVERY_S = 0.0
        log.threading.Thread.start = lambda self: None
        path = fsdpkit.task_dir() / "metrics.jsonl"
        fsdpkit.log(1, loss=OnGpu(1.0))
        fsdpkit.log(2, loss=OnGpu(2.0))
        assert path.read_text() == "", "nothing is ready yet"
        ready[0] = True
        fsdpkit.log(3, loss=OnGpu(3.0))
        assert path.read_text().count("\\n") == 1
        fsdpkit.log(OnGpu(4), loss=4.0)  # a step on the GPU cannot be read without waiting
        """
    )
    assert done.returncode == 0, done.stderr
    assert "no number of steps" in done.stderr
    assert [line["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0], "the rest at the end"


def test_the_last_lines_before_a_rank_hangs_are_there(rank: Rank, tmp_path: Path) -> None:
    done = rank("""
        import os, signal, time
        for step in range(1, 6):
            fsdpkit.log(step, loss=0.5)
        path = fsdpkit.task_dir() / "metrics.jsonl"
        end = time.monotonic() + 60
        while path.read_text().count("\\n") < 5 and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.returncode == -9
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("env", [{"FSDPKIT_TASK_DIR": ""}, {"FSDPKIT_VISIT": "1"}])
def test_off_a_cluster_and_on_a_visit_nothing_happens(
    rank: Rank, tmp_path: Path, env: dict[str, str]
) -> None:
    done = rank(
        "fsdpkit.log('x', loss='y')\nprint(fsdpkit.stop_requested(), fsdpkit.STOPPED)", **env
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False 75\n", "")
    assert list((tmp_path / "task").iterdir()) == list((tmp_path / "node").iterdir()) == []


def test_torch_is_not_imported(rank: Rank) -> None:
    done = rank("""
        import sys
        fsdpkit.log(1, loss=1.0)
        fsdpkit.stop_requested()
        heavy = {"torch", "numpy", "submitit", "jinja2", "msgspec", "rich"} & set(sys.modules)
        print(heavy or "light")
    """)
    assert done.stdout == "light\n"
