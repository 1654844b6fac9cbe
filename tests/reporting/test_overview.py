"""What a status says of runs, with Slurm's commands replaced by ones that count their calls."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.reporting.status.granted import differences
from fsdpkit.reporting.status.job_words import phase_of
from fsdpkit.reporting.status.overview import all_statuses, one_status
from fsdpkit.reporting.status.status_record import Status
from fsdpkit.runs import record, store
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import JobRecord, RunRecord
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.states import JobState
from tests.conftest import Command

DONE = {"state": "COMPLETED", "source": "sacct", "exit_code": 0, "exit_signal": 0}
JOB = {"resources": {"nodes": 2, "gpus": 4, "time": "12:00:00", "partition": None, "spare": 0}}
MakeRun = Callable[..., Path]
Slurm = Callable[..., None]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run directory with its record below `runs`."""
    count = 0

    def make(
        job_id: str | None, top: Path = tmp_path / "runs", job: Any = JOB, **fields: Any
    ) -> Path:
        nonlocal count
        count += 1
        run_id = f"t5-20260101-{count:06}-aaaa"
        known: dict[str, Any] = {"state": "submitted", "created_s": time.time(), "nodes": 2}
        known |= {"ranks_per_node": 4, "name": "t5", "site": "generic", "kind": "slurm"}
        known |= {"work_dir": "/", "version": "0", "template": "", "digests": {}, **fields}
        directory = top / run_id
        directory.mkdir(parents=True)
        record.save(RunPaths(directory), RunRecord(id=run_id, job_id=job_id, **known))
        (directory / "job.json").write_text(json.dumps(job))
        return directory

    return make


@pytest.fixture
def slurm(command: Command, tmp_path: Path, believed: None) -> Slurm:
    """Puts commands on PATH that note their call in `asked` and then run a line of shell."""

    def put(**lines: str) -> None:
        for name in ("squeue", "sacct", "scontrol"):
            command(name, f'echo "{name} $*" >> {tmp_path}/asked\n{lines.get(name, "exit 1")}')

    put()
    return put


def vouched_for(directory: Path) -> None:
    """As an agent does that has seen all ranks to their end."""
    (directory / "attempt-0").mkdir()
    (directory / "attempt-0" / "verdict.json").write_text("{}")


def asked(tmp_path: Path) -> list[str]:
    path = tmp_path / "asked"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_runs_whose_end_is_on_record_cost_no_question_and_no_other_file(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        make_run(str(number), ended={str(number): DONE})
    read: list[str] = []
    real = os.open

    def noted(path: Any, *args: Any, **kwargs: Any) -> int:
        read.append(os.path.basename(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", noted)
    statuses, left_out = all_statuses(tmp_path / "runs", newest=5)
    assert [s.job_id for s in statuses] == ["29", "28", "27", "26", "25"]
    assert (left_out, {s.phase for s in statuses}) == (25, {"succeeded"})
    # Those shown once more, whole, and what sets them apart.
    assert read == [*["run.json"] * (30 + 5), *["job.json"] * 5]
    assert asked(tmp_path) == []


def test_what_has_not_ended_is_shown_however_old(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    slurm(squeue="echo '1|RUNNING|None|n[1-2]|1|2|3'")
    make_run("1")
    for number in range(2, 10):
        make_run(str(number), ended={str(number): DONE})
    statuses, left_out = all_statuses(tmp_path / "runs", newest=2)
    assert [(s.job_id, s.phase) for s in statuses] == [
        ("9", "succeeded"),
        ("8", "succeeded"),
        ("1", "running"),
    ]
    assert left_out == 6
    assert statuses[-1].nodes == "n[1-2]"


@pytest.mark.parametrize(
    "fields",
    [
        {"ended": None},
        {"ended": {"1": DONE}, "state": "submitting"},
        {"ended": {"1": DONE}, "resuming": JobRecord(nodes=1, ranks_per_node=1)},
        {"ended": {"1": DONE}, "earlier": [JobRecord(job_id="0", nodes=1, ranks_per_node=1)]},
    ],
)
def test_a_run_that_may_go_on_is_not_taken_for_ended(
    fields: dict[str, Any], make_run: MakeRun
) -> None:
    directory = make_run("1", **fields)
    assert store.runs_by_end(directory.parent) == [(directory.name, False)]


def test_who_looks_again_reads_no_ended_run_again(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        made = make_run(str(number), ended={str(number): DONE} if number % 3 else None)
    over: set[str] = set()
    first, opened, real = store.runs_by_end(made.parent, over), list[Any](), os.open

    def counted(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counted)
    assert store.runs_by_end(made.parent, over) == first
    assert len(opened) == 2


def test_records_on_a_slow_file_system_are_waited_for_together(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(90):
        made = make_run(str(number), ended={str(number): DONE} if number % 3 else None)
    (made.parent / "notes").mkdir()
    (made.parent / "notes.txt").touch()
    at_once = store.runs_by_end(made.parent)
    assert [over for _, over in at_once] == [bool(k % 3) for k in reversed(range(90))]
    waiting, most, real = set[object](), 0, os.open

    def late(path: Any, *args: Any, **kwargs: Any) -> int:
        nonlocal most
        waiting.add(path)
        most = max(most, len(waiting))
        time.sleep(0.001)
        waiting.remove(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", late)
    assert store.runs_by_end(made.parent) == at_once
    assert most > 1


def test_all_runs_are_asked_about_at_once_the_unconfirmed_too(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    unheard = [make_run(None, state="submitting") for _ in range(3)]
    for number in range(40):
        make_run(str(number))
    comments = "; ".join(f"echo '9{k}|fsdpkit:{d.name}'" for k, d in enumerate(unheard[:2]))
    states = "; ".join(f"echo '{k}|PENDING|Priority|'" for k in [*range(40), 90, 91])
    slurm(squeue=f'case "$*" in *%F*) {comments};; *) {states};; esac')
    statuses, _ = all_statuses(tmp_path / "runs", newest=None)
    assert asked(tmp_path) == ["squeue", "squeue"]
    by_dir = {status.dir: status for status in statuses}
    found = [by_dir[str(directory)] for directory in unheard]
    assert [(s.job_id, s.phase) for s in found] == [
        ("90", "pending"),
        ("91", "pending"),
        (None, "unknown"),
    ]
    assert found[2].state == "submission not confirmed, and Slurm knows no such job"
    assert record.load(unheard[0]).job_id == "90"  # and is on record now


def test_a_thousand_array_tasks_are_one_question(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    slurm(squeue='for k in {0..999}; do echo "7_$k|PENDING|JobHeldUser|"; done')
    directory = make_run("7", array=[*range(1000)])
    (status,), _ = all_statuses(tmp_path / "runs", newest=20)
    assert asked(tmp_path) == ["squeue"]
    assert (len(status.states), status.phase) == (1000, "pending")
    assert status.state == "1000 PENDING (JobHeldUser)"
    assert status.waiting
    assert status.waiting.never
    assert one_status(directory).tasks == []


def test_of_several_jobs_slurm_is_asked_for_those_of_one_user_not_for_everybody_s(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    """squeue filters a list of jobs itself: slurmctld would send it all users'."""
    slurm(squeue="echo '1|RUNNING|None|n1'; echo '2|RUNNING|None|n1'")
    one = make_run("1")
    one_status(one)
    make_run("2")
    all_statuses(tmp_path / "runs", newest=20)
    lines = (tmp_path / "asked").read_text().splitlines()
    alone, both = (line for line in lines if line.startswith("squeue"))
    assert "-j 1" in alone
    assert "-u" not in alone
    assert f"-j 2,1 -u {os.getuid()}" in both


def test_many_jobs_that_only_the_controller_knows_are_one_question(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    """Without accounting, after a night in which all of them ended."""
    states = "; ".join(f"echo '{k}|COMPLETED|None|n1'" for k in range(50))
    jobs = "; ".join(f"echo 'JobId={k} JobState=COMPLETED ExitCode=0:0'" for k in range(50))
    off = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
    slurm(squeue=states, sacct=off, scontrol=jobs)
    for number in range(50):
        vouched_for(make_run(str(number)))
    statuses, _ = all_statuses(tmp_path / "runs", newest=20)
    assert {status.phase for status in statuses} == {"succeeded"}
    assert asked(tmp_path) == ["squeue", "sacct", "scontrol"]
    all_statuses(tmp_path / "runs", newest=20)
    assert asked(tmp_path) == ["squeue", "sacct", "scontrol"]  # the ends are on record


def test_a_job_that_squeue_does_not_list_is_not_asked_of_the_same_daemon_again(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path
) -> None:
    slurm(squeue="exit 0", sacct="exit 0")
    status = one_status(make_run("1"))
    assert (status.phase, status.state) == ("unknown", "unknown to squeue, sacct and scontrol")
    assert asked(tmp_path) == ["squeue", "sacct"]


def test_a_silent_controller_is_asked_once_and_accounting_answers_for_it(
    make_run: MakeRun, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdpkit.scheduling.slurm._CONTROLLER_TIMEOUT_S", 0.2)
    slurm(squeue="exec sleep 60", sacct="echo '1|RUNNING|0:0|0:0|None|n1|5|6|Unknown'")
    make_run(None, state="submitting")
    status = one_status(make_run("1"))
    assert (status.phase, status.nodes, status.started_s) == ("running", "n1", 6.0)
    assert status.unread == ["squeue has not answered within 0 s"]
    (running, unheard), _ = all_statuses(tmp_path / "runs", newest=20)
    assert (running.phase, unheard.phase) == ("running", "unknown")
    assert unheard.state == "submission not confirmed, and Slurm does not answer"
    told = asked(tmp_path)
    assert [command for command in told if command != "squeue"] == ["sacct"] * 2
    assert told.count("squeue") <= 2  # it may be given up before it has noted the call


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Unable to contact slurm controller (connect failure)", "squeue: slurm_load_jobs error: "),
        ("", "squeue: exit status 1"),
    ],
)
def test_what_nobody_answered_for_is_unknown_and_never_done(
    said: str, told: str, make_run: MakeRun, slurm: Slurm
) -> None:
    words = f"slurm_load_jobs error: {said}" if said else ""
    slurm(squeue=f"echo '{words}' >&2; exit 1", sacct="echo no database >&2; exit 1")
    status = one_status(make_run("1"))
    assert (status.phase, status.state) == ("unknown", "unknown: Slurm does not answer")
    assert status.unread[0].startswith(told)
    assert "sacct: no database" in status.unread


def test_without_slurm_s_commands_it_says_that_they_are_missing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status = one_status(make_run("1"))
    assert status.phase == "unknown"
    assert status.unread == ["there is no squeue on PATH", "there is no sacct on PATH"]


COMPLETED = JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0)
ON_REQUEST = JobState("FAILED", "sacct", exit_code=75, exit_signal=0, outcome="stopped")
NOT_VOUCHED_FOR = replace(COMPLETED, outcome="unknown")
GREEN_FAILURE = JobState("FAILED", "sacct", exit_code=0, exit_signal=0)


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ([COMPLETED, COMPLETED], "succeeded"),
        ([COMPLETED, GREEN_FAILURE], "failed"),
        ([COMPLETED, None], "unknown"),
        ([COMPLETED, JobState("NEVER_SEEN", "squeue")], "unknown"),
        ([JobState("COMPLETED", "squeue")], "failed"),
        ([COMPLETED, ON_REQUEST], "stopped"),
        ([GREEN_FAILURE, ON_REQUEST], "failed"),
        ([COMPLETED, NOT_VOUCHED_FOR], "unknown"),
        ([None, JobState("PENDING", "squeue")], "pending"),
        ([JobState("PENDING", "squeue"), JobState("RUNNING", "squeue")], "running"),
        ([], "unknown"),
    ],
)
def test_a_run_succeeded_only_if_every_task_did(states: list[JobState | None], phase: str) -> None:
    """A24: FAILED with 0:0 is no success, and neither is what nobody knows."""
    assert phase_of(states) == phase


def test_an_end_tells_both_exit_codes_who_cancelled_and_the_first_failure(
    make_run: MakeRun, slurm: Slurm
) -> None:
    """A23: after kill-on-bad-exit the codes may be a victim's; the failing rank has its own."""
    slurm(squeue="exit 0", sacct="echo '1|FAILED|1:0|143:15|None|n[1-2]|5|6|7'")
    directory = make_run("1")
    failures = directory / "attempt-0" / "failures"
    failures.mkdir(parents=True)
    (failures / "20-node-0-rank-1").write_text("143 rank 1 on n1: ended by signal 15\n")
    (failures / "10-node-1-rank-6").write_text("3 rank 6 on n2: ValueError: walrus\n")
    status = one_status(directory)
    assert status.exit == "ExitCode 1:0, DerivedExitCode 143:15"
    assert status.failure
    assert (status.failure.message, status.failure.status) == (
        "rank 6 on n2: ValueError: walrus",
        3,
    )
    orders = directory / "attempt-0" / "orders.jsonl"
    orders.write_text('{"event":"launch","launch":1,"time_s":60.0,"nodes":["n1","n2"]}\n')
    assert one_status(directory).failure is None  # a restart got over them

    uid = f"CANCELLED by {os.getuid()}"
    slurm(
        squeue="exit 0", sacct=f"echo '2|{uid}|0:0|0:0|None|n1'; echo '3|CANCELLED by 59999|0:0|'"
    )
    cancelled = one_status(make_run("2"))
    assert (cancelled.state, cancelled.phase) == (
        f"CANCELLED by {os.environ.get('USER', 'root')}",
        "failed",
    )


def test_attempts_of_a_job_that_nobody_heard_of_are_told(make_run: MakeRun, slurm: Slurm) -> None:
    directory = make_run(None, state="submitting", created_s=0.0)
    (directory / "attempt-0").mkdir()
    status = one_status(directory)
    assert (status.phase, status.attempts) == ("unknown", [0])


def test_what_is_on_record_with_keys_of_a_later_version_is_read(make_run: MakeRun) -> None:
    status = one_status(make_run("1", ended={"1": {**DONE, "colour": "green"}}))
    assert status.phase == "succeeded"


def test_why_it_waits_is_told_with_when_it_may_start(make_run: MakeRun, slurm: Slurm) -> None:
    details = (
        "JobId=1 JobState=PENDING Reason=Dependency Dependency=afterok:9(unfulfilled) NumNodes=2"
    )
    slurm(
        squeue="echo '1|PENDING|Dependency||5|1800000000|1800000600'", scontrol=f"echo '{details}'"
    )
    waiting = one_status(make_run("1")).waiting
    assert waiting
    assert waiting.words == "waits for its dependency (afterok:9(unfulfilled))"
    assert waiting.start_s == 1.8e9


DETAILS = {
    "NumNodes": "2-2",
    "TimeLimit": "12:00:00",
    "Partition": "gpu",
    "Account": "(null)",
    "TRES": "cpu=8,mem=125G,node=2,billing=2,gres/gpu=8,gres/gpu:a100=8",
}
ASKED = {"NumNodes": "2", "gres/gpu": "8", "TimeLimit": "12:00:00", "Partition": "gpu,long"}


def test_only_what_slurm_has_otherwise_is_a_difference() -> None:
    assert differences(ASKED, DETAILS) == []
    assert differences({}, DETAILS) == []
    assert differences(ASKED, {}) == []
    assert differences({**ASKED, "Account": "pas1", "TimeLimit": "719:30"}, DETAILS) == []
    changed = {**DETAILS, "TimeLimit": "01:00:00", "Partition": "debug", "NumNodes": "1"}
    changed["AllocTRES"] = "cpu=8,node=1,gres/gpu=4"
    told = [(d.what, d.asked, d.granted) for d in differences(ASKED, changed)]
    assert told == [
        ("nodes", "2", "1"),
        ("GPUs", "8", "4"),
        ("time limit", "12:00:00", "01:00:00"),
        ("partition", "gpu,long", "debug"),
    ]
    assert differences(ASKED, {**DETAILS, "TimeLimit": "UNLIMITED"})[0].granted == "UNLIMITED"


def test_what_was_asked_for_is_what_the_script_asked_for(make_run: MakeRun, slurm: Slurm) -> None:
    """The partition that the site chose is in no job file."""
    details = "JobId=1 NumNodes=2 Partition=slow TRES=cpu=8,gres/gpu=4 TimeLimit=12:00:00"
    slurm(squeue="echo '1|RUNNING|None|n1'", scontrol=f"echo '{details}'")
    directory = make_run("1")
    lines = ["--partition=main", "--gpus-per-node=4", "--account='a b'"]
    text = "".join(f"#SBATCH {line}\n" for line in lines)
    (directory / "job.sbatch").write_text(f"#!/bin/bash\n{text}")
    told = {d.what: (d.asked, d.granted) for d in one_status(directory).differences}
    assert told == {"GPUs": ("8", "4"), "partition": ("main", "slow")}


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """One that other users can reach, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="fsdpkit-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def as_nobody(look: Callable[[], Any]) -> Any:
    """What the function gives when a user without any rights calls it, through JSON."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            look()  # imports, which nobody may not be allowed to make
            os.setegid(65534)
            os.seteuid(65534)
            os.write(write, msgspec.json.encode(look()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read()
    os.wait()
    return json.loads(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_s_run_is_told_as_far_as_it_can_be_read(
    make_run: MakeRun, slurm: Slurm, shared_directory: Path, tmp_path: Path
) -> None:
    slurm(squeue="for k in 1 3; do echo $k'|RUNNING|None|n1'; done", scontrol="echo JobId=3")
    open_run = make_run("1", top=shared_directory)
    closed, private = (make_run(k, top=shared_directory) for k in "23")
    (private / "attempt-0").mkdir()
    for path in (tmp_path, *[p for p in tmp_path.parents if p.stat().st_mode & 0o5 != 0o5]):
        path.chmod(0o755)
    (tmp_path / "asked").touch()
    (tmp_path / "asked").chmod(0o666)
    for path in (private / "attempt-0", private / "job.json", closed):
        path.chmod(0o700)

    statuses = as_nobody(lambda: all_statuses(shared_directory, newest=20)[0])
    told = {Path(status["dir"]): status for status in statuses}
    assert told[open_run]["phase"] == told[private]["phase"] == "running"
    assert told[closed]["phase"] == "unknown"
    assert told[closed]["error"].endswith("run.json cannot be read: Permission denied")

    one = msgspec.convert(as_nobody(lambda: one_status(private)), Status)
    assert one.phase == "running"
    assert one.unread == [
        f"{private / 'job.json'} cannot be read: Permission denied",
        f"{private / 'attempt-0'} cannot be read: Permission denied",
    ]


def test_how_we_want_times_spelt_does_not_reach_the_job(
    slurm: Slurm, command: Command, tmp_path: Path
) -> None:
    from fsdpkit.scheduling.slurm import SlurmClient

    slurm(squeue='echo "1|RUNNING|None|$SLURM_TIME_FORMAT"')
    command("sbatch", '[ -z "$SLURM_TIME_FORMAT" ] && echo 7')
    job = MarkedJob("1", JobMark("fsdpkit:r", None))
    assert SlurmClient().states([job])[job].node_list == "%s"
    assert SlurmClient().submit(tmp_path / "job.sh").job_id == "7"
