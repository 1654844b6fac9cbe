"""What a rank tells its agent, with a directory in the agent's place."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest
import torch

from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.stacks import SIGNAL
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.heartbeat import Heartbeat
from tests.programs import until

pytestmark = pytest.mark.torch


def ranks(rank: int = 0, local_rank: int = 0) -> Ranks:
    return Ranks(rank, local_rank, 4, 2, torch.device("cpu"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatDir:
    directory = tmp_path / "node"
    directory.mkdir()
    monkeypatch.setenv("FSDPKIT_HEARTBEAT_DIR", str(directory))
    return HeartbeatDir(directory)


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
    until(recorded.exists)
    heartbeat.ending()
    faulthandler.unregister(SIGNAL)
