"""Done needs a verdict: what the run's own files add to the scheduler's word."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.runs import outcomes
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Ending, Trouble
from fsdpkit.runs.record import RunRecord
from fsdpkit.scheduling.outcome import judged, left_by, may_be_unseen
from fsdpkit.scheduling.run_states import settled
from fsdpkit.scheduling.states import JobState
from tests.scheduling.records import job, run_of

COMPLETED = JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0, end_s=1000.0)
STOPPED = JobState("FAILED", "sacct", exit_code=75, exit_signal=0, end_s=1000.0)
FAILED = JobState("FAILED", "sacct", exit_code=1, exit_signal=0)
ON_REQUEST = AttemptVerdict(
    trouble=Trouble(cause="stopped", status=75, message="rank 0: stopped early")
)
CANCELLED = Ending(action="end", status=75, cause="cancelled", why="asked to stop", step=120)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def attempt(
    paths: RunPaths,
    number: int,
    verdict: AttemptVerdict | None,
    ending: Ending | None = None,
    task: int | None = None,
) -> None:
    files = paths.task(task).attempt(number)
    files.dir.mkdir(parents=True)
    for path, record in ((files.verdict, verdict), (files.ending, ending)):
        if record is not None:
            outcomes.write(path, record)


def told(
    paths: RunPaths, state: JobState, record: RunRecord | None = None, job_id: str = "1"
) -> Any:
    found = judged(paths, record or run_of(job("1")), job_id, state)
    return found.word, found.succeeded, found.exit_status, found.describe()


def test_what_an_agent_vouches_for_is_done(paths: RunPaths) -> None:
    attempt(paths, 0, AttemptVerdict())
    assert told(paths, COMPLETED) == ("COMPLETED", True, 0, "COMPLETED")


def test_status_0_without_a_verdict_is_not_known_to_be_done(paths: RunPaths) -> None:
    """Whatever ended with 0: a shell function called srun, a forged order, a killed agent."""
    assert told(paths, COMPLETED) == (
        "UNKNOWN", False, 70, "UNKNOWN: it is COMPLETED, but no attempt of it is on record"
    )  # fmt: skip
    attempt(paths, 0, None)
    assert told(paths, COMPLETED)[2:] == (
        70,
        "UNKNOWN: it is COMPLETED, but no agent left a verdict",
    )


def test_a_verdict_of_an_earlier_attempt_or_job_vouches_for_none_later(paths: RunPaths) -> None:
    attempt(paths, 0, AttemptVerdict())
    attempt(paths, 1, None)
    assert told(paths, COMPLETED)[0] == "UNKNOWN"
    later = msgspec.structs.replace(job("2"), first_attempt=2)
    assert told(paths, COMPLETED, run_of(job("1"), later), "2")[3].endswith("is on record")


def test_a_verdict_that_speaks_of_trouble_does_not_vouch(paths: RunPaths) -> None:
    attempt(paths, 0, ON_REQUEST)
    assert told(paths, COMPLETED)[0] == "UNKNOWN"


def test_each_task_of_an_array_needs_its_own(paths: RunPaths) -> None:
    record = run_of(job("1", array=[0, 3]))
    attempt(paths, 0, AttemptVerdict(), task=3)
    assert told(paths, COMPLETED, record, "1_3")[0] == "COMPLETED"
    assert told(paths, COMPLETED, record, "1_0")[0] == "UNKNOWN"


def test_what_ended_on_request_with_its_work_saved_is_stopped(paths: RunPaths) -> None:
    attempt(paths, 0, ON_REQUEST, CANCELLED)
    assert told(paths, STOPPED) == (
        "STOPPED", False, 75, "STOPPED: asked to stop; saved at step 120"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        (None, CANCELLED),
        (ON_REQUEST, None),
        (AttemptVerdict(trouble=Trouble(cause="crash", status=75, message="no")), CANCELLED),
        (ON_REQUEST, msgspec.structs.replace(CANCELLED, action="requeue")),
    ],
)
def test_status_75_alone_is_no_stop_on_request(
    paths: RunPaths, verdict: AttemptVerdict | None, ending: Ending | None
) -> None:
    attempt(paths, 0, verdict, ending)
    assert told(paths, STOPPED)[:3] == ("FAILED", False, 75)


def test_what_failed_or_goes_on_is_as_the_scheduler_says(paths: RunPaths) -> None:
    for state in (FAILED, JobState("RUNNING", "squeue"), JobState("NODE_FAIL", "sacct")):
        assert judged(paths, run_of(job("1")), "1", state) is state


def test_a_file_may_be_seen_late_so_unknown_is_settled_only_after_a_while(paths: RunPaths) -> None:
    state = judged(paths, run_of(job("1")), "1", COMPLETED)
    assert may_be_unseen(state, 1030.0)
    assert not may_be_unseen(state, 1061.0)
    ended = settled(job("1"), {"1": state}).ended
    assert ended
    assert ended["1"]["outcome"] == "unknown"
    just_now = replace(state, end_s=time.time())
    assert settled(job("1"), {"1": just_now}).ended is None


def test_of_a_job_that_slurm_forgot_its_own_last_word_counts(paths: RunPaths) -> None:
    record = run_of(job("1"))
    assert left_by(paths, record, "1") is None
    attempt(paths, 0, AttemptVerdict(), Ending(action="end", status=0, cause="done", why="done"))
    well = left_by(paths, record, "1")
    assert well is not None
    assert (well.word, well.succeeded, well.final, well.source) == (
        "COMPLETED",
        True,
        True,
        "files",
    )
    crashed = AttemptVerdict(trouble=Trouble(cause="crash", status=4, message="no"))
    attempt(paths, 1, crashed, Ending(action="end", status=4, cause="crash", why="no"))
    badly = left_by(paths, record, "1")
    assert badly is not None
    assert (badly.word, badly.exit_status) == ("FAILED", 4)
    attempt(paths, 3, None, Ending(action="end", status=143, cause="preemption", why="preempted"))
    preempted = left_by(paths, record, "1")
    assert preempted is not None
    assert preempted.state == "PREEMPTED"
    attempt(paths, 4, crashed, Ending(action="requeue", status=4, cause="crash", why="no"))
    assert left_by(paths, record, "1") is None, "it may wait again, wherever that is"


def test_a_preemption_that_was_seen_is_what_is_left_of_a_job_that_slurm_forgot(
    paths: RunPaths,
) -> None:
    now_s = time.time()
    seen = JobState("PREEMPTED", "squeue", exit_code=0, exit_signal=15, end_s=now_s)
    known = settled(job("1"), {"1": seen}, whole=True)
    assert (known.ended, [*(known.seen or {})]) == (None, ["1"]), "Slurm may queue it again"
    attempt(paths, 0, None)
    found = left_by(paths, run_of(known), "1")
    assert found is not None
    assert found.state == "PREEMPTED"
    earlier = replace(seen, end_s=now_s - 3600)
    assert settled(job("1"), {"1": earlier}, whole=False).ended is None, "nobody asked slurmctld"
    ended = settled(job("1"), {"1": earlier}, whole=True)
    assert (ended.ended is not None, ended.seen) == (True, None)
    later = settled(job("1"), {"1": earlier}, whole=False)
    (paths.task().attempt(0).dir / "rank-0.out").touch()
    assert left_by(paths, run_of(later), "1") is None, "it has written since"
