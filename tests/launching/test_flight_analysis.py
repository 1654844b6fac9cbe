"""Dumps of torch's flight recorder become one record: real ones of gloo, and ones made in NCCL's
format, which needs GPUs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.launching.flight_analysis import read_dumps, record_of
from fsdpkit.runs.flight_record import FlightRecord, in_words, read_flight_record
from tests.training.launch import run_ranks

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).parent / "programs" / "leave_dumps.py"


def analysed(dumps: Path, world_size: int) -> FlightRecord | None:
    """As the agent has it done: in a process of its own."""
    result = dumps.parent / "flight.json"
    words = [str(dumps), str(result), "0", str(world_size)]
    command = [sys.executable, "-m", "fsdpkit.launching.flight_analysis", *words]
    subprocess.run(command, check=True, timeout=300)
    return read_flight_record(result)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> FlightRecord:
    directory = tmp_path_factory.mktemp("task") / "flight-0"
    directory.mkdir(mode=0o700)
    run_ranks(3, PROGRAM, str(directory), status=0)
    record = analysed(directory, 3)
    assert record is not None
    return record


def test_of_real_dumps_it_is_said_who_called_something_else(real: FlightRecord) -> None:
    assert (real.dumps, real.unread) == ([0, 1, 2], {})
    pair = next(stuck for stuck in real.stuck if stuck.group == "pair")
    assert (pair.operation, pair.sequence, pair.waiting) == ("all_reduce", 2, [0, 1])
    assert pair.different == {1: "all_gather (2x4 Float)"}
    assert pair.where is not None
    assert "leave_dumps.py:21 in <module>" in pair.where


def entry(number: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    """A collective in a dump of NCCL's, as torch 2.13 writes it."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1000 * number,
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/x/torch/distributed/c10d.py",
                "line": 9,
            },
            {"name": "step", "filename": "/home/me/train.py", "line": 88},
        ],
        **more,
    }


def dump(entries: Sequence[dict[str, Any]], ranks: Sequence[int], **more: Any) -> dict[str, Any]:
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}
    return {"version": "2.10", "pg_config": {"0": group}, "entries": list(entries), **more}


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    (tmp_path / "flight-0").mkdir(mode=0o700)
    return tmp_path / "flight-0"


def leave(directory: Path, rank: int, content: Any) -> None:
    (directory / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, 2))


def ranks_do(
    ranks: Sequence[int], entries: list[dict[str, Any]]
) -> dict[int, list[dict[str, Any]]]:
    return dict.fromkeys(ranks, entries)


DONE = [entry(1), entry(2)]
ALL = range(4)


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        (
            {0: [*DONE, entry(3, "started")], 1: [*DONE, entry(3, "started")], 2: DONE, 3: DONE},
            "ranks 2-3 have not called all_reduce number 3 of group default_pg (4), in which ranks "
            "0-1 wait at /home/me/train.py:88 in step",
        ),
        (
            ranks_do(ALL, [*DONE, entry(3, "started")]),
            "all ranks of group default_pg called all_reduce number 3 and none finished it",
        ),
        (
            # Who is further ahead in what was only scheduled is not waited for.
            {
                0: [*DONE, entry(3, "started"), entry(4, "scheduled"), entry(5, "scheduled")],
                1: [*DONE, entry(3, "started")],
                2: [*DONE, entry(3, "started"), entry(4, "scheduled")],
                3: [*DONE, entry(3, "scheduled")],
            },
            "all ranks of group default_pg called all_reduce number 3 and none finished it",
        ),
        (
            {
                **ranks_do((0, 1, 3), [*DONE, entry(3, "started")]),
                2: [*DONE, entry(3, "started", input_sizes=[[8]], output_sizes=[[8]])],
            },
            "rank 2 called all_reduce (8 Float), where others called all_reduce number 3 of group "
            "default_pg (4)",
        ),
        (
            ranks_do((0, 1, 3), [*DONE, entry(3, "started")]),
            "ranks 0-1, 3 wait at /home/me/train.py:88 in step in all_reduce number 3 of group "
            "default_pg (4); rank 2 left no record",
        ),
        (
            # A ring that is full begins elsewhere on each rank.
            {
                **ranks_do((0, 1, 3), [entry(2), entry(3), entry(4, "started")]),
                2: [*DONE, entry(3)],
            },
            "rank 2 has not called all_reduce number 4 of group default_pg (4), in which ranks "
            "0-1, 3 wait at /home/me/train.py:88 in step",
        ),
        (
            {**ranks_do((0, 1, 2), [*DONE, entry(3)]), 3: [*DONE, entry(3, "started")]},
            "rank 3 waits at /home/me/train.py:88 in step in all_reduce number 3 of group "
            "default_pg (4), which ranks 0-2 finished",
        ),
        (
            # This ring has forgotten the call that the others wait in.
            {
                **ranks_do(range(3), [*DONE, entry(3, "started")]),
                3: [entry(4), entry(5), entry(6)],
            },
            "ranks 0-2 wait at /home/me/train.py:88 in step in all_reduce number 3 of group "
            "default_pg (4), which rank 3 finished",
        ),
        (
            # The call that differed has ended everywhere; the ranks hang in a later one.
            {
                **ranks_do((0, 1, 3), [*DONE, entry(3, "started")]),
                2: [entry(1), entry(2, profiling_name="nccl:broadcast"), entry(3, "started")],
            },
            "rank 2 called broadcast (4 Float), where others called all_reduce number 2 of group "
            "default_pg (4)",
        ),
        (
            # Each rank has its own sizes in this one.
            {
                rank: [entry(1, "started", profiling_name="nccl:scatter", input_sizes=[[rank]])]
                for rank in ALL
            },
            "all ranks of group default_pg called scatter number 1 and none finished it",
        ),
        (ranks_do(ALL, DONE), None),
        (
            # gloo gave up, and retired the call that rank 3 has never made.
            {
                **ranks_do(range(3), [*DONE, entry(3, "scheduled", retired=True)]),
                3: DONE,
            },
            "rank 3 has not called all_reduce number 3 of group default_pg (4), in which ranks 0-2 "
            "wait",
        ),
        (
            # The root of a broadcast does not wait for the others.
            {**ranks_do(range(3), [*DONE, entry(3)]), 3: DONE},
            None,
        ),
        (ranks_do(ALL, []), None),
    ],
)
def test_whom_the_ranks_wait_for(
    dumps: Path, by_rank: dict[int, list[dict[str, Any]]], said: str | None
) -> None:
    for rank, entries in by_rank.items():
        leave(dumps, rank, dump(entries, ALL))
    read, unread = read_dumps(dumps)
    assert unread == {}
    record = record_of(read, 0, len(ALL))
    assert in_words(record) == said


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, (f"{os.environ['HOSTILE']}/executed",)


def test_a_dump_that_is_more_than_data_is_not_obeyed(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE", str(tmp_path))
    leave(dumps, 0, dump([Hostile()], ALL))  # type: ignore[list-item]
    leave(dumps, 1, dump([entry(1)], ALL))
    leave(dumps, 2, {"entries": "none"})
    leave(dumps, 3, [1, 2])
    (dumps / "nccl_trace_rank_4").write_bytes(b"\x80\x02torn")
    (dumps / "nccl_trace_rank_5").symlink_to(dumps / "nccl_trace_rank_1")
    os.mkfifo(dumps / "nccl_trace_rank_6")
    (dumps / "nccl_trace_rank_x").touch()
    read, unread = read_dumps(dumps)
    assert read.keys() == {1}
    assert unread.keys() == {0, 2, 3, 4, 5, 6}
    assert not (tmp_path / "executed").exists()
