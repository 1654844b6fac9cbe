"""Which of a run's jobs says how the run stands."""

from __future__ import annotations

import pytest

from fsdpkit.runs.record import JobRecord
from fsdpkit.scheduling.run_states import decisive
from fsdpkit.scheduling.states import JobState
from tests.scheduling.records import job, run_of

WAITS = JobState("PENDING", "squeue", reason="Dependency")
QUEUED = JobState("PENDING", "squeue", reason="Priority")
RUNS = JobState("RUNNING", "squeue", node_list="n1")
SHORT = JobState("FAILED", "sacct", exit_code=75, exit_signal=0, node_list="n1")
DONE = JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0, node_list="n1")
GONE = JobState("CANCELLED", "sacct", exit_code=0, exit_signal=0)
ENDED = JobState("CANCELLED", "sacct", exit_code=0, exit_signal=15, node_list="n1")
LOST = JobState("NODE_FAIL", "sacct", exit_code=0, exit_signal=0, node_list="n1")


CHAIN = run_of(job("1"), job("2", "1"), job("3", "1", "2"))


@pytest.mark.parametrize(
    ("states", "decides"),
    [
        ((RUNS, WAITS, WAITS), "1"),
        ((QUEUED, WAITS, WAITS), "1"),
        ((SHORT, WAITS, WAITS), "2"),
        ((SHORT, RUNS, WAITS), "2"),
        ((DONE, GONE, GONE), "1"),
        ((DONE, WAITS, WAITS), "1"),
        ((SHORT, DONE, GONE), "2"),
        ((SHORT, SHORT, DONE), "3"),
        ((SHORT, SHORT, SHORT), "3"),
        ((SHORT, GONE, GONE), "1"),  # cancelled before they began
        ((SHORT, SHORT, GONE), "2"),
        ((SHORT, ENDED, GONE), "2"),  # cancelled while it ran
        ((GONE, GONE, GONE), "1"),
        ((LOST, WAITS, WAITS), "1"),  # it may be queued again
        ((LOST, QUEUED, WAITS), "2"),  # it was not, or the next one would wait
        ((None, RUNS, WAITS), "2"),  # forgotten, but the next one runs only if it ended
        ((None, WAITS, WAITS), "1"),
    ],
)
def test_of_chained_jobs_the_first_that_has_not_failed_decides(
    states: tuple[JobState | None, ...], decides: str
) -> None:
    known = dict(zip("123", states, strict=True))
    assert list(decisive(CHAIN, known)) == [decides]


def test_a_run_that_was_resumed_stands_as_its_newest_job() -> None:
    assert decisive(run_of(job("1"), job("2")), {"1": DONE, "2": QUEUED}) == {"2": QUEUED}


def test_tasks_that_were_not_resumed_keep_their_state() -> None:
    record = run_of(job("1", array=[0, 1, 2]), job("2", array=[1]))
    known = {"1_0": DONE, "1_1": SHORT, "1_2": DONE, "2_1": RUNS}
    assert decisive(record, known) == {"1_0": DONE, "2_1": RUNS, "1_2": DONE}


def test_a_run_whose_submission_nobody_confirmed_has_no_state() -> None:
    assert decisive(run_of(JobRecord(nodes=1, ranks_per_node=1)), {}) == {}
