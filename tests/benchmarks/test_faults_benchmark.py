"""What the fault benchmark reads out of a run's directory, with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import (
    GOODPUT,
    QUICK,
    Row,
    faults_table,
    first_step_again_s,
    for_goodput,
    noticed_s,
    policy,
    result_of,
    row_of,
)
from benchmarks.report import table
from fsdpkit.config.retry import Retry
from tests.faults.matrix import ALL, CORE, FAULTS
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
    assert found.repaired_s == 7.0


def test_survived_is_what_slurm_says_and_exact_what_the_losses_say(crashed: Trial) -> None:
    assert not row_of(CRASH, crashed, ("FAILED", "1:0"), QUIET).survived
    other = row_of(CRASH, crashed, ("COMPLETED", "0:0"), {**QUIET, 3: 3.0000001})
    assert (other.survived, other.exact) == (True, False)
    short = row_of(CRASH, crashed, ("COMPLETED", "0:0"), {**QUIET, 4: 2.0})
    assert not short.survived


def test_what_went_on_undisturbed_has_no_times(crashed: Trial) -> None:
    crashed.broken_s = 105.0
    assert noticed_s(crashed) is None
    assert first_step_again_s(crashed) is None


def test_goodput_gets_notice_and_repair_from_the_cases_it_names() -> None:
    rows = [
        row(),
        row("rank hangs in training", noticed_s=9.0),
        row("node lost in training", noticed_s=12.0, back_s=40.0),
        row("node lost in shutdown", noticed_s=99.0),
    ]
    found = for_goodput(rows)
    assert found == {
        "notice_s": {"crash": 3.0, "hang": 9.0, "node": 12.0},
        "restart_s": 7.0,
        "requeue_s": 28.0,
    }
    assert not {case for case, _ in GOODPUT.values()} - {str(case) for case in ALL}


def test_what_was_not_survived_is_not_handed_on() -> None:
    assert for_goodput([row(survived=False)]) == {"notice_s": {}}


def test_the_policy_is_that_of_the_runs() -> None:
    found = policy([row()])
    assert found.keys() <= set(Retry.__struct_fields__)
    assert {"hang_s", "lost_s", "backoff_s"} <= found.keys()


def test_a_run_that_was_lost_stands_out_in_the_table_and_misses_the_target() -> None:
    rows = [row(), row("node lost in training", survived=False, exact=False, back_s=None)]
    assert "| **no** | restart in the job |  | 3.00 s | 1 | **others** |" in faults_table(rows)
    text = table(result_of(rows, "22.05", 0.5))
    assert "| 1 of 2 |  | 1 | ≥ 2 | **missed** |" in text


def test_rows_of_several_calls_are_said_to_be_that() -> None:
    rows = [row(), row("node lost in training")]
    assert result_of(rows, "22.05", 0.5)["notes"][1].endswith(" were not run here.")
    told = result_of(rows, "22.05", 0.5, calls=2)
    assert told["calls"] == 2
    assert told["notes"][1].endswith("The rows come from 2 successive calls.")


def test_every_fault_is_in_the_core_and_every_name_is_used_once() -> None:
    assert {case.fault.name for case in CORE} == {fault.name for fault in FAULTS}
    names = [str(case) for case in ALL]
    assert len(names) == len({*names})
    assert {*QUICK} <= {*names}
