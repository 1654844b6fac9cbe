"""Slurm's words, read without guessing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from fsdpkit.scheduling.states import (
    JobState,
    decided,
    first_word,
    parse_exit_code,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_steps,
    parse_time,
)


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("PENDING", "pending"),
        ("REQUEUED", "pending"),
        ("REQUEUE_HOLD", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("CONFIGURING", "running"),
        ("SUSPENDED", "running"),
        ("RESIZING", "running"),
        ("COMPLETED", "ended"),
        ("PREEMPTED", "ended"),
        ("OUT_OF_MEMORY", "ended"),
        ("NODE_FAIL", "ended"),
        ("SOMETHING_NEW", "unknown"),
    ],
)
def test_every_word_has_its_phase_and_a_new_one_is_unknown(word: str, phase: str) -> None:
    """L6: neither SUSPENDED nor a word of a later Slurm is ever taken for the end."""
    assert JobState(word, "squeue").phase == phase


def test_only_completed_with_zero_is_success() -> None:
    """A24: FAILED with 0:0, and COMPLETED with an unread exit code, are no successes."""
    assert JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0).succeeded
    assert not JobState("FAILED", "sacct", exit_code=0, exit_signal=0).succeeded
    assert not JobState("COMPLETED", "squeue").succeeded
    assert not JobState("COMPLETED", "sacct", exit_code=0, exit_signal=9).succeeded


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0), 0),
        (JobState("FAILED", "sacct", exit_code=3, exit_signal=0), 3),
        (JobState("CANCELLED", "sacct", exit_code=0, exit_signal=15), 143),
        (JobState("FAILED", "sacct", exit_code=0, exit_signal=0), 1),
        (JobState("NODE_FAIL", "squeue"), 1),
    ],
)
def test_wait_s_exit_status_is_never_zero_without_success(state: JobState, status: int) -> None:
    assert state.exit_status == status


def test_a_finished_job_with_a_failed_step_says_so() -> None:
    state = JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0, derived_exit_code=9)
    assert "a step failed with 9" in state.describe()


def test_a_pending_job_has_its_reason_in_parentheses_as_in_squeue() -> None:
    assert JobState("PENDING", "squeue", reason="Resources").describe() == "PENDING (Resources)"
    assert JobState("PENDING", "squeue", reason="None").describe() == "PENDING"


def test_the_last_attempt_s_steps_say_whether_one_failed() -> None:
    """Slurm 22.05, 24.11 and 26.05 alike print 75:0 as the job's own derived exit code here, which
    an attempt before the requeue left."""
    steps = parse_steps(
        "5|0:0\n5.batch|3:0\n5.0|0:0\n6_1|3:0\n6_1.0|0:9\n6_1.1|2:0\n6_1.extern|0:0\n"
    )
    assert steps == {"5": (0, 0), "6_1": (2, 0)}
    assert parse_steps("5|COMPLETED|0:0\n\n") == {}
    visited = "6|0:0|t5\n6.0|0:0|bash\n6.1|7:0|fsdpkit-visit\n"
    assert parse_steps(visited) == {"6": (0, 0)}, "a person's own command does not count"


def test_words_lose_what_slurm_appends() -> None:
    assert first_word("CANCELLED by 1234") == "CANCELLED"
    assert first_word("COMPLETED+") == "COMPLETED"
    assert first_word("") == "UNKNOWN"


def test_exit_codes_are_read_or_not_at_all() -> None:
    assert parse_exit_code("3:15") == (3, 15)
    assert parse_exit_code("") == (None, None)
    assert parse_exit_code("0:0x") == (None, None)


def test_squeue_s_lines_are_read_and_headers_passed_over() -> None:
    """-M prints a line naming the cluster before the jobs."""
    text = "CLUSTER: pitzer\n12|RUNNING|None|p[01-02]\n13_4|PENDING|Priority|\n"
    found = parse_squeue(text)
    assert set(found) == {"12", "13_4"}
    assert found["12"].node_list == "p[01-02]"
    assert found["13_4"].reason == "Priority"


def test_times_are_read_as_seconds_or_as_slurm_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SLURM_TIME_FORMAT=%s, and the standard format in the local time zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    assert parse_time("1795307575") == parse_time("2026-11-22T01:32:55") == 1795307575.0
    assert [parse_time(text) for text in ("N/A", "Unknown", "", "None", "0", "tomorrow")] == [
        None
    ] * 6
    monkeypatch.undo()
    time.tzset()
    found = parse_squeue("12|RUNNING|None|p1|10|20|30\n13|PENDING|Priority||10|N/A|N/A\n")
    assert (found["12"].submit_s, found["12"].start_s, found["12"].end_s) == (10.0, 20.0, 30.0)
    assert (found["13"].submit_s, found["13"].start_s) == (10.0, None)


def test_accounting_tells_by_number_who_cancelled() -> None:
    found = parse_sacct("7|CANCELLED by 1234|0:0|0:15|None|n1|10|20|30\n")["7"]
    assert (found.state, found.cancelled_by) == ("CANCELLED", "1234")
    assert (found.derived_exit_code, found.derived_exit_signal, found.end_s) == (0, 15, 30.0)
    assert found.describe() == "CANCELLED by 1234"


def test_sacct_s_array_ranges_are_expanded() -> None:
    text = "7_[2-3%1]|PENDING|0:0|0:0|Resources|None assigned\n7_1|FAILED|3:0|15:0|NonZero|n1\n"
    found = parse_sacct(text)
    assert set(found) == {"7_1", "7_2", "7_3"}
    assert found["7_1"].exit_code == 3
    assert found["7_1"].derived_exit_code == 15
    assert found["7_2"].node_list is None


def test_scontrol_s_one_line_form_is_read_up_to_what_people_write() -> None:
    text = (
        "JobId=9 JobName=x JobState=COMPLETED Reason=None Restarts=2 ExitCode=0:0 "
        "DerivedExitCode=3:0 NodeList=n[1-2] Command=/x JobState=FAILED ExitCode=9:9\n"
        "JobId=11 ArrayJobId=10 ArrayTaskId=1 JobName=y JobState=RUNNING ExitCode=0:0\n"
    )
    found = parse_scontrol(text)
    assert found["9"].state == "COMPLETED"
    assert (found["9"].restarts, found["9"].derived_exit_code) == (2, 3)
    assert found["10_1"].state == "RUNNING"


def test_a_job_name_cannot_forge_a_state() -> None:
    text = (
        "JobId=9 JobName=a JobState=COMPLETED ExitCode=0:0 UserId=u JobState=FAILED ExitCode=1:0\n"
    )
    assert parse_scontrol(text)["9"].state == "FAILED"


SQUEUE_ENDED = JobState("FAILED", "squeue", reason="NonZeroExitCode")
SACCT_ENDED = JobState("FAILED", "sacct", exit_code=3)
QUEUED_AGAIN = JobState("PENDING", "scontrol")


@pytest.mark.parametrize(
    ("known", "told", "counts"),
    [
        (None, SACCT_ENDED, SACCT_ENDED),
        (SQUEUE_ENDED, SACCT_ENDED, replace(SACCT_ENDED, reason="NonZeroExitCode")),
        (JobState("RUNNING", "squeue"), SACCT_ENDED, JobState("RUNNING", "squeue")),
        (SACCT_ENDED, JobState("FAILED", "scontrol", exit_code=9), SACCT_ENDED),
        (SQUEUE_ENDED, JobState("RUNNING", "sacct"), SQUEUE_ENDED),
        (SQUEUE_ENDED, QUEUED_AGAIN, QUEUED_AGAIN),
    ],
)
def test_of_two_sources_the_sooner_counts_until_an_end_wants_its_exit_code(
    known: JobState | None, told: JobState, counts: JobState
) -> None:
    assert decided(known, told) == counts
