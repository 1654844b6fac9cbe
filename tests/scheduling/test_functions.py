"""`fsdpkit.run` without a cluster: what crosses to a rank, and what is believed of what it left."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

import fsdpkit
from fsdpkit import FunctionError
from fsdpkit.config import assets
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.runs import calls
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.scheduling.functions import results_of, returned, submit_function
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.reporting.log_runs import attempt_of, make_run

RANKS = 2


@dataclass(frozen=True)
class Called:
    """A run whose rank 0 has called a function, without a cluster."""

    run: Run
    attempt: AttemptPaths
    done: subprocess.CompletedProcess[str]

    def outcome(self, state: str = "FAILED") -> list[Any]:
        return results_of(self.run, JobState(state, 0 if state == "COMPLETED" else 1))


Call = Callable[..., Called]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def make(
        function: Callable[..., Any],
        *args: Any,
        most_mb: int = 10,
        change: Callable[[Path], object] = lambda path: None,
    ) -> Called:
        directory = make_run(tmp_path / "runs", ranks_per_node=RANKS)
        run = Run.open(directory)
        attempt = AttemptPaths(attempt_of(run.dir, 0))
        content = msgspec.msgpack.encode(
            calls.Call(function=cloudpickle.dumps((function, args)), path=[])
        )
        run.paths.call.write_bytes(content)
        change(run.paths.call)
        entry = assets.package_dir() / "launching" / "entries" / calls.ENTRY
        words = ["--digest", calls.digest_of(content), "--result-mb", str(most_mb)]
        told = {"FSDPKIT_RUN_DIR": run.dir, "FSDPKIT_ATTEMPT_DIR": attempt.dir, "RANK": "0"}
        done = subprocess.run(
            [sys.executable, str(entry), *words],
            env={**os.environ, **{name: str(value) for name, value in told.items()}},
            capture_output=True,
            text=True,
            check=False,
        )
        return Called(run, attempt, done)

    return make
