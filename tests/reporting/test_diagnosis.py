"""The diagnosis, from evidence made up here: which cause wins, who is named, what is not said."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.errors import STEP_FAILED, ConfigError, NodeError, NotFoundError, UsageError
from fsdpkit.failures.causes import CAUSES
from fsdpkit.failures.ends import follows
from fsdpkit.reporting.diagnosis.diagnose import diagnose
from fsdpkit.reporting.diagnosis.evidence import (
    AttemptEvidence,
    Evidence,
    JobEvidence,
    TaskEvidence,
)
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.log_ends import LogText
from fsdpkit.runs.outcomes import WARNING, AttemptVerdict, Ending, Trouble
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import FAILED, RESET, agent, attempt, batch, found, of, rank
from tests.reporting.said import all_said

FOLLOW_ONS = (
    RESET,
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4928",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a "
    "network error\nncclRemoteError: A call failed possibly due to a network error",
    "DistNetworkError: failed to recv, got 0 bytes",
    "RuntimeError: Socket Timeout",
    "RuntimeError: NCCL communicator was aborted on rank 3.",
    "ended by signal 15 (SIGTERM)",
)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/data/corpus.bin'", "ls -ld"),
        ("PermissionError: [Errno 1] Operation not permitted: '/runs/x/model.pt'", "ls -ld"),
        ("OSError: [Errno 24] Too many open files: '/data/000123.tar'", "RLIMIT_NOFILE"),
        ("PermissionError: [Errno 13] Permission denied", "--errors"),
    ],
)
def test_what_the_kernel_refused_of_a_file_gets_advice_of_its_own(
    message: str, advice: str
) -> None:
    diagnosis = found(rank(3, message))
    assert (diagnosis.cause, diagnosis.rank) == ("exception", 3)
    assert advice in (diagnosis.action or "")


@pytest.mark.parametrize(
    "message",
    [
        "DistNetworkError: The server socket has failed to listen on any address. port: 12345",
        "RuntimeError: cannot bind: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
        "OSError: [Errno 98] É usado",
    ],
)
def test_a_port_that_a_rank_chose_is_not_blamed_on_the_job(message: str) -> None:
    log = f"Traceback (most recent call last):\n{message}\n"
    for by_rank in (found(rank(3, message)), found(rank(3, "exit status 1", log=log))):
        assert by_rank.cause == "port-taken"
        assert "leave MASTER_ADDR and MASTER_PORT unchanged" in (by_rank.action or "")
    by_agent = found(agent("node1", "port-taken", words="port 10001 is taken on the head node"))
    assert "Submit again" in (by_agent.action or "")


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (JobState("TIMEOUT", "sacct", exit_code=0, exit_signal=15), "time-limit"),
        (JobState("PREEMPTED", "sacct", exit_code=0), "preemption"),
        (JobState("NODE_FAIL", "sacct", exit_code=1), "node-failure"),
        (JobState("OUT_OF_MEMORY", "sacct", exit_code=0, exit_signal=125), "host-out-of-memory"),
        (JobState("CANCELLED", "sacct", exit_code=0, cancelled_by="ada"), "cancelled"),
        (JobState("FAILED", "sacct", exit_code=0, exit_signal=53), "script-not-visible"),
    ],
)
def test_slurms_state_explains_whatever_ranks_say(state: JobState, cause: str) -> None:
    assert found(rank(0, RESET), state=state).cause == cause
    assert found(state=state).cause == cause


def test_it_says_who_cancelled_the_job() -> None:
    state = JobState("CANCELLED", "sacct", exit_code=0, cancelled_by="ada")
    assert found(state=state).sentence == "The job was cancelled by ada."
    unnamed = found(state=JobState("CANCELLED", "squeue"))
    assert unnamed.sentence == "The job was cancelled."


@pytest.mark.parametrize(
    ("step", "request_", "stopped", "sentence"),
    [
        (1200, "cancel", True, "cancelled with --save; its work up to step 1,200 is saved."),
        (None, "cancel", True, "cancelled with --save, but it has no checkpoint."),
        (1200, "cancel", False, "cancelled."),  # ended before the ranks could save
        (1200, None, True, "cancelled."),
        (1200, WARNING, True, "cancelled."),  # scancel, of which Slurm warned
    ],
)
def test_of_a_run_that_was_to_save_first_it_says_whether_its_work_is_saved(
    step: int | None, request_: str | None, stopped: bool, sentence: str
) -> None:
    trouble = Trouble(cause="stopped" if stopped else "crash", status=75, message="rank 0 on node1")
    why = "asked to stop and not to come back"
    diagnosis = found(
        state=JobState("FAILED", "sacct", exit_code=75),
        verdict=AttemptVerdict(trouble=trouble, warned=True),
        ending=Ending(action="end", status=75, cause="cancelled", why=why, step=step),
        request=request_,
    )
    assert diagnosis.sentence == f"The job was {sentence}"
    assert diagnosis.action is not None
    assert "To go on: fsdpkit resume" in diagnosis.action


def test_every_entry_is_complete() -> None:
    for name, cause in CAUSES.items():
        assert cause.name == name
        assert set(re.findall(r"\{(\w+)\}", cause.sentence)) <= {"who", "words"}
        for pattern in cause.patterns:
            assert pattern.why
            assert all(len(words) > 2 for words in pattern.words)
    wrong = (UsageError, ConfigError, NotFoundError, NodeError)
    assert CAUSES["settings"].statuses == {error.exit_code for error in wrong}
    assert CAUSES["own-step"].statuses == {STEP_FAILED}


@pytest.mark.parametrize(
    "message",
    ["torch.OutOfMemoryError: CUDA out of memory.", "MemoryError", "ValueError: loss is nan"],
)
def test_a_script_that_reads_no_training_settings_is_not_told_to_change_them(message: str) -> None:
    ours = of(attempt(rank(0, message)))
    theirs = diagnose(msgspec.structs.replace(ours, reads_training=False))
    assert "training." in (diagnose(ours).action or "")
    assert theirs.action
    assert "training." not in theirs.action


def test_a_process_that_left_without_an_exception_has_no_traceback_to_read() -> None:
    crashed = found(rank(0, "ended by signal 11 (SIGSEGV)", status=139))
    left = found(rank(0, "exit status 3", status=3))
    assert "Native code" in (crashed.action or "")
    assert "printed no exception" in (left.action or "")
    assert "--errors" in (found(rank(0, "ValueError: x")).action or "")


# Who came first, and what only followed


IN_THE_LOG = {said.cause: said.words for said in all_said() if said.who == "batch"}
BY_RANKS = {said.cause: said.words for said in all_said() if said.who == "rank"}
OWN_CAUSES = sorted(BY_RANKS.keys() - {"hang", "rendezvous-timeout"})
A_FOLLOW_ON = st.builds(
    lambda number, message, time_s: rank(
        number, message, status=143 if "SIGTERM" in message else 1, time_s=time_s
    ),
    st.integers(4, 1000),
    st.sampled_from(FOLLOW_ONS),
    st.none() | st.floats(-1e9, 1e9),
)


@settings(max_examples=100)
@given(st.lists(A_FOLLOW_ON, max_size=8), st.permutations(range(4)))
def test_the_order_in_which_files_are_read_changes_nothing(
    more: list[Voice], order: list[int]
) -> None:
    four = [
        rank(0, "RuntimeError: the second", time_s=5.0),
        rank(1, "RuntimeError: the first", time_s=4.0),
        rank(2, RESET, time_s=3.0),
        batch("srun: error: node2: task 1: Exited with exit code 1\n"),
    ]
    diagnosis = found(*more, *(four[place] for place in order))
    assert (diagnosis.rank, diagnosis.cause) == (1, "exception")
    assert diagnosis == found(*(four[place] for place in reversed(order)), *reversed(more))


@pytest.mark.parametrize("message", FOLLOW_ONS[:-1])
def test_the_agents_policy_takes_the_same_words_for_follow_ons(message: str) -> None:
    assert follows(message)
    assert found(rank(0, message)).cause == "connection-reset"


def test_a_failure_that_the_agents_decided_on_is_not_taken_for_its_clearing_away() -> None:
    trouble = Trouble(cause="crash", status=1, message="rank 1 on node1: RuntimeError: bad")
    cancelled = JobState("CANCELLED", "sacct", exit_code=0, cancelled_by="ada")
    voices = (rank(1, "RuntimeError: bad"),)
    before = found(*voices, state=cancelled, verdict=AttemptVerdict(trouble=trouble))
    assert (before.cause, before.rank) == ("exception", 1)
    after = found(*voices, state=cancelled, verdict=AttemptVerdict(trouble=trouble, warned=True))
    assert after.cause == "cancelled"


def test_a_warning_that_only_the_batch_shell_suspects_is_less_than_a_failure() -> None:
    why = "Slurm warned of the end; node2: …"
    ending = Ending(action="end", status=78, cause="time-limit", why=why, asked_slurm=False)
    own = agent("node2", "environment-missing")
    assert found(own, ending=ending).cause == "environment-missing"
    assert found(rank(0, RESET), ending=ending).cause == "time-limit"
    sure = msgspec.structs.replace(ending, asked_slurm=True)
    assert found(own, ending=sure).cause == "time-limit"


def test_ranks_that_stopped_as_they_were_asked_failed_at_nothing() -> None:
    asked = rank(0, "stopped early as asked, after saving a checkpoint", status=75)
    ending = Ending(action="requeue", status=75, cause="preemption", why="preempted; rank 0 …")
    diagnosis = found(asked, ending=ending)
    assert (diagnosis.cause, diagnosis.follow_on) == ("preemption", ())


# What is not guessed


def test_without_evidence_it_says_unknown_and_what_it_looked_at() -> None:
    diagnosis = found(batch("fsdpkit: 2 nodes (node1 node2)\n"))
    assert (diagnosis.cause, diagnosis.action, diagnosis.rank) == ("unknown", None, None)
    assert diagnosis.looked_at == ("the scheduler: FAILED, exit status 1", "slurm-7.log")


def test_an_advice_that_needs_a_node_is_not_given_without_one() -> None:
    gpu = Voice(kind="rank", rank=0, status=1, message=LogText("CUDA error: ECC"))
    assert "exclude" not in str(found(gpu).action)
    broken = rank(0, "CUDA error: ECC")
    assert "exclude" not in str(found(broken).action)
    assert "exclude=node1" in str(found(broken, nodes=2).action)


def test_what_ranks_print_cannot_take_over_a_terminal() -> None:
    diagnosis = found(rank(0, "RuntimeError: \x1b[2J\x1b]0;title\x07 gone"))
    text = diagnosis.sentence + diagnosis.evidence[0].text
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", text)


# Runs that are well, pending, of several attempts, and arrays


RUNNING = JobState("RUNNING", "squeue")
COMPLETED = JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0)


@pytest.mark.parametrize(("state", "cause"), [(RUNNING, "running"), (COMPLETED, "done")])
def test_a_run_that_is_well_is_not_diagnosed_by_what_it_got_over(
    state: JobState, cause: str
) -> None:
    told = ("rank 1 on node1: ended by signal 9 (SIGKILL)",)
    diagnosis = diagnose(
        of(attempt(rank(1, "RuntimeError: x"), state=state, restarts=told), state=state)
    )
    assert (diagnosis.cause, diagnosis.action, diagnosis.rank) == (cause, None, None)
    assert (cause == "done") or diagnosis.earlier == (
        "the ranks of attempt 0 were started again after: " + told[0],
    )


def test_an_exit_code_of_a_completed_job_is_no_success() -> None:
    assert found(state=JobState("COMPLETED", "squeue")).cause == "unknown"


def test_of_several_attempts_the_newest_is_diagnosed_and_the_others_are_named() -> None:
    ending = Ending(action="requeue", status=75, cause="preemption", why="preempted; …")
    first = AttemptEvidence(number=0, ending=ending)
    second = attempt(rank(1, "OutOfMemoryError: CUDA out of memory"), number=1)
    diagnosis = diagnose(of(first, second))
    assert (diagnosis.cause, diagnosis.attempt) == ("gpu-out-of-memory", 1)
    assert diagnosis.earlier == (
        "attempt 0: Slurm preempted the job for one with a higher priority.",
    )
    assert diagnose(of(first, second), 0).cause == "preemption"
    with pytest.raises(NotFoundError, match="no attempt 7"):
        diagnose(of(first, second), 7)


def test_of_an_array_the_first_failing_task_is_told_and_how_many_share_its_cause() -> None:
    def task(number: int, *voices: Voice, state: JobState = FAILED) -> TaskEvidence:
        job = JobEvidence(id=f"7_{number}", state=state)
        return TaskEvidence(number=number, job=job, attempts=(attempt(*voices, state=state),))

    disk = rank(0, "OSError: [Errno 28] No space left on device")
    tasks = (
        task(0, state=COMPLETED),
        task(1, disk),
        task(2, rank(0, "RuntimeError: x")),
        task(3, disk),
        TaskEvidence(number=4, job=JobEvidence(id="7_4", state=FAILED), attempts=None),
    )
    diagnosis = diagnose(msgspec.structs.replace(of(), tasks=tasks))
    assert (diagnosis.cause, diagnosis.task, diagnosis.sharing) == ("disk-full", 1, 2)
    assert diagnosis.unread_tasks == 1


def test_a_submission_that_nobody_confirmed_is_unknown() -> None:
    task = TaskEvidence(number=None, job=None)
    evidence = Evidence(run="t5-1", dir=Path("/runs/x"), submitted=False, tasks=(task,))
    diagnosis = diagnose(evidence)
    assert diagnosis.cause == "unknown"
    assert "sbatch" in diagnosis.sentence


@settings(max_examples=100)
@given(
    st.text(max_size=300),
    st.sampled_from(["rank", "agent", "batch"]),
    st.none() | st.integers(0, 255),
)
def test_any_text_gives_a_diagnosis(text: str, kind: str, status: int | None) -> None:
    voice = Voice(kind=kind, rank=0, status=status, message=LogText(text), logs=(LogText(text),))  # type: ignore[arg-type]
    diagnosis = found(voice)
    assert diagnosis.cause in CAUSES
    assert diagnosis.sentence


def test_who_cancelled_is_named_though_the_jobs_log_only_says_that_it_was_cancelled() -> None:
    state = JobState("CANCELLED", "sacct", exit_code=0, exit_signal=15, cancelled_by="ada")
    log = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-25T12:00:00 ***"
    assert "ada" in found(batch(log), state=state).sentence
