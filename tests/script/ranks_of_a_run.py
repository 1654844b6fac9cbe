"""A script with transformers, Lightning or Accelerate in it, on two ranks of a run that no agent
started: forked from a pool that has imported those libraries once.

The run's directories and variables are those that an agent leaves, and an attempt after the other
runs in them. What only an agent does is shown on Slurm (tests/slurm/test_script_kinds.py).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

from fsdpkit.runs.events import read_json_lines
from tests.training.launch import environment
from tests.training.pool import Pool

LIBRARIES = (
    *("transformers.trainer", "transformers.models.auto.modeling_auto", "accelerate"),
    *("transformers.models.llama.modeling_llama", "pytorch_lightning"),
)


@functools.cache
def _pool() -> Pool:
    return Pool(LIBRARIES)


class Attempt(NamedTuple):
    """One start of the script in the run's directory `task`."""

    task: Path
    status: int
    said: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What the run has logged, in all its attempts."""
        return list(read_json_lines(self.task / "metrics.jsonl"))


def attempt(task: Path, script: Path, *arguments: str) -> Attempt:
    """Run `script` on two ranks until they end; again in the same `task`: its next attempt."""
    task.mkdir(parents=True, exist_ok=True)
    number = len(list(task.glob("attempt-*")))
    own = task / f"attempt-{number}"
    heartbeats = own / "heartbeats"
    heartbeats.mkdir(parents=True)
    variables = {
        "FSDPKIT_RUN_DIR": str(task),
        "FSDPKIT_TASK_DIR": str(task),
        "FSDPKIT_ATTEMPT_DIR": str(own),
        "FSDPKIT_HEARTBEAT_DIR": str(heartbeats),
    }
    done = _pool().run(
        2, script, *arguments, environment=environment(**variables), directory=task.parent
    )
    return Attempt(task, done.returncode, done.stdout)
