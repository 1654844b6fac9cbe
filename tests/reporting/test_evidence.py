"""What is read of a run's directory for the diagnosis, and how much of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import NotFoundError
from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import Evidence, MustRead, gather, gather_from
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs import log_ends
from fsdpkit.runs.failures import FailureRecord, in_a_line
from fsdpkit.runs.layout import RunPaths, TaskPaths
from fsdpkit.runs.log_ends import end_of
from tests.reporting.log_runs import raised
from tests.reporting.made_run import JOB, T0, ends, launches, made_run, starts, write_lines

SACCT = f"{JOB}|FAILED|1:0|1:0|None|node[1-2]\n"
RESET = "RuntimeError: Connection reset by peer"
BY_A_SHELL = (
    "fsdpkit: node1: cannot load the module x\nfsdpkit: failed: environment-missing 78 node1\n"
)


def fails(
    task: TaskPaths,
    number: int,
    at_s: float,
    node: int,
    message: str,
    rank: int | None = None,
    status: int = 1,
) -> None:
    """A failure as the node's agent records it."""
    end = "" if rank is None else f"-rank-{rank}"
    file = task.attempt(number).failures / f"{int(at_s * 1e9):020}-node-{node}{end}"
    file.write_text(in_a_line(record(node, message, rank, status=status)))


def record(node: int, message: str, rank: int | None = None, **more: Any) -> FailureRecord:
    by = "agent" if rank is None else "rank"
    fields = {"status": 1, "words": message, **more}
    return FailureRecord(by=by, name=f"node{node + 1}", rank=rank, **fields)


def log(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_with_an_attempt(place: Path, **fields: Any) -> TaskPaths:
    run = made_run(place / "t5-1", state="FAILED", exit_code=1, **fields)
    task = RunPaths(run.dir).task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    return task


def voice(evidence: Evidence, **wanted: object) -> Voice:
    attempts = evidence.tasks[0].attempts
    assert attempts
    voices = [v for v in attempts[-1].voices if all(getattr(v, k) == w for k, w in wanted.items())]
    assert len(voices) == 1, voices
    return voices[0]


def diagnosed(task: TaskPaths, sacct: str = SACCT) -> Diagnosis:
    return diagnose(gather_from(task.dir, {"sacct": sacct}))


def test_a_rank_is_heard_through_its_agent_s_record_its_own_and_its_log(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20.5, 1, "ValueError: bad", rank=2)
    raised(task.attempt(0), 2, T0 + 20, "ValueError: bad")
    raised(task.attempt(0), 0, T0 + 21, RESET)
    log(task.attempt(0).dir, "rank-2.err", "first\nsecond\n")
    evidence = gather_from(task.dir, {"sacct": SACCT})
    two = voice(evidence, rank=2)
    assert (two.node, two.status, two.time_s) == ("node2", 1, T0 + 20.5)
    assert two.message
    assert two.message.text == "ValueError: bad"
    assert two.raised
    assert two.raised.chain[0].message == "bad"
    assert [(text.file and text.file.name, text.line) for text in two.logs] == [("rank-2.err", 1)]
    assert voice(evidence, rank=0).time_s == T0 + 21
    assert (diagnose(evidence).rank, diagnose(evidence).evidence[0].line) == (2, 1)


def test_a_log_is_read_from_its_end_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = run_with_an_attempt(tmp_path)
    path = task.dir / f"slurm-{JOB}.log"
    with open(path, "wb") as file:
        file.truncate(4 << 30)  # takes no room: it is a hole
        file.seek(0, os.SEEK_END)
        file.write(b"\nsrun: error: Node failure on node2\n")
    evidence = gather_from(task.dir, {"sacct": SACCT})
    (text,) = voice(evidence, kind="batch").logs
    assert len(text.text) < 1 << 20
    assert text.line is None  # nobody counted four billion bytes' lines
    diagnosis = diagnose(evidence)
    assert (diagnosis.cause, diagnosis.node) == ("node-failure", "node2")


@pytest.mark.parametrize("most", [10, 64, 1000, 10_000])
def test_lines_of_an_end_keep_their_numbers(tmp_path: Path, most: int) -> None:
    lines = [f"line {number}" for number in range(1, 501)]
    path = log(tmp_path, "a.log", "\n".join(lines) + "\n")
    text = end_of(path, most)
    assert text
    assert text.line
    for place, line in enumerate(text.text.splitlines()):
        assert line == lines[text.line - 1 + place]
    assert text.line_at(text.text.index("line 500")) == 500


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert end_of(path, 100) is None
    path.write_bytes(b"\xff\xfe caf\xe9\n")
    text = end_of(path, 100)
    assert text
    assert "caf\ufffd" in text.text


def test_of_a_thousand_ranks_the_end_of_each_is_read_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = run_with_an_attempt(tmp_path, nodes=2, ranks_per_node=512)
    for rank in range(1024):
        log(task.attempt(0).dir, f"rank-{rank}.err", "x" * 100_000)
    fails(task, 0, T0 + 20, 1, "exit status 1", rank=1001)
    log(task.attempt(0).dir, "rank-1001.err", "x\n" * 50_000 + "ValueError: bad\n")
    read: list[int] = []
    whole = log_ends.end_of
    monkeypatch.setattr(
        "fsdpkit.reporting.diagnosis.sources.end_of",
        lambda file, most: (read.append(most), whole(file, most))[1],
    )
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.evidence[0].line) == (
        "exception",
        1001,
        50_001,
    )
    assert len(read) >= 1024, "the culprit may stand anywhere"
    assert sum(read) < 64 << 20


def test_the_culprit_is_found_among_512_ranks_though_nobody_recorded_it(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path, nodes=2, ranks_per_node=256)
    header = "[rank{0}]: Traceback (most recent call last):\n"
    lost = header + "[rank{0}]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
    for rank in range(512):
        log(task.attempt(0).dir, f"rank-{rank}.err", lost.format(rank))
    raised = "[rank300]: Traceback (most recent call last):\n[rank300]: ValueError: bad sample\n"
    log(task.attempt(0).dir, "rank-300.err", raised)
    fails(task, 0, T0 + 20, 0, "ConnectionResetError: [Errno 104] Connection reset by peer", rank=0)
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == ("exception", 300, "node2")


def test_launches_that_were_got_over_are_not_the_cause(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20, 0, "OSError: [Errno 28] No space left on device", rank=0)
    raised(task.attempt(0), 0, T0 + 20, "OSError: [Errno 28] No space left on device")
    write_lines(
        task.attempt(0).dir / "orders.jsonl",
        {
            "time_s": T0 + 21,
            "event": "trouble",
            "cause": "crash",
            "message": "rank 0 on node1: full",
        },
    )
    launches(task, 0, T0 + 25, launch=1)
    fails(task, 0, T0 + 40, 1, "ValueError: bad", rank=2)
    raised(task.attempt(0), 2, T0 + 40, "ValueError: bad", launch=1)
    told = "fsdpkit: rank 0 on node1: No space left on device; starting the ranks again in 5 s\n"
    log(task.dir, f"submitit/{JOB}_0_log.out", told)
    log(task.dir, f"submitit/{JOB}_0_log.err", "")
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.follow_on) == ("exception", 2, ())
    assert diagnosis.earlier == (
        "the ranks of attempt 0 were started again after: rank 0 on node1: full",
    )


def test_clocks_that_are_known_to_be_off_do_not_decide_who_was_first(tmp_path: Path) -> None:
    run = made_run(tmp_path / "t5-1", state="FAILED", exit_code=1)
    task = RunPaths(run.dir).task()
    starts(task, 0, T0, offsets_s=(0.0, -60.0))
    launches(task, 0, T0 - 100)
    fails(task, 0, T0 + 20, 0, "ValueError: first", rank=0)
    fails(task, 0, T0 - 30, 1, "ValueError: second", rank=2)  # its clock is a minute slow
    assert diagnosed(task).rank == 0


def test_failures_that_only_logs_hold_are_heard_when_the_disk_was_full(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    words = "OSError: [Errno 28] No space left on device: '/x'"
    line = f"fsdpkit: {in_a_line(record(0, words, 1))}"
    for node in (0, 1):
        log(task.dir, f"submitit/{JOB}_{node}_log.err", line)
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == ("disk-full", 1, "node1")


def test_what_the_head_repeats_on_each_node_is_not_taken_for_that_nodes_own(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20, 1, "ModuleNotFoundError: No module named 'apex'", rank=2)
    line = "fsdpkit: rank 2 on node2: ModuleNotFoundError: No module named 'apex'\n"
    log(task.dir, f"submitit/{JOB}_0_log.err", line)
    log(task.dir, f"slurm-{JOB}.log", line)
    diagnosis = diagnosed(task)
    assert (diagnosis.rank, diagnosis.node, diagnosis.follow_on) == (2, "node2", ())


def test_of_a_log_that_attempts_share_only_the_newest_part_counts(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    starts(task, 1, T0 + 100)
    began = "fsdpkit: 2 nodes (node1 node2), head node1 at 10.0.0.1:10001\n"
    before = (
        f"{began}slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-22T00:14:34 DUE TO "
        "PREEMPTION ***\n"
    )
    log(task.dir, f"slurm-{JOB}.log", f"{before}{began}srun: error: Node failure on node2\n")
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.attempt, diagnosis.evidence[0].line) == (
        "node-failure",
        1,
        4,
    )
    log(task.dir, f"slurm-{JOB}.log", f"{began}srun: error: Node failure on node2\n{began}")
    assert diagnosed(task).cause == "unknown"
    requeued = before.replace("PREEMPTION", "JOB REQUEUE")
    log(task.dir, f"slurm-{JOB}.log", f"{requeued}{BY_A_SHELL}")
    assert diagnosed(task).cause == "environment-missing"


def test_of_a_node_s_log_what_the_start_before_wrote_does_not_count(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    starts(task, 1, T0 + 100)
    fails(task, 1, T0 + 120, 1, "OutOfMemoryError: CUDA out of memory.", rank=3)
    lost = f"fsdpkit: {in_a_line(record(1, 'lost', cause='node-failure', level=6))}"
    again = f"fsdpkit: node 0 (node1), start 2 of job {JOB}\n"
    log(task.dir, f"submitit/{JOB}_0_log.err", f"{lost}{again}")
    assert diagnosed(task).cause == "gpu-out-of-memory"
    log(task.dir, f"submitit/{JOB}_0_log.err", f"{again}{lost}")
    assert diagnosed(task).cause == "node-failure"


def test_what_rank_0_copies_into_its_nodes_log_is_not_the_agents(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    text = "rank 0: halving: CUDA out of memory\nrank 0: ModuleNotFoundError: x\n"
    log(task.dir, f"submitit/{JOB}_0_log.err", text)
    assert diagnosed(task).cause == "unknown"


def test_an_agent_that_breaks_is_known_by_its_nodes_log(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    log(
        task.dir,
        f"submitit/{JOB}_0_log.out",
        "fsdpkit: node 0 (node1) at 10.0.0.1, sockets on ib0\n",
    )
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nNameError: name x\n'
    log(task.dir, f"submitit/{JOB}_0_log.err", text)
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.node, diagnosis.evidence[0].line) == (
        "exception",
        "node1",
        3,
    )


def test_a_job_that_made_no_directory_is_read_by_its_log(tmp_path: Path) -> None:
    run = made_run(tmp_path / "t5-1", state="FAILED", exit_code=78)
    log(run.dir, f"slurm-{JOB}.log", BY_A_SHELL)
    diagnosis = diagnose(gather(run))
    assert (diagnosis.cause, diagnosis.attempt, diagnosis.node) == (
        "environment-missing",
        None,
        "node1",
    )


def test_a_job_that_was_cancelled_after_a_requeue_was_not_ended_by_what_requeued_it(
    tmp_path: Path,
) -> None:
    task = run_with_an_attempt(tmp_path)
    ends(task, 0, T0 + 50, cause="preemption")
    log(task.dir, f"slurm-{JOB}.log", "slurmstepd-node1: error: *** JOB 7 DUE TO PREEMPTION ***\n")
    diagnosis = diagnosed(task, f"{JOB}|CANCELLED by 0|0:0|0:0|None|None assigned\n")
    assert (diagnosis.cause, diagnosis.attempt) == ("cancelled", None)
    assert "preempted" in diagnosis.earlier[0]


def test_memory_that_was_full_at_the_end_is_read_where_a_rank_was_killed(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20, 1, "ended by signal 9 (SIGKILL)", rank=2, status=137)
    sample = {"time_s": T0, "memory_total_bytes": 100, "memory_used_bytes": 40}
    write_lines(
        task.attempt(0).node_samples(1), sample, {**sample, "memory_used_bytes": 99}, '{"time'
    )
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank) == ("host-out-of-memory", 2)


@pytest.mark.parametrize(
    "name", ["verdict.json", "ending.json", "rank-2.raised.json", "orders.jsonl"]
)
def test_a_torn_file_is_passed_over(tmp_path: Path, name: str) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20, 1, "ValueError: bad", rank=2)
    log(task.attempt(0).dir, name, '{"trouble": {"cause": "cra')
    diagnosis = diagnosed(task)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == ("exception", 2, "node2")


def test_of_what_slurm_printed_the_end_is_told_by_whoever_knows_it_best(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    said = {
        "squeue.txt": f"{JOB}|CANCELLED|None|node1\n",
        "sacct.txt": f"{JOB}|CANCELLED by 4711|0:15|0:0|None|node1\n",
        "scontrol.txt": f"JobId={JOB} JobState=CANCELLED Reason=None ExitCode=0:15\n",
    }
    evidence = gather_from(task.dir, said)
    assert evidence.unread == ()
    assert diagnose(evidence).sentence == "The job was cancelled by 4711."
    assert evidence.tasks[0].job
    assert evidence.tasks[0].job.state
    assert evidence.tasks[0].job.state.exit_signal == 15
    assert gather_from(task.dir, {}).unread == (
        "squeue was not asked",
        "sacct was not asked",
        "scontrol was not asked",
    )


def test_a_pending_job_brings_what_scontrol_says_of_it(tmp_path: Path) -> None:
    run = made_run(tmp_path / "t5-1", state=None, kind="slurm")
    said = {
        "squeue": f"{JOB}|PENDING|InvalidAccount|\n",
        "scontrol": f"JobId={JOB} JobState=PENDING Reason=InvalidAccount Account=ghost\n",
    }
    diagnosis = diagnose(gather_from(run.dir, said))
    assert (diagnosis.cause, diagnosis.rank) == ("refused", None)
    assert "ghost" in diagnosis.sentence


def test_a_directory_whose_job_nobody_knows_is_told_of_as_far_as_it_goes(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    assert diagnose(gather_from(task.dir)).cause == "unknown"
    fails(task, 0, T0 + 20, 1, "ValueError: bad", rank=2)
    diagnosis = diagnose(gather_from(task.dir))
    assert (diagnosis.cause, diagnosis.rank) == ("exception", 2)
    assert "sacct was not asked" in diagnosis.looked_at


def test_of_an_array_tasks_that_went_well_are_not_read(tmp_path: Path) -> None:
    run = made_run(tmp_path / "t5-1", state="FAILED", exit_code=1, array=[0, 1, 2])
    for number in (0, 1):
        task = run.paths.task(number)
        starts(task, 0, T0)
        launches(task, 0, T0 + 10)
    fails(run.paths.task(1), 0, T0 + 20, 0, "ValueError: bad", rank=0)
    said = {
        "sacct": f"{JOB}_0|COMPLETED|0:0|0:0|None|n\n{JOB}_1|FAILED|1:0|1:0|None|n\n"
        f"{JOB}_2|FAILED|1:0|1:0|None|n\n"
    }
    evidence = gather_from(run.dir, said)
    assert [task.attempts is None for task in evidence.tasks] == [True, False, False]
    diagnosis = diagnose(evidence)
    assert (diagnosis.task, diagnosis.cause, diagnosis.sharing) == (1, "exception", 1)
    with pytest.raises(NotFoundError, match="no task 9"):
        gather(run, MustRead(task=9))


@pytest.mark.parametrize(
    ("job", "reads"),
    [('{"name": "a"}', False), ('{"training": {}}', True), ('{"name": ', True), ("[]", True)],
)
def test_whether_a_script_reads_training_settings_is_known_by_its_job(
    tmp_path: Path, job: str, reads: bool
) -> None:
    task = run_with_an_attempt(tmp_path)
    RunPaths(task.dir).job.write_text(job)
    assert gather_from(task.dir, {"sacct": SACCT}).reads_training is reads


def test_a_rank_that_wrote_nothing_and_left_early_is_known_by_its_agent(tmp_path: Path) -> None:
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20, 1, RESET, rank=2)
    ends = {"0": {"status": 0, "time_s": T0 + 19}, "1": {"status": 143, "time_s": T0 + 21}}
    event = {"time_s": T0 + 21, "event": "ranks-ended", "launch": 0, "ranks": ends}
    with task.attempt(0).node_events(0).open("a") as file:
        file.write(json.dumps(event) + "\n")
    found = diagnosed(task)
    assert (found.cause, found.rank, found.node) == ("collective-mismatch", 0, "node1")


def test_every_node_of_a_large_job_is_looked_at(tmp_path: Path) -> None:
    names = [f"node{number + 1}" for number in range(300)]
    run = made_run(tmp_path / "t5-1", state="FAILED", exit_code=1, nodes=len(names))
    task = RunPaths(run.dir).task()
    starts(task, 0, T0, nodes=names, offsets_s=[0.0] * len(names))
    launches(task, 0, T0 + 10)
    gone = {"time_s": T0 + 20, "gpus": [{"xids": [79]}]}
    write_lines(task.attempt(0).node_samples(289), gone)
    machines = gather_from(task.dir, {"sacct": SACCT}).tasks[0].attempts[-1].machines
    assert "79" in str(machines["node290"].broken_gpu)
