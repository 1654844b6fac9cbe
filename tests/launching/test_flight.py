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


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    ],
)
def test_what_the_person_has_set_stays(
    attempt: AttemptPaths, tmp_path: Path, name: str, left: str
) -> None:
    found = flight.switched_on({name: "theirs"}, attempt, 0, HeartbeatDir(tmp_path))
    assert len(found) == 2
    assert left not in found


def test_on_cpus_no_directory_is_made(attempt: AttemptPaths, tmp_path: Path) -> None:
    assert flight.switched_on({"FSDPKIT_DEVICE": "cpu"}, attempt, 0, HeartbeatDir(tmp_path))
    assert not (tmp_path / "debug").exists()


def test_a_directory_that_cannot_be_made_hinders_no_launch(tmp_path: Path) -> None:
    (tmp_path / "debug").write_text("a file")
    assert flight.switched_on({}, AttemptPaths(tmp_path / "attempt-0"), 0, HeartbeatDir(tmp_path))


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
    flight.wait_for_record(attempt, 0)
    assert now[0] == 3.5, "no rank has left anything"
    for launch in (0, 1):
        attempt.flight_dumps(launch).mkdir(parents=True)
        (attempt.flight_dumps(launch) / "nccl_trace_rank_0").touch()
    flight.wait_for_record(attempt, 1)
    assert now[0] == 20
    flight.wait_for_record(attempt, 0)
    assert now[0] == 80, "the analysis has failed"


def test_a_rank_whose_pipe_is_open_is_asked_and_no_other_waited_for(tmp_path: Path) -> None:
    node = HeartbeatDir(tmp_path)
    assert not flight.may_be_asked(node)
    pipes = [tmp_path / f"flight-{rank}.pipe" for rank in (4, 5)]
    for pipe in pipes:
        os.mkfifo(pipe)
    assert flight.may_be_asked(node)
    reader = os.open(pipes[0], os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "target").touch()
    (tmp_path / "flight-6.pipe").symlink_to(tmp_path / "target")
    try:
        flight.ask(node, [4, 5, 6, 7])  # 5: nobody reads; 6: no pipe; 7: there is none
        assert os.read(reader, 100)
    finally:
        os.close(reader)
    assert (tmp_path / "target").read_bytes() == b""
