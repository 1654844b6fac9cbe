"""The rules that decide failures which no pattern names, each with what it must not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.failures.ends import ProcessEnd, explain, in_words_of
from fsdpkit.reporting.diagnosis.evidence import MachineEvidence
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import FailureRecord
from fsdpkit.runs.log_ends import LogText, part_from
from fsdpkit.runs.outcomes import AttemptVerdict, Trouble
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import RESET, agent, batch, found, rank

TOP = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    f()\n'
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
SHELL = "/var/spool/slurmd/job7/slurm_script: "


def cause_of(err: str, status: int = 1) -> str:
    answer = explain(ProcessEnd(status=status, err=err))
    assert answer is not None
    return answer.shown.cause


@pytest.mark.parametrize(
    ("state", "cause"),
    [("TIMEOUT", "time-limit"), ("PREEMPTED", "preemption"), ("CANCELLED", "cancelled")],
)
def test_an_interrupt_follows_from_what_slurm_did(state: str, cause: str) -> None:
    first = "rank 0 on node1: KeyboardInterrupt"
    told = found(
        rank(0, "KeyboardInterrupt"),
        rank(1, "SignalException: Process 41 got signal: 15"),
        state=JobState(state, "sacct", exit_code=0, exit_signal=15),
        verdict=AttemptVerdict(trouble=Trouble(cause="crash", status=1, message=first)),
    )
    assert told.cause == cause


def test_a_sure_word_of_the_same_cause_counts_before_an_earlier_one_that_is_not() -> None:
    """A rank whose end no agent recorded speaks first, by the lines that it printed last."""
    why = "train.py, line 5, makes a process group of 1 where the job has 4 ranks."
    told = found(
        rank(2, None, status=78, time_s=9.0, log=f"fsdpkit: {why}\n"),
        rank(0, why, time_s=10.0, cause="wrong-world"),
    )
    assert (told.cause, told.rank) == ("wrong-world", 0)
    assert told.sentence == f"The ranks did not train together: rank 0 on node1: {why}"


def test_an_interrupt_is_told_where_nobody_says_who_sent_it() -> None:
    assert found(rank(0, "KeyboardInterrupt")).cause == "exception"


def test_a_file_missed_while_a_full_disk_is_handled_follows_from_the_disk() -> None:
    full = "OSError: [Errno 28] No space left on device\n"
    missed = "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/a.tmp'\n"
    assert cause_of(TOP + full + HANDLING + TOP + missed) == "disk-full"
    assert cause_of(TOP + missed + HANDLING + TOP + "KeyError: 'mask'\n") == "exception"


def test_a_gpus_memory_is_not_the_nodes_though_its_exception_has_the_same_end() -> None:
    handled = f"{TOP}KeyError: 'cache'\n" + "".join(f"step {n} loss 2\n" for n in range(9))
    last = "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n"
    assert cause_of(handled + last, status=3) == "gpu-out-of-memory"


def test_a_quoted_line_is_data_but_for_one_that_is_quoted_as_a_whole() -> None:
    words = '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"\n'
    assert cause_of(words, status=134) == "version-mismatch"
    assert cause_of(f"{TOP}ValueError: cannot parse 'CUDA out of memory'\n") == "exception"


def test_it_is_told_as_perhaps_and_only_where_nobody_else_speaks() -> None:
    shell = batch("error: no interpreter found\n")
    assert found(shell).sentence.startswith("Perhaps: ")
    assert found(shell, rank(0, "KeyError: 'mask'")).cause == "exception"
    assert found(shell, agent("node1", "bad-gpu")).cause == "bad-gpu"


def test_a_part_of_a_file_begins_with_the_last_line_that_has_the_words(tmp_path: Path) -> None:
    log = tmp_path / "rank-5.err"
    log.write_text("step\n[rank5]: Traceback\none\n[rank5]: Traceback\ntwo\n" + "noise\n" * 99)
    part = part_from(log, b"]: Traceback", 1 << 20, 30)
    assert part is not None
    assert (part.text.splitlines()[:2], part.line) == (["[rank5]: Traceback", "two"], 4)
    assert part_from(log, b"]: Traceback", 60, 30) is None
    assert part_from(tmp_path / "none", b"x", 60, 30) is None


def test_an_exception_that_refers_to_what_stands_above_is_told_by_it() -> None:
    above = "E1122 cuda_dnn.cc:407] Loaded CuDNN 8.5.0 but source was compiled with: 8.6.0\n"
    last = "XlaRuntimeError: FAILED_PRECONDITION: cuDNN failed. Look at the errors above\n"
    assert cause_of(above + TOP + last) == "version-mismatch"
    assert cause_of(above + TOP + "RuntimeError: cuDNN failed\n") == "exception"


def test_what_hydra_refuses_is_a_setting_and_what_the_program_raised_is_not() -> None:
    hint = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    assert cause_of(f"In 'config': Could not find 'model/xxl'\n{hint}") == "settings"
    assert cause_of(f"{TOP}KeyError: 'mask'\n{hint}") == "exception"


CHILD = "[ERROR] [launch.py:322] ['python', 'main.py'] exits with return code = -9\n"


@pytest.mark.parametrize(("share", "cause"), [(0.99, "host-out-of-memory"), (0.2, "unknown")])
def test_a_child_that_was_killed_is_taken_as_the_rank_itself(share: float, cause: str) -> None:
    told = found(
        rank(1, "exit status 247", status=247, log=CHILD),
        machines={"node1": MachineEvidence(memory_share=share)},
    )
    assert (told.cause, told.rank) == (cause, 1)
    assert told.action


def test_a_status_above_all_signals_is_told_as_a_status() -> None:
    assert in_words_of(247) == "exit status 247"
    assert in_words_of(137).startswith("ended by signal 9")


def test_a_failure_with_a_cause_of_its_own_is_not_said_to_have_followed() -> None:
    full = rank(6, "OSError: [Errno 122] Disk quota exceeded", time_s=3.0)
    lost = rank(2, "RuntimeError: Connection reset by peer", time_s=2.0)
    later = rank(3, "RuntimeError: a bad sample", time_s=4.0)
    told = found(
        rank(1, "torch.OutOfMemoryError: CUDA out of memory", time_s=1.0), full, lost, later
    )
    assert told.cause == "gpu-out-of-memory"
    assert [line.partition(" on")[0] for line in told.also] == ["rank 6"]
    assert [line.partition(" on")[0] for line in told.follow_on] == ["rank 2", "rank 3"]


def test_one_file_system_has_one_failure() -> None:
    stale = rank(1, "OSError: [Errno 116] Stale file handle", time_s=1.0)
    missed = rank(2, "FileNotFoundError: [Errno 2] No such file: '/lustre/a.bin'", time_s=2.0)
    told = found(stale, missed)
    assert (told.cause, told.also, len(told.follow_on)) == ("storage", (), 1)


@pytest.mark.parametrize(("name", "cause"), [("Terminated", "cancelled"), ("Killed", "unknown")])
def test_a_step_that_somebody_ended_is_cancelled_unless_a_rank_failed(
    name: str, cause: str
) -> None:
    words = f"*** STEP 7.0 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE to SIGNAL {name} ***"
    shell = batch(f"slurmstepd: error: {words}\n")
    ended = rank(0, "ended by signal 15 (SIGTERM)", status=143)
    assert found(shell, ended).cause == cause
    assert found(shell, ended, rank(1, "KeyError: 'mask'")).cause == "exception"


def test_memory_of_the_host_that_is_broken_is_the_nodes_failure() -> None:
    words = "Memory failure: 0x1d: Sending SIGBUS to python:41 due to hardware memory corruption"
    crashed = rank(2, "ended by signal 7 (SIGBUS)", status=135)
    assert found(crashed, batch(f"{words}\n")).cause == "node-failure"
    corrected = "mce: [Hardware Error]: Machine check events logged"
    assert found(crashed, batch(f"{corrected}\n")).cause == "exception"


def test_a_rank_that_was_asked_to_dump_does_not_count_as_one_that_waited() -> None:
    words = (
        "[rank0]:[E1122 a.cpp:1] Received a dump signal due to a collective timeout from rank 5\n"
    )
    aborted = explain(ProcessEnd(status=134, err=words))
    assert aborted is not None
    assert aborted.shown.cause == "hang"
    assert explain(ProcessEnd(err=words)) is None


def test_a_hint_behind_a_preludes_error_is_not_the_error() -> None:
    lines = "fatal: detected dubious ownership\nTo add an exception for this directory, call:\n"
    told = found(batch(f"fsdpkit: one node (node1)\n{lines}"))
    assert told.evidence[0].text.startswith("fatal: ")


def test_what_concerns_the_whole_job_is_told_in_plain_sentences() -> None:
    lines = "fsdpkit: one node (node1)\ncurl: (7) Failed to connect to pypi.org\n"
    assert found(batch(lines)).sentence.startswith("The job could not reach ")
    cancelled = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\n"
    assert found(batch(cancelled)).sentence == "The job was cancelled."
    booting = found(state=JobState("BOOT_FAIL", "sacct", exit_code=0, exit_signal=0))
    assert booting.sentence == "A node failed: Slurm's state is BOOT_FAIL."
    refused = found(batch("srun: error: Something is wrong with the nodes.\n"))
    assert refused.sentence.startswith("Perhaps: Slurm will not run ")
    assert (
        "in the job" in found(batch(f"fsdpkit: one node (node1)\n{SHELL}Zeile 4: a: b.\n")).sentence
    )


def test_a_hang_up_that_somebody_sent_is_no_crash_of_native_code() -> None:
    told = found(rank(1, None, status=129, log="step 5\n"))
    assert (told.cause, told.rank) == ("unknown", 1)
    assert "SIGHUP" in told.sentence


def test_a_level_of_a_newer_release_is_the_highest_that_this_one_knows() -> None:
    judged = FailureRecord(by="agent", name="node1", status=78, cause="bad-gpu", level=9)
    voice = Voice(kind="agent", node="node1", status=78, message=LogText("gone"), told=judged)
    assert found(voice, rank(0, RESET)).cause == "bad-gpu"


def test_a_crash_below_a_library_is_told_with_the_line_of_the_script() -> None:
    err = (
        "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
        '  File "/home/ada/other.py", line 9 in wait\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/ada/train.py", line 3 in <module>\n\n'
        "Extension modules: numpy\n"
    )
    told = found(rank(1, None, status=139, log=err))
    assert "string_at" in told.sentence
    assert "/home/ada/train.py:3" in told.sentence


def test_what_ended_a_thread_may_be_why_its_rank_did_not_come() -> None:
    waits = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
    log = f"Exception in thread Thread-3 (load):\n{TOP}MemoryError\n"
    silent = rank(3, None, status=None, time_s=None, log=log)
    told = found(*(rank(n, waits) for n in range(3)), silent, ranks=4)
    assert (told.cause, told.rank) == ("host-out-of-memory", 3)
    assert told.sentence.startswith("Perhaps: ")
