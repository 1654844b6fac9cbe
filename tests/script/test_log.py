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
        return subprocess.run(
            [sys.executable, "-c", "import fsdpkit\n" + textwrap.dedent(source)],
            env={**os.environ, **own, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
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


def test_an_evaluation_beside_a_step_has_a_line_of_its_own(rank: Rank, tmp_path: Path) -> None:
    rank("fsdpkit.log(5, loss=2.0, eval_loss=float('inf'))\nfsdpkit.log(6, eval_loss=3.0)")
    step, evaluation, alone = lines(tmp_path)
    assert step["loss"] == 2.0
    assert "eval_loss" not in step
    assert (evaluation["eval_loss"], evaluation["not_finite"]) == (None, {"eval_loss": "inf"})
    assert (alone["step"], alone["eval_loss"]) == (6, 3.0)
    assert "step_time_s" not in alone


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        ("log(1, loss='1.0', lr=0.1)", {"lr": 0.1}),
        ("log(1, loss=[1.0], lr=0.1)", {"lr": 0.1}),
        ("log(1, loss={'a': 1}, lr=0.1)", {"lr": 0.1}),
        ("log(1, loss=None, lr=0.1)", {"lr": 0.1}),
        ("log(1, loss=1j, lr=0.1)", {"lr": 0.1}),
        ("log(1, loss=10 ** 400, lr=0.1)", {"lr": 0.1}),
        ("log(1, **{'a\\x1b[31m': 1.0, 'lr': 0.1})", {"lr": 0.1}),
        ("log(1, **{'time_s': 'x', 'not_finite': 3, 'lr': 0.1})", {"lr": 0.1}),
        ("log(1, **{'x' * 10_000: 1.0, 'lr': 0.1})", {"lr": 0.1}),
        ("log('one', lr=0.1)", None),
        ("log(-1, lr=0.1)", None),
        ("log(None, lr=0.1)", None),
        ("log(1.5, lr=0.1)", None),
        ("log(float('nan'), lr=0.1)", None),
        ("log(2 ** 80, lr=0.1)", None),
    ],
)
def test_what_cannot_be_logged_is_left_out_and_said_once(
    rank: Rank, tmp_path: Path, call: str, kept: dict[str, float] | None
) -> None:
    done = rank(f"for _ in range(3): fsdpkit.{call}\nprint('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    said = done.stderr.splitlines()
    assert len(said) == len(set(said)) > 0, "each thing once"
    assert all(line.startswith("fsdpkit: ") and line.isprintable() for line in said)
    found = beat(tmp_path)
    assert found is not None
    assert found.count == 3, "a wrong call is a sign of life, too"
    known = {"time_s", "step", "step_time_s"}
    rest = [{k: v for k, v in line.items() if k not in known} for line in lines(tmp_path)]
    assert rest == ([kept] * 3 if kept else [])


@pytest.mark.torch
def test_tensors_numpy_and_nan(rank: Rank, tmp_path: Path) -> None:
    done = rank("""
        import numpy, torch
        fsdpkit.log(torch.tensor(1), loss=torch.tensor(2.5, requires_grad=True))
        fsdpkit.log(numpy.int64(2), loss=numpy.float32(1.5), lr=torch.tensor([0.25]))
        fsdpkit.log(3, loss=torch.tensor(float("nan")), bad=torch.ones(2), flag=True)
    """)
    one, two, three = lines(tmp_path)
    assert (one["step"], one["loss"]) == (1, 2.5)
    assert (two["step"], two["loss"], two["lr"]) == (2, 1.5, 0.25)
    assert (three["loss"], three["not_finite"], three["flag"]) == (None, {"loss": "nan"}, 1)
    assert "bad" not in three
    assert done.stderr.count("\n") == 1


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


def test_steps_that_go_back_are_kept_and_said_once(rank: Rank, tmp_path: Path) -> None:
    done = rank("for step in (1, 2, 1, 2, 1): fsdpkit.log(step, loss=1.0)")
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 1, 2, 1]
    assert done.stderr.count("\n") == 1


def test_the_first_process_of_a_rank_logs_alone(rank: Rank, tmp_path: Path) -> None:
    done = rank("""
        import os, subprocess, sys
        fsdpkit.log(1, loss=1.0)
        for _ in range(2):  # a worker forked from it
            if (pid := os.fork()) == 0:
                fsdpkit.log(50, loss=50.0)
                sys.exit()
            os.waitpid(pid, 0)
        subprocess.run([sys.executable, "-c", "import fsdpkit; fsdpkit.log(60, loss=60.0)"])
        fsdpkit.log(2, loss=2.0)
    """)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    assert beat(tmp_path) == Beat(2, 2, "logging")
    assert "another process" in done.stderr


def test_a_full_disk_ends_no_training(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "task" / "metrics.jsonl").symlink_to("/dev/full")
    done = rank("for step in range(5): fsdpkit.log(step, loss=1.0)\nprint('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1


def test_a_directory_that_is_gone_ends_no_training(rank: Rank, tmp_path: Path) -> None:
    done = rank(
        "fsdpkit.log(1, loss=1.0)\nprint(fsdpkit.stop_requested())",
        FSDPKIT_TASK_DIR="/proc/none",
        FSDPKIT_HEARTBEAT_DIR=str(tmp_path / "gone"),
    )
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr


def test_a_fast_loop_writes_seldom_and_loses_nothing(rank: Rank, tmp_path: Path) -> None:
    done = rank("""
        from fsdpkit.runs.events import JsonLines
        calls, write_all = [0], JsonLines.write_all
        def counted(self, records):
            calls[0] += 1
            write_all(self, records)
        JsonLines.write_all = counted
        for step in range(20_000):
            fsdpkit.log(step, loss=0.5)
        print(calls[0])
        raise RuntimeError("a script that fails has its last lines, too")
    """)
    assert done.returncode == 1
    assert int(done.stdout) < 200
    assert [line["step"] for line in lines(tmp_path)] == list(range(20_000))


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
