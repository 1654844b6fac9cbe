"""The rules that decide failures which no pattern names, each with what it must not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.failures.ends import ProcessEnd, explain, in_words_of
from fsdpkit.reporting.diagnosis.evidence import MachineEvidence
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import HEAD_SILENT, FailureRecord, Level
from fsdpkit.runs.log_ends import LogText, part_from
from fsdpkit.runs.outcomes import AttemptVerdict, Ending, Trouble
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import RESET, agent, batch, found, rank

TOP = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    f()\n'
SHELL = "/var/spool/slurmd/job7/slurm_script: "


def cause_of(err: str, status: int = 1) -> str:
    answer = explain(ProcessEnd(status=status, err=err))
    assert answer is not None
    return answer.shown.cause


def test_a_sure_word_of_the_same_cause_counts_before_an_earlier_one_that_is_not() -> None:
    """A rank whose end no agent recorded speaks first, by the lines that it printed last."""
    why = "train.py, line 5, makes a process group of 1 where the job has 4 ranks."
    told = found(
        rank(2, None, status=78, time_s=9.0, log=f"fsdpkit: {why}\n"),
        rank(0, why, time_s=10.0, cause="wrong-world"),
    )
    assert (told.cause, told.rank) == ("wrong-world", 0)
    assert told.sentence == f"The ranks did not train together: rank 0 on node1: {why}"


def test_it_is_told_as_perhaps_and_only_where_nobody_else_speaks() -> None:
    shell = batch("error: no interpreter found\n")
    assert found(shell).sentence.startswith("Perhaps: ")
    assert found(shell, rank(0, "KeyError: 'mask'")).cause == "exception"
    assert found(shell, agent("node1", "bad-gpu")).cause == "bad-gpu"


def test_srun_names_the_node_that_failed_and_a_daemon_only_where_it_runs_itself() -> None:
    lost = "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED DUE TO NODE FAILURE ***\n"
    survivor = Voice(kind="agent", node="node1", logs=(LogText(lost, Path("7_0_log.err")),))
    told = found(survivor, batch("srun: error: Node failure on node2\n"))
    assert (told.cause, told.node) == ("node-failure", "node2")


def test_slurm_says_why_it_ended_a_job_whose_head_node_was_cut_off() -> None:
    """The head's agent takes the others for lost, and its shell only sees that the job is ended."""
    words = {"name": "node2", "status": 71, "cause": "node-failure", "level": Level.OUTSIDE}
    lost = Trouble(
        cause="node-failure",
        status=71,
        message="node2: no sign of life",
        lost=("node2",),
        failure=FailureRecord(by="agent", words="no sign of life", **words),
    )
    told = found(
        agent("node2", "connection-reset", rule=HEAD_SILENT),
        state=JobState("NODE_FAIL", "sacct"),
        head="node1",
        verdict=AttemptVerdict(trouble=lost, warned=True, cut_off=True),
        ending=Ending(action="end", status=71, cause="cancelled", why="cancelled"),
    )
    assert (told.cause, told.node) == ("node-failure", "node1")


def test_a_part_of_a_file_begins_with_the_last_line_that_has_the_words(tmp_path: Path) -> None:
    log = tmp_path / "rank-5.err"
    log.write_text("step\n[rank5]: Traceback\none\n[rank5]: Traceback\ntwo\n" + "noise\n" * 99)
    part = part_from(log, b"]: Traceback", 1 << 20, 30)
    assert part is not None
    assert (part.text.splitlines()[:2], part.line) == (["[rank5]: Traceback", "two"], 4)
    assert part_from(log, b"]: Traceback", 60, 30) is None
    assert part_from(tmp_path / "none", b"x", 60, 30) is None


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


def test_a_rank_that_was_asked_to_dump_does_not_count_as_one_that_waited() -> None:
    words = (
        "[rank0]:[E1122 a.cpp:1] Received a dump signal due to a collective timeout from rank 5\n"
    )
    aborted = explain(ProcessEnd(status=134, err=words))
    assert aborted is not None
    assert aborted.shown.cause == "hang"
    assert explain(ProcessEnd(err=words)) is None


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
