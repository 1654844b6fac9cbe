"""A real run's checkpoints, to be copied and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.runs.layout import TaskPaths
from tests.runs.trained import STEPS, copied, trained_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TaskPaths:
    return trained_run(tmp_path_factory)


@pytest.fixture
def checkpoint(trained: TaskPaths, tmp_path: Path) -> Path:
    """A copy of the newest of the trainer's checkpoints."""
    return copied(trained, tmp_path).checkpoints / f"step-{STEPS[-1]}"
