"""The whole script of docs/your-script.md saves when asked to stop, and goes on after that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.documents import blocks
from tests.training.launch import run_ranks


@pytest.mark.torch
def test_it_stops_with_its_work_saved_and_goes_on_after_that_step(tmp_path: Path) -> None:
    (text,) = (b.text for b in blocks("docs/your-script.md") if "STEPS = 100_000" in b.text)
    script, task = tmp_path / "train.py", tmp_path / "task"
    script.write_text(text.replace("STEPS = 100_000", "STEPS = 4"))
    task.mkdir()
    (task / "stop-requested").touch()

    def run() -> int:
        return run_ranks(1, script, FSDPKIT_TASK_DIR=str(task)).returncode

    assert run() == 75
    assert (task / "checkpoint.pt").exists()
    (task / "stop-requested").unlink()
    assert run() == 0
    steps = [json.loads(line)["step"] for line in (task / "metrics.jsonl").read_text().splitlines()]
    assert steps[0] == 1
    assert steps[-1] == 4
    assert steps.count(1) == 1
