"""What a rank tells its agent, with a directory in the agent's place."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fsdpkit.runs.heartbeat import Beat, HeartbeatDir, read_heartbeat
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.stacks import SIGNAL
from fsdpkit.training.agreement import StopRequest
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.heartbeat import Heartbeat, outlive_warnings

pytestmark = pytest.mark.torch


def ranks(rank: int = 0, local_rank: int = 0) -> Ranks:
    return Ranks(rank, local_rank, 4, 2, torch.device("cpu"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatDir:
    directory = tmp_path / "node"
    directory.mkdir()
    monkeypatch.setenv("FSDPKIT_HEARTBEAT_DIR", str(directory))
    return HeartbeatDir(directory)


def test_each_step_and_phase_is_a_beat(node: HeartbeatDir, tmp_path: Path) -> None:
    heartbeat = Heartbeat(TaskPaths(tmp_path), ranks(3, 1))
    path = node.rank(1)
    assert read_heartbeat(path) == Beat(1, 0, "starting")
    heartbeat.resumed(40)
    assert read_heartbeat(path) == Beat(2, 40, "starting")
    heartbeat.step(41)
    assert read_heartbeat(path) == Beat(3, 41, "training")
    with heartbeat.phase("saving"):
        assert read_heartbeat(path) == Beat(4, 41, "saving")
    assert read_heartbeat(path) == Beat(5, 41, "training")
    heartbeat.ending()
    assert read_heartbeat(path) == Beat(6, 41, "ending")


def test_without_an_agent_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FSDPKIT_HEARTBEAT_DIR", raising=False)
    heartbeat = Heartbeat(TaskPaths(tmp_path), ranks())
    heartbeat.step(1)
    with heartbeat.phase("saving"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_stacks_and_collectives_are_left_when_the_agent_asks(
    node: HeartbeatDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = tmp_path / "attempt-2"
    attempt.mkdir()
    monkeypatch.setenv("FSDPKIT_ATTEMPT_DIR", str(attempt))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    heartbeat = Heartbeat(TaskPaths(tmp_path), ranks(3, 1))
    monkeypatch.delenv("TORCH_FR_DUMP_TEMP_FILE", raising=False)
    node.dump.touch()
    os.kill(os.getpid(), SIGNAL)
    assert "test_stacks_and_collectives" in node.stacks(1).read_text()
    recorded = tmp_path / "debug" / "attempt-2" / "nccl_trace_rank_3"
    deadline = time.monotonic() + 30
    while not recorded.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert recorded.exists()
    heartbeat.ending()
    faulthandler.unregister(SIGNAL)


def test_the_first_rank_of_a_node_hears_its_agent_at_once_and_no_other_looks(
    node: HeartbeatDir, tmp_path: Path
) -> None:
    requests = [StopRequest(TaskPaths(tmp_path), ranks(2 + n, n)) for n in (0, 1)]
    assert [request.wanted() for request in requests] == [0.0, 0.0]
    node.stop.touch()
    assert [request.wanted() for request in requests] == [1.0, 0.0]
    requests[0].answered()
    assert node.stop.exists()  # the agent's, not the trainer's
    (tmp_path / "stop-requested").touch()
    assert StopRequest(TaskPaths(tmp_path), ranks(0, 1)).wanted() == 0.0


class Pids(Dataset[int]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, _: int) -> int:
        return os.getpid()


def test_a_loaders_worker_outlives_slurms_warnings() -> None:
    batches = iter(DataLoader(Pids(), num_workers=1, worker_init_fn=outlive_warnings))
    worker = int(next(batches))
    assert worker != os.getpid()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(worker, number)
    time.sleep(0.2)
    assert {int(pid) for pid in batches} == {worker}
