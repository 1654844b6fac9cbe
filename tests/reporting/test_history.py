"""A run's story from the small files that agents and the batch shell left, whole or torn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpkit.runs import outcomes
from fsdpkit.runs.failures import FailureRecord, Level, in_a_line
from fsdpkit.runs.history import attempt_of, history_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Trouble
from fsdpkit.runs.record import JobRecord, RunRecord
from tests.scheduling.records import recorded

T0 = 1_800_000_000.0
ORDERS = [
    {"time_s": T0 + 8, "event": "launch", "launch": 0, "nodes": ["n1", "n2"], "delay_s": 0},
    {"time_s": T0 + 60, "event": "trouble", "cause": "node-failure", "step": 7, "message": "n2"},
    {"time_s": T0 + 59, "event": "node-lost", "node": "n2"},
    {"time_s": T0 + 61, "event": "launch", "launch": 1, "nodes": ["n1", "n3"], "delay_s": 5},
    {"time_s": T0 + 90, "event": "stop-requested"},
]
VERDICT = {
    "trouble": {"cause": "stopped", "status": 75, "message": "rank 0 on n1: stopped early"},
    "warned": True,
    "restarts": 1,
    "earlier": [{"cause": "node-failure", "status": 71, "message": "n2: no sign of life"}],
}
ENDING = {"action": "requeue", "status": 75, "cause": "time-limit", "why": "the time is over"}


def record(*jobs: JobRecord, array: list[int] | None = None) -> RunRecord:
    newest, earlier = jobs[-1], list(jobs[:-1])
    return recorded(
        id="a-run",
        created_s=T0,
        job_id=newest.job_id,
        array=array,
        first_attempt=newest.first_attempt,
        earlier=earlier,
    )


def job(number: int, first_attempt: int = 0, array: list[int] | None = None) -> JobRecord:
    return JobRecord(
        job_id=str(number), nodes=2, ranks_per_node=4, first_attempt=first_attempt, array=array
    )


def lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """One that lost a node, went on with a spare, and was stopped in time."""
    paths = AttemptPaths(tmp_path / "attempt-0")
    paths.failures.mkdir(parents=True)
    lines(paths.dir / "orders.jsonl", ORDERS)
    ready = {"time_s": T0 + 7, "event": "node-ready", "node": "n1", "pid": 3, "preflight_s": 2.0}
    ended = {"time_s": T0 + 99, "event": "node-ended", "node": "n1"}
    lines(paths.node_events(0), [ready, ended])
    lines(paths.node_events(1), [{**ready, "node": "n2"}])
    (paths.failures / f"{int((T0 + 50) * 1e9)}-node-0-rank-3").write_text("1 rank 3 on n1: reset\n")
    (paths.failures / f"{int((T0 + 55) * 1e9)}-node-0").write_text("71 n1: head lost\n")
    paths.verdict.write_text(json.dumps(VERDICT))
    paths.ending.write_text(json.dumps(ENDING))
    os.utime(paths.ending, (T0 + 100, T0 + 100))
    return paths


def test_an_attempt_tells_its_launches_nodes_failures_and_end(attempt: AttemptPaths) -> None:
    found = attempt_of(attempt, "12")
    first, second = found.launches
    assert (first.cause, first.step, first.trouble_s) == ("node-failure", 7, T0 + 60)
    assert (second.nodes, second.began_s, second.cause) == (("n1", "n3"), T0 + 66, None)
    assert [(n.name, n.ready_s, n.ended_s) for n in found.nodes] == [
        ("n1", T0 + 7, T0 + 99),
        ("n2", T0 + 7, None),
    ]
    assert found.nodes[0].findings == {"preflight_s": 2.0}
    assert [(f.rank, f.status, f.message) for f in found.failures] == [
        (3, 1, "rank 3 on n1: reset"),
        (None, 71, "n1: head lost"),
    ]
    assert found.lost_nodes == ("n2",)
    assert found.stop_requested_s == T0 + 90
    assert found.verdict is not None
    assert (found.verdict.warned, found.verdict.earlier[0].cause) == (True, "node-failure")
    assert found.ending is not None
    assert (found.ending.cause, found.ended_s, found.began_s) == ("time-limit", T0 + 100, T0 + 7)


def test_a_rank_is_on_the_node_that_torchrun_gave_it(attempt: AttemptPaths) -> None:
    found = attempt_of(attempt)
    assert found.node_of_rank(3, 4) == "n1"
    assert found.node_of_rank(4, 4) == "n3"
    assert found.node_of_rank(4, 4, launch=0) == "n2"
    assert found.node_of_rank(8, 4) is None


def test_attempts_belong_to_the_job_that_made_them(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"attempt-{number}").mkdir()
    found = history_of(RunPaths(tmp_path), record(job(7), job(9, 2), job(11, 3)))
    assert [a.job_id for a in found.attempts] == ["7", "7", "9", "11"]


def test_an_array_task_has_a_history_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "task-2" / "attempt-0").mkdir(parents=True)
    (tmp_path / "task-2" / "attempt-1").mkdir()
    jobs = [job(7, array=[1, 2, 3]), job(9, 1, array=[2])]
    found = history_of(RunPaths(tmp_path), record(*jobs, array=[2]), 2)
    assert [a.job_id for a in found.attempts] == ["7_2", "9_2"]


def test_the_first_failure_is_told_by_one_clock_whoever_was_heard_first(
    attempt: AttemptPaths,
) -> None:
    """The agents decided by node 1's rank 0; node 2's clock is half a minute ahead."""
    late = FailureRecord(by="rank", name="n1", rank=0, status=1, words="late")
    for node, (rank, name, at_s, level) in enumerate(
        [(0, "n1", 95, Level.OWN), (2, "n3", 124, Level.OWN), (3, "n3", 80, Level.LOST_PEER)]
    ):
        told = msgspec.structs.replace(late, rank=rank, name=name, words="early", level=level)
        (attempt.failures / f"{int(T0 + at_s) * 10**9}-node-{node}-rank-{rank}").write_text(
            in_a_line(told)
        )
    for node, (name, offset_s) in enumerate([("n1", 0.0), ("n3", 30.0)]):
        ready = {"time_s": T0, "event": "node-ready", "node": name, "clock_offset_s": offset_s}
        lines(attempt.node_events(node), [ready])
    trouble = Trouble(cause="crash", status=1, message=late.message, failure=late)
    outcomes.write(attempt.verdict, AttemptVerdict(trouble=trouble))
    found = attempt_of(attempt).first_failure
    assert found is not None
    assert found.message == "rank 2 on n3: early"


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    for name in ("step-20", "step-5", ".step-25.tmp", "latest"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    found = history_of(RunPaths(tmp_path), record(job(7)))
    assert [c.step for c in found.checkpoints] == [5, 20]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from([*(str(o["event"]) for o in ORDERS), "node-ready", "node-ended"]),
        "time_s": st.integers() | st.floats(),
    },
    optional=dict.fromkeys(["launch", "nodes", "delay_s", "node", "cause", "step"], ANYTHING),
)


@settings(suppress_health_check=[*HealthCheck])
@given(
    name=st.sampled_from(["orders.jsonl", "node-0.events.jsonl", "verdict.json", "ending.json"]),
    content=st.binary(max_size=40) | (EVENTS | ANYTHING).map(lambda x: json.dumps(x).encode()),
)
def test_whatever_a_dead_run_left_is_read_without_an_error(
    attempt: AttemptPaths, name: str, content: bytes
) -> None:
    file = attempt.dir / name
    kept = file.read_bytes()
    file.write_bytes(content + b"\n")
    attempt_of(attempt)
    file.write_bytes(kept)
