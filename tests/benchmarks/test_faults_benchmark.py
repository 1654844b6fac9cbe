"""What the fault benchmark reads out of a run's directory, with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import (
    Row,
    row_of,
)
from tests.faults.matrix import ALL
from tests.faults.trial import Trial

QUIET = {1: 5.0, 2: 4.0, 3: 3.0}
CRASH = next(case for case in ALL if str(case) == "rank killed in training")


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def crashed(tmp_path: Path) -> Trial:
    """Killed at 100 s after two steps, one of them saved; noticed at 103 s, back at 110 s."""
    logged = [(90, 1), (95, 2), (110, 2), (111, 3)]
    lines(
        tmp_path / "metrics.jsonl",
        *({"time_s": time_s, "step": step, "loss": QUIET[step]} for time_s, step in logged),
        {"time_s": 112, "step": 3, "checkpoint_bytes": 7},
    )
    attempt = tmp_path / "attempt-0"
    lines(
        attempt / "orders.jsonl",
        {"time_s": 80, "event": "launch", "launch": 0, "nodes": ["node1"]},
        {"time_s": 103, "event": "trouble", "cause": "crash", "message": "rank 1"},
        {"time_s": 103, "event": "launch", "launch": 1, "nodes": ["node1"]},
    )
    lines(
        attempt / "node-0.events.jsonl",
        {"time_s": 81, "event": "ranks-starting", "launch": 0},
        {"time_s": 104, "event": "ranks-starting", "launch": 1},
    )
    return Trial(None, tmp_path, tmp_path, "1", "training", broken_s=100.0)  # type: ignore[arg-type]


def row(case: str = "rank killed in training", **other: Any) -> Row:
    fault, _, phase = case.rpartition(" in ")
    values = {"survived": True, "exact": True, "back_s": 10.0, "noticed_s": 3.0, "repeated": 1}
    return Row(fault, phase, "restart", **{**values, **other})


def test_a_row_counts_from_the_fault_and_knows_which_steps_were_done_twice(crashed: Trial) -> None:
    found = row_of(CRASH, crashed, ("COMPLETED", "0:0"), QUIET)
    assert found == row()


def test_survived_is_what_slurm_says_and_exact_what_the_losses_say(crashed: Trial) -> None:
    assert not row_of(CRASH, crashed, ("FAILED", "1:0"), QUIET).survived
    other = row_of(CRASH, crashed, ("COMPLETED", "0:0"), {**QUIET, 3: 3.0000001})
    assert (other.survived, other.exact) == (True, False)
    short = row_of(CRASH, crashed, ("COMPLETED", "0:0"), {**QUIET, 4: 2.0})
    assert not short.survived
