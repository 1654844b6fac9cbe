"""The flight recorder for any script: its variables, and NCCL's pipe that asks for a dump."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsdpkit.launching import flight
from fsdpkit.launching.fork_safety import changed_variables
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    (tmp_path / "attempt-2").mkdir()
    return AttemptPaths(tmp_path / "attempt-2")


def test_ranks_leave_their_dumps_in_a_directory_that_is_closed_to_others(
    attempt: AttemptPaths, tmp_path: Path
) -> None:
    node = HeartbeatDir(tmp_path)
    found = flight.switched_on({}, attempt, 1, node)
    dumps = tmp_path / "debug" / "attempt-2" / "flight-1"
    assert found == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(dumps / "nccl_trace_rank_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "flight-"),
    }
    assert dumps.stat().st_mode & 0o777 == 0o700
    assert changed_variables({}, found) == [], "nothing that hinders a fork"
    assert flight.switched_on(os.environ, attempt, 1, node) == found, "another node was first"


def test_other_nodes_wait_for_the_record_and_only_where_there_can_be_one(
    attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 20:
            attempt.flight_record(1).touch()

    monkeypatch.setattr(flight.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(flight.time, "sleep", pass_by)
    flight.wait_for_record(attempt, 0, 0.5)
    assert now[0] == 3.5, "no rank has left anything"
    for launch in (0, 1):
        attempt.flight_dumps(launch).mkdir(parents=True)
        (attempt.flight_dumps(launch) / "nccl_trace_rank_0").touch()
    flight.wait_for_record(attempt, 1, 0.5)
    assert now[0] == 20
    flight.wait_for_record(attempt, 0, 0.5)
    assert now[0] == 80, "the analysis has failed"
