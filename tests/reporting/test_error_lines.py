"""Of many failures the one that counts comes first, with its own words; the others say so."""

from __future__ import annotations

from pathlib import Path

from fsdpkit.reporting.logs.errors import FailedAttempt, errors_in
from fsdpkit.runs.history import history_of
from fsdpkit.scheduling.run import Run
from tests.reporting.log_runs import (
    T0_S,
    append,
    attempt_of,
    ending,
    failure,
    launch,
    make_run,
    raised,
    ready,
    trouble,
)

RESET = "RuntimeError: [pair.cc:{}] Connection reset by peer"


def errors(run: Run, number: int = 0) -> FailedAttempt:
    return errors_in(history_of(run.paths, run.record).attempts[number], run.paths, run.record)


def test_the_first_failing_rank_comes_first_with_its_traceback_and_follow_ons_say_so(
    tmp_path: Path,
) -> None:
    """A25: though a peer's clock is ahead, and each node keeps only one failure."""
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 9, 0, 0, f"1 rank 0 on node1: {RESET.format(537)}")
    failure(attempt, T0_S + 10, 1, 3, "1 rank 3 on node2: ValueError: the loss is a walrus")
    raised(attempt, 3, T0_S + 10, "ValueError: the loss is a walrus")
    trace = "Traceback (most recent call last):\n  File x\nValueError: the loss is a walrus"
    append(attempt.rank_file(3, "err", 0), trace)
    for rank in (0, 1, 2):
        raised(attempt, rank, T0_S + 9, RESET.format(rank))
        append(attempt.rank_file(rank, "err", 0), "not worth reading")
    first, second = errors(run).broken
    assert (first.who, first.message) == ("rank 3 on node2", "ValueError: the loss is a walrus")
    assert not first.follow_on
    assert list(first.details) == trace.splitlines()
    assert first.file == attempt.dir / "rank-3.err"
    assert second.follow_on
    assert not second.details
    assert (second.who, *second.same) == ("rank 0 on node1", "rank 1 on node1", "rank 2 on node2")


def test_a_rank_that_died_without_a_word_is_shown_with_the_end_of_its_standard_error(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 5, 0, 1, "139 rank 1 on node1: ended by signal 11 (SIGSEGV)")
    append(attempt.dir / "rank-1.err", "".join(f"line {n}\n" for n in range(50)) + "\nno end")
    (broken,) = errors(run).broken
    assert broken.message == "ended by signal 11 (SIGSEGV)"
    assert broken.details[-2:] == ("line 49", "no end")
    assert len(broken.details) <= 20


def test_without_a_failure_of_its_own_the_lost_connection_is_no_follow_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 5, 0, 1, f"1 rank 1 on node1: {RESET.format(1)}")
    (broken,) = errors(run).broken
    assert not broken.follow_on


def test_failures_belong_to_their_launch_and_a_lost_node_is_named_by_the_verdict(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    failure(attempt, T0_S - 60, 1, None, "78 node2: only 0 GB")
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 5, 0, 0, "3 rank 0 on node1: exit status 3")
    trouble(attempt, T0_S + 6, "rank 0 on node1: exit status 3")
    launch(attempt, 1, T0_S + 8)
    failure(attempt, T0_S + 90, 0, 1, f"1 rank 1 on node1: {RESET.format(1)}")
    trouble(attempt, T0_S + 99, "node2: no sign of life", "node-failure")
    told = [(b.launch, b.who, b.message.split(":")[0], b.follow_on) for b in errors(run).broken]
    assert told == [
        (None, "node2", "only 0 GB", False),
        (0, "rank 0 on node1", "exit status 3", False),
        (1, "node2", "no sign of life", False),
        (1, "rank 1 on node1", "RuntimeError", True),
    ]


def test_which_was_first_is_told_by_one_clock(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    ready(attempt, 0)
    ready(attempt, 1, clock_offset_s=30.0)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 5, 0, 0, "1 rank 0 on node1: KeyError: 0")
    failure(attempt, T0_S + 34, 1, 2, "1 rank 2 on node2: ValueError: 2")
    launch(attempt, 1, T0_S + 10)
    assert [(b.launch, b.rank) for b in errors(run).broken] == [(0, 2), (0, 0)]


def test_ranks_that_stopped_as_asked_are_no_failure_beside_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 1, 0, 0, "75 rank 0 on node1: stopped early as asked, after saving")
    assert [b.message for b in errors(run).broken] == ["stopped early, as asked"]
    failure(attempt, T0_S + 2, 1, 2, "9 rank 2 on node2: exit status 9")
    assert [b.message for b in errors(run).broken] == ["exit status 9"]


def test_where_nobody_recorded_a_failure_the_start_up_logs_speak(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    ending(attempt_of(run), "unknown", "srun ended with status 1")
    append(
        run.dir / "slurm-12.log",
        "loading\nfsdpkit: 2 nodes (node1 node2), head node1 at 10.0.0.1:10001\n",
    )
    append(run.paths.submitit / "12_1_log.err", "fsdpkit: node2: there is no route to the head\n")
    told = {log.file.name: list(log.lines) for log in errors(run).logs}
    assert told == {
        "slurm-12.log": ["loading"],
        "12_1_log.err": ["fsdpkit: node2: there is no route to the head"],
    }


def test_slurm_s_own_errors_stand_beside_the_failure_and_nothing_else_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 5, 0, 1, "137 rank 1 on node1: ended by signal 9 (SIGKILL)")
    kill = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0."
    append(run.dir / "slurm-12.log", f"module loaded\n{kill}\n")
    assert [log.lines for log in errors(run).logs] == [(kill,)]


def test_an_attempt_that_is_well_has_no_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    append(run.dir / "slurm-12.log", "error: a module said so, and went on\n")
    ending(attempt_of(run), "done")
    assert not errors(run)
