"""What follows when ranks, nodes or an attempt end: the decisions, without anything running."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.config.retry import Retry
from fsdpkit.launching.policy import (
    AttemptFacts,
    EndAttempt,
    JobFacts,
    Restart,
    after_attempt,
    after_launch,
    cause_of,
    first_trouble,
)
from fsdpkit.runs.failures import FailureRecord, Level
from fsdpkit.runs.outcomes import WARNING, Trouble
from tests.launching.made_reports import record, report


def trouble(cause: Any = "crash", words: str = "x", **fields: Any) -> Trouble:
    failure = FailureRecord(by="rank", name="node2", rank=1, status=1, words=words)
    told = {"message": failure.message, "failure": failure}
    return Trouble(**{"cause": cause, "status": 1, **told, **fields})


def launch(
    *troubles: Trouble, spares: int = 0, most: int = 3, **retry: Any
) -> Restart | EndAttempt:
    return after_launch(
        troubles[-1], troubles[:-1], Retry(**{"backoff_s": 4.0, **retry}), most=most, spares=spares
    )


# ---- Within an attempt


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"words": "no x", "rank": 3, "name": "n2"}, {"words": "no x", "rank": 61}, True),
        ({"words": "bind 10.0.0.1:2937 failed"}, {"words": "bind 10.0.0.2:3144 failed"}, True),
        ({"words": "'a'", "rank": 0}, {"words": "'b'", "rank": 0}, False),
        ({"exception": "KeyError"}, {"exception": "ValueError"}, False),
        ({"place": "train.py:3"}, {"place": "train.py:9"}, False),
        ({"cause": "disk-full"}, {"cause": "exception"}, False),
    ],
)
def test_what_another_rank_says_of_the_same_failure_is_the_same(
    first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    """Which of 64 ranks reports an ImportError first differs each time."""
    told = [FailureRecord(**{"by": "rank", "status": 1, **fields}) for fields in (first, second)]
    again = launch(*(trouble(failure=one) for one in told))
    assert isinstance(again, EndAttempt) is same
    assert not isinstance(again, EndAttempt) or again.came_back


def test_a_crash_starts_the_ranks_again_and_each_time_later() -> None:
    first, second, third = (trouble(step=step) for step in (5, 9, 12))
    assert launch(first) == Restart(4.0)
    assert launch(first, second) == Restart(8.0)
    assert launch(first, second, third) == Restart(16.0)


def test_the_wait_grows_to_five_minutes_and_no_further() -> None:
    troubles = [trouble(step=step) for step in range(20)]
    assert launch(*troubles, most=100) == Restart(300.0)


def test_what_comes_back_at_the_same_step_is_not_started_again() -> None:
    end = launch(trouble(step=7), trouble(step=7))
    assert isinstance(end, EndAttempt)
    assert "after step 7 again" in end.why


def test_a_crash_before_the_first_step_twice_is_said_so() -> None:
    end = launch(trouble(step=-1), trouble(step=-1))
    assert isinstance(end, EndAttempt)
    assert "before the first step" in end.why


def test_another_trouble_at_the_same_step_is_another_trouble() -> None:
    assert isinstance(launch(trouble("crash", step=7), trouble("hang", step=7)), Restart)


def test_ranks_that_tell_no_steps_are_judged_by_their_words_and_only_if_they_were_quick() -> None:
    assert isinstance(launch(trouble(lasted_s=10), trouble(lasted_s=10)), EndAttempt)
    assert isinstance(launch(trouble(lasted_s=10), trouble(lasted_s=4000)), Restart)
    assert isinstance(launch(trouble(words="a"), trouble(words="b")), Restart)


def test_the_budget_of_restarts_is_kept_and_named() -> None:
    end = launch(*(trouble(step=step) for step in range(4)), most=3)
    assert isinstance(end, EndAttempt)
    assert "retry.restarts" in end.why
    assert isinstance(launch(trouble(step=1), most=0), EndAttempt)


@pytest.mark.parametrize("cause", ["stopped", "storage", "settings", "preflight"])
def test_what_starting_again_cannot_cure_ends(cause: str) -> None:
    assert isinstance(launch(trouble(cause, step=3)), EndAttempt)


@pytest.mark.parametrize(
    ("cause", "key"),
    [("crash", "on_crash"), ("hang", "on_hang"), ("out-of-memory", "on_out_of_memory")],
)
def test_each_cause_has_its_own_answer(cause: str, key: str) -> None:
    assert isinstance(launch(trouble(cause, step=3), **{key: "restart"}), Restart)
    for answer in ("requeue", "stop"):
        assert isinstance(launch(trouble(cause, step=3), **{key: answer}), EndAttempt)


def test_a_lost_node_is_replaced_while_there_are_spares() -> None:
    lost = trouble("node-failure", lost=("node2",), step=3)
    assert isinstance(launch(lost, spares=1), Restart)
    assert isinstance(launch(lost, lost, spares=1), Restart)  # each time another node
    end = launch(lost, spares=0)
    assert isinstance(end, EndAttempt)
    assert "resources.spare" in end.why
    both = trouble("node-failure", lost=("node2", "node3"))
    assert isinstance(launch(both, spares=1), EndAttempt)
    assert isinstance(launch(lost, spares=1, on_node_failure="requeue"), EndAttempt)


# ---- What came first


@pytest.mark.parametrize(
    "words",
    [
        "Connection reset by peer",
        "[gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:7: Software caused it",
    ],
)
def test_a_rank_that_lost_its_peer_is_never_the_cause(words: str) -> None:
    follows = report(0, status=1, message=words, time_ns=1, rank=0)
    killed = report(1, status=137, message="ended by signal 9 (SIGKILL)", time_ns=2, rank=1)
    found = first_trouble([follows, killed], [], 5.0)
    assert found is not None
    assert (found.status, found.message.split(":")[0]) == (137, "rank 1 on node2")


def test_of_two_failures_the_earlier_is_the_cause() -> None:
    late = report(0, status=3, message="late", time_ns=9, rank=0)
    early = report(1, status=4, message="early", time_ns=8, rank=1)
    found = first_trouble([late, early], [], 5.0)
    assert found is not None
    assert found.status == 4


def test_a_failure_counts_more_than_ranks_that_stopped_as_asked() -> None:
    stopped = report(0, status=75, message="stopped early", time_ns=1, rank=0)
    failed = report(1, status=1, message="x", time_ns=2, rank=1)
    found = first_trouble([stopped, failed], [], 5.0)
    assert found is not None
    assert found.cause == "crash"
    alone = first_trouble([stopped], [], 5.0)
    assert alone is not None
    assert alone.cause == "stopped"


def test_of_ranks_that_hang_the_one_that_is_not_waiting_is_named() -> None:
    waits = report(0, "hung", status=124, level=Level.WAITED, message="waits", time_ns=1)
    hangs = report(1, "hung", status=124, message="it is at train.py:3", time_ns=2, rank=1)
    found = first_trouble([waits, hangs], [], 5.0)
    assert found is not None
    assert found.cause == "hang"
    assert found.message.startswith("rank 1 on node2")


def test_a_silent_node_explains_what_all_others_report() -> None:
    crash = report(0, status=1, message="anything", time_ns=1, rank=0, step=4)
    found = first_trouble([crash], ["node2"], 5.0)
    assert found is not None
    assert (found.cause, found.lost, found.step) == ("node-failure", ("node2",), 4)


def test_a_gpu_that_is_broken_takes_its_node_out() -> None:
    broken = report(1, status=1, message="CUDA error: uncorrectable ECC error encountered", rank=5)
    found = first_trouble([broken], [], 5.0)
    assert found is not None
    assert (found.cause, found.lost) == ("node-failure", ("node2",))


def test_no_trouble_is_none() -> None:
    assert first_trouble([report(0, "done"), report(1, "done")], [], 5.0) is None


@pytest.mark.parametrize(
    ("status", "message", "cause"),
    [
        (75, "", "stopped"),
        (74, "the disk is full", "storage"),
        (74, "could not be written: [gloo/…] Read error: Connection reset by peer", "crash"),
        (71, "the head node's agent does not answer any more", "crash"),
        (1, "RuntimeError: prefetch worker 3: no sign of life for 60 s", "crash"),
        (1, "RuntimeError: rank 3 gave up waiting for other ranks to release it", "crash"),
        (78, "", "settings"),
        (65, "", "settings"),
        (2, "UsageError: no such thing", "settings"),
        (2, "exit status 2", "crash"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried …", "out-of-memory"),
        (137, "ended by signal 9", "crash"),
        (1, "ValueError", "crash"),
    ],
)
def test_a_cause_is_read_from_status_and_words(status: int, message: str, cause: str) -> None:
    assert cause_of(record(status, message, rank=3)) == cause


# ---- After an attempt

RUNNING = JobFacts(requeue=True)


def attempt(told: Trouble | None = None, *, job: JobFacts = RUNNING, **fields: Any) -> AttemptFacts:
    return AttemptFacts(
        **{"status": 1, "job": job, "trouble": told, "decided": told is not None, **fields}
    )


def action(facts: AttemptFacts, **retry: Any) -> str:
    return after_attempt(facts, Retry(**retry)).action


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_rank_that_has_no_room_to_write_ends_with_74_whatever_it_wrote(words: str) -> None:
    full = report(1, message=f"OSError: [Errno 28] {words}: 'rank-1.out'", rank=1)
    found = first_trouble([full], [], 9.0)
    assert found is not None
    assert (found.cause, found.status) == ("storage", 74)


def test_what_is_done_ends_with_0() -> None:
    ending = after_attempt(attempt(status=0, decided=True), Retry())
    assert (ending.action, ending.status, ending.cause) == ("end", 0, "done")


def test_status_0_without_a_verdict_is_no_success() -> None:
    ending = after_attempt(attempt(status=0, decided=False), Retry())
    assert (ending.action, ending.status, ending.cause) == ("end", 70, "unknown")


STOPPED = trouble("stopped", status=75)


def test_a_warning_brings_the_job_back_if_the_policy_says_so() -> None:
    assert action(attempt(STOPPED)) == "requeue"
    assert action(attempt(STOPPED), on_time_limit="stop") == "end"
    preempted = JobFacts(requeue=True, preempted=True)
    assert action(attempt(STOPPED, job=preempted), on_time_limit="stop") == "requeue"
    assert action(attempt(STOPPED, job=preempted), on_preemption="stop") == "end"


@pytest.mark.parametrize("request_", ["cancel", "", "please"])
def test_who_asked_to_stop_gets_a_job_that_stays_away(request_: str) -> None:
    ending = after_attempt(attempt(STOPPED, request=request_), Retry())
    assert (ending.action, ending.cause, ending.status) == ("end", "cancelled", 75)


def test_who_was_asked_to_stop_because_no_gpu_computes_is_told_so_and_stays_away() -> None:
    for told in (STOPPED, trouble("idle", status=143), trouble("crash")):
        ending = after_attempt(attempt(told, request="idle: no GPU computed"), Retry())
        assert (ending.action, ending.cause, ending.why) == ("end", "idle", "no GPU computed")
        assert ending.status == told.status
    done = after_attempt(attempt(status=0, decided=True, request="idle: x"), Retry())
    assert (done.cause, done.status) == ("done", 0)


def test_scancel_is_the_last_word() -> None:
    for told in (STOPPED, trouble(), None):
        facts = attempt(
            told, job=JobFacts(ending=True, reason="None", requeue=True), request=WARNING
        )
        assert action(facts, on_crash="requeue") == "end"


def test_a_job_over_its_limit_comes_back_even_if_it_had_no_time_to_save() -> None:
    over = JobFacts(ending=True, reason="TimeLimit", requeue=True)
    assert action(attempt(None, job=over, request=WARNING, status=137)) == "requeue"


def test_what_slurm_queues_again_itself_is_left_to_it() -> None:
    gone = JobFacts(ending=True, requeue=True, requeued=True)
    ending = after_attempt(attempt(trouble("node-failure", lost=("node2",)), job=gone), Retry())
    assert (ending.action, ending.cause, ending.avoid) == ("end", "node-failure", ("node2",))


def test_a_crash_that_the_agents_gave_up_ends_and_keeps_its_status() -> None:
    ending = after_attempt(attempt(trouble(status=3), why="it came back"), Retry())
    assert (ending.action, ending.status) == ("end", 3)
    assert ending.why.endswith("it came back")
    assert action(attempt(trouble()), on_crash="requeue") == "requeue"


FULL = trouble("storage", status=74)
NO_MEMORY = trouble("out-of-memory")
NO_NODE = trouble("node-failure")


@pytest.mark.parametrize(
    ("facts", "retry", "for_good"),
    [
        (attempt(trouble(), came_back=True), {}, True),
        (attempt(trouble("hang"), came_back=True), {}, True),
        (attempt(trouble(), why="3 restarts are used up"), {}, False),
        (attempt(trouble()), {"on_crash": "stop"}, True),
        (attempt(NO_MEMORY), {}, True),
        (attempt(NO_MEMORY), {"on_out_of_memory": "restart"}, False),
        (attempt(FULL), {}, True),
        (attempt(trouble("settings", status=78)), {}, True),
        (attempt(NO_NODE), {"on_node_failure": "stop"}, False),
        (attempt(NO_NODE, fruitless=9), {}, False),
        (attempt(STOPPED), {"on_time_limit": "stop"}, False),
        (attempt(STOPPED, request="cancel"), {}, False),
        (attempt(STOPPED, request="idle: no GPU computed"), {}, True),
        (attempt(trouble(), came_back=True, job=JobFacts(ending=True)), {}, False),
        (attempt(trouble(), came_back=True), {"on_crash": "requeue"}, False),
        (attempt(status=0), {}, False),
        (attempt(None, status=137), {}, False),
    ],
)
def test_what_is_chained_behind_a_job_starts_unless_it_would_only_meet_the_same(
    facts: AttemptFacts, retry: dict[str, Any], for_good: bool
) -> None:
    assert after_attempt(facts, Retry(**retry)).for_good == for_good


def test_agents_that_were_killed_before_they_could_decide_come_back() -> None:
    """srun, which then ends the others, sends SIGTERM: that is no warning of the scheduler's."""
    facts = attempt(trouble(), decided=False, request=WARNING, status=137)
    ending = after_attempt(facts, Retry())
    assert (ending.action, ending.cause) == ("requeue", "crash")
    assert action(facts, on_crash="stop") == "end"


def test_a_script_that_failed_before_the_agents_ran_ends() -> None:
    assert action(attempt(None, status=78)) == "end"
    assert action(attempt(None, status=127)) == "end"


def test_a_lost_node_is_left_out_next_time() -> None:
    ending = after_attempt(attempt(trouble("node-failure", lost=("node2",))), Retry())
    assert (ending.action, ending.avoid) == ("requeue", ("node2",))
    assert action(attempt(trouble("node-failure")), on_node_failure="stop") == "end"


def test_a_node_that_was_replaced_is_avoided_though_all_went_well() -> None:
    ending = after_attempt(attempt(status=0, decided=True, losses=(("node2",),)), Retry())
    assert (ending.action, ending.status, ending.avoid) == ("end", 0, ("node2",))


def test_a_job_over_its_limit_that_was_preempted_once_comes_back() -> None:
    over = JobFacts(ending=True, reason="TimeLimit", preempted=True, requeue=True)
    assert action(attempt(STOPPED, job=over)) == "requeue"


def test_attempts_that_get_nowhere_come_to_an_end() -> None:
    assert action(attempt(STOPPED, fruitless=3), requeues=3) == "requeue"
    ending = after_attempt(attempt(STOPPED, fruitless=4), Retry(requeues=3))
    assert ending.action == "end"
    assert "4 attempts in a row left no new checkpoint" in ending.why


def test_where_the_cluster_queues_nothing_again_the_job_ends_and_says_so() -> None:
    for job in (JobFacts(requeue=False), JobFacts()):
        ending = after_attempt(attempt(STOPPED, job=job), Retry())
        assert ending.action == "end"
        assert "does not queue a job again" in ending.why


@given(
    st.builds(
        AttemptFacts,
        status=st.integers(0, 255),
        job=st.builds(JobFacts, reason=st.sampled_from([None, "None", "TimeLimit"])),
        trouble=st.none()
        | st.builds(
            Trouble,
            cause=st.sampled_from(
                ["stopped", "crash", "hang", "out-of-memory", "node-failure", "storage", "settings"]
            ),
            status=st.integers(1, 255),
            message=st.text(min_size=1, max_size=9),
        ),
        decided=st.booleans(),
        warned=st.booleans(),
        request=st.sampled_from([None, WARNING, "cancel", ""]),
        fruitless=st.integers(0, 9),
    )
)
def test_whatever_the_facts_a_failure_is_no_success_and_stop_means_stop(
    facts: AttemptFacts,
) -> None:
    stop: Any = {f"on_{x}": "stop" for x in ("time_limit", "preemption", "node_failure", "crash")}
    stop |= {"on_hang": "stop", "on_out_of_memory": "stop"}
    for retry in (Retry(), Retry(**stop)):
        ending = after_attempt(facts, retry)
        well = facts.trouble is None and facts.status == 0 and facts.decided
        assert (ending.status == 0) == well
        assert ending.why
        if facts.request in ("cancel", ""):
            assert ending.action == "end"
    assert ending.action == "end"
