"""What the batch shell is told when srun is over, from what lies in the attempt's directory."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.errors import PortTakenError
from fsdpkit.launching import ending
from fsdpkit.runs.failures import CHECK, HEAD_SILENT, FailureRecord, in_a_line
from fsdpkit.runs.job_file import DIGEST
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Trouble, write
from fsdpkit.runs.record import save
from tests.scheduling.records import job, run_of

RUNNING = "JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0 ExcNodeList=(null)"
SINFO = "main*|{}|alloc|64|500000|(null)|gpu:4"
CHECKED = "check before training failed: "
SILENT = "the head node's agent does not answer any more"
BROKEN = "torch cannot be imported by python on this node"


class Shell:
    """The batch shell of a job in its first attempt."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.run, self.attempt = path / "a-run", path / "a-run" / "attempt-0"
        (self.attempt / "failures").mkdir(parents=True)
        self._patch, self._capsys = monkeypatch, capsys
        self.retry: dict[str, Any] = {}
        environ = {"FSDPKIT_RUN_DIR": self.run, "FSDPKIT_ATTEMPT_DIR": self.attempt}
        names = {"FSDPKIT_NODES": 2, "FSDPKIT_NODE_NAMES": "node1 node2", "SLURM_JOB_ID": 7}
        for name, value in {**environ, **names}.items():
            monkeypatch.setenv(name, str(value))
        self.told = RUNNING
        self.nodes = ["node1", "node2", "node3"]
        self.resources: dict[str, Any] = {}

    def fails(self, node: int, line: str) -> None:
        status, _, told = line.partition(" ")
        who, _, words = told.partition(": ")
        name, rank = who.rpartition(" ")[2], re.match(r"rank (\d+)", who)
        rule = CHECK if words.startswith(CHECKED) else HEAD_SILENT if SILENT in words else ""
        record = FailureRecord(
            by="rank" if rank else "agent",
            rule=rule,
            name=name,
            rank=int(rank[1]) if rank else None,
            status=int(status),
            words=words.removeprefix(CHECKED),
        )
        (self.attempt / "failures" / f"{node:020}-node-{node}").write_text(in_a_line(record))

    def ask(self, status: int) -> str:
        """The answer on standard output; `said` is what a person reads."""
        job = {"retry": self.retry, "resources": self.resources}
        (self.run / "job.json").write_text(json.dumps(job))
        self._patch.setattr(sys, "argv", ["ending", str(status)])
        lines = [one if "|" in one else SINFO.format(one) for one in self.nodes]
        self._patch.setattr(sys, "stdin", io.StringIO("\n".join([self.told, *lines])))
        assert ending.main() == 0
        out, self.said = self._capsys.readouterr()
        return out.strip()

    @property
    def written(self) -> dict[str, Any]:
        return dict(json.loads((self.attempt / "ending.json").read_text()))


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def test_what_a_restart_got_over_is_not_what_the_agents_were_ended_for(shell: Shell) -> None:
    shell.fails(0, "137 rank 1 on node1: ended by signal 9")
    assert shell.ask(143) == "requeue 137"
    assert "first on record: rank 1" in shell.written["why"]
    launch = '{"event":"launch","launch":1,"time_s":60.0,"nodes":["node1","node2"]}\n'
    (shell.attempt / "orders.jsonl").write_text(launch)
    assert shell.ask(143) == "requeue 143"
    assert "rank 1" not in shell.written["why"]


def test_a_node_that_fails_its_check_is_left_out_of_the_next_attempt(shell: Shell) -> None:
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71 node2"
    assert shell.written["cause"] == "node-failure"
    assert shell.said == f"fsdpkit: node2: {BROKEN}; queued again without node2\n"
    assert shell.written["left_out"] == ["node2"]
    assert (shell.run.parent / "avoided-nodes" / "node2.json").exists()


def test_a_node_that_the_job_cannot_do_without_is_used_again(shell: Shell) -> None:
    shell.nodes = ["node1", "node2"]
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71"
    assert (shell.written["avoid"], shell.written["left_out"]) == (["node2"], [])


def recorded(shell: Shell, *left_out: str) -> None:
    record = run_of(msgspec.structs.replace(job("7"), left_out=list(left_out)))
    save(RunPaths(shell.run), msgspec.structs.replace(record, id=shell.run.name))


def excludes(shell: Shell, names: str) -> None:
    shell.told = RUNNING.replace("(null)", names)


def test_what_a_person_excludes_stays_excluded(shell: Shell) -> None:
    """In the job, or later by scontrol; also where fsdpkit had left it out itself."""
    shell.nodes = [f"node{n}" for n in range(1, 10)]
    shell.resources = {"exclude": "node[6-7]"}
    recorded(shell, "node7", "node8")
    excludes(shell, "node[6-9]")
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71 node[6-7],node9,node2"


@pytest.mark.parametrize(("own", "slurm"), [("", "node[6-"), ("node[6-", "(null)")])
def test_exclusions_that_cannot_be_read_stay_as_they_are(
    shell: Shell, own: str, slurm: str
) -> None:
    shell.resources = {"exclude": own}
    excludes(shell, slurm)
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71"
    assert shell.written["left_out"] == []


@pytest.mark.parametrize("words", ["ReqNodeList=node[1-2]", "ReqNodeList=(null) Reservation=r1"])
def test_where_the_job_says_where_to_run_nothing_is_left_out(shell: Shell, words: str) -> None:
    shell.told += f" {words}"
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71"


def silent(shell: Shell, *names: str) -> None:
    trouble = {"cause": "node-failure", "status": 71, "message": "no sign of life", "lost": names}
    (shell.attempt / "verdict.json").write_text(json.dumps({"trouble": trouble}))


def test_a_head_node_that_the_others_lost_is_the_one_to_leave_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDPKIT_NODES", "3")
    monkeypatch.setenv("FSDPKIT_NODE_NAMES", "node1 node2 node3")
    shell.nodes.append("node4")
    silent(shell, "node2", "node3")
    with monkeypatch.context() as short:
        short.setattr(ending, "_WORD_S", 0.0)
        assert shell.ask(137) == "requeue 71"

    def say_so_late(_: float) -> None:
        for node in (1, 2):
            shell.fails(node, f"71 node{node + 1}: {SILENT}, for 30 s")

    monkeypatch.setattr(ending.time, "sleep", say_so_late)
    assert shell.ask(137) == "requeue 71 node1"


def test_what_the_job_wants_is_believed_as_it_was_submitted_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.retry = {"on_node_failure": "stop"}
    monkeypatch.setenv(DIGEST, hashlib.sha256(b'{"retry": {}}').hexdigest())
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71 node2"
    assert "job.json is not what was submitted" in shell.said


def test_a_check_that_does_not_speak_against_the_node_ends_the_job(shell: Shell) -> None:
    shell.fails(1, "78 node2: check before training failed: only 1 GB are free")
    assert shell.ask(78) == "end 78"


def test_a_port_that_somebody_took_brings_the_job_back_and_costs_no_node(shell: Shell) -> None:
    error = PortTakenError(12345, "Address already in use")
    shell.fails(0, f"{error.exit_code} node1: {error}")
    assert shell.ask(error.exit_code) == f"requeue {error.exit_code}"
    assert (shell.written["avoid"], shell.written["left_out"]) == ([], [])


def test_where_the_policy_says_stop_a_broken_node_ends_the_job(shell: Shell) -> None:
    shell.retry = {"on_node_failure": "stop"}
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "end 71"


def came_back(shell: Shell, message: str = "rank 1 on node2: ValueError: x") -> None:
    trouble = {"cause": "crash", "status": 1, "message": message, "step": 12}
    verdict = {"trouble": trouble, "why": "it came back", "came_back": True}
    verdict["earlier"] = [{**trouble, "step": 7}, trouble, trouble]
    (shell.attempt / "verdict.json").write_text(json.dumps(verdict))


CHAIN = (("6",), ("7", "6"), ("8", "7"), ("9", "7", "8"), ("10",))
"""Jobs of the run, each before those that it waits for."""


def chained(run: Path, *jobs: tuple[str, ...], array: list[int] | None = None) -> None:
    record = run_of(*(job(*ids, array=array) for ids in jobs))
    save(RunPaths(run), msgspec.structs.replace(record, id=run.name))


def test_what_waits_for_a_job_that_would_end_the_same_again_is_named(shell: Shell) -> None:
    chained(shell.run, *CHAIN)
    came_back(shell)
    assert shell.ask(1) == "end 1 8,9"
    assert "chained behind it, and cancelled, for it would end the same: 8 and 9" in shell.said
    assert shell.written["for_good"] is True
    assert (shell.attempt / "account.json").exists()


def test_what_cannot_be_the_id_of_a_job_reaches_no_shell(shell: Shell) -> None:
    chained(shell.run, ("7",), ("8;reboot", "7"), ("$(x)", "7"))
    came_back(shell)
    assert shell.ask(1) == "end 1"


def test_a_record_that_cannot_be_read_does_not_change_the_end(shell: Shell) -> None:
    came_back(shell)
    assert shell.ask(1) == "end 1"
    assert "warning: what is chained behind this job is not known" in shell.said


def test_what_cannot_be_the_name_of_a_node_reaches_no_shell(shell: Shell) -> None:
    record = FailureRecord(by="agent", rule=CHECK, name="$(reboot)", status=71, cause="bad-gpu")
    (shell.attempt / "failures" / "1-node-1").write_text(in_a_line(record))
    assert shell.ask(71) == "requeue 71"


def test_starts_that_slurm_refuses_are_not_counted_while_they_are_few(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so until it has noticed that a node of the attempt before is gone."""
    shell.retry = {"requeues": 1}
    shell.fails(1, f"71 node2: {CHECKED}{BROKEN}")
    assert shell.ask(71) == "requeue 71 node2"
    refusal = "srun: error: Unable to create step for job 7: Invalid generic resource (gres)\n"
    log = shell.run / "slurm-7.log"
    log.touch()
    for number in range(1, 6):
        log.write_text(log.read_text() + refusal)
        shell.attempt = begin(shell.run, number, monkeypatch)
        assert shell.ask(1) == "requeue 71", number
        assert shell.written["why"].endswith("Invalid generic resource (gres)")
    log.write_text(log.read_text() + refusal)
    shell.attempt = begin(shell.run, 6, monkeypatch)
    assert shell.ask(1) == "end 71"
    assert "7 attempts in a row left no new checkpoint" in shell.written["why"]


NOT_LAUNCHED = "srun: error: Task launch for StepId=7.0 failed on node"
STARTED_AGAIN = "fsdpkit: a node did not start its part in time"
SRUN_SAYS = {
    f"{NOT_LAUNCHED} node2: Job prolog failed\nfsdpkit: a node did not start its part in time": (
        "requeue 137",
        "unknown",
    ),
    "srun: error: node2: task 1: Out Of Memory": ("end 137", "out-of-memory"),
    f"{NOT_LAUNCHED} node2: Job prolog failed": ("requeue 71 node2", "node-failure"),
    f"{NOT_LAUNCHED} node2: Requested node configuration is": ("end 78", "settings"),
    "slurmstepd-node1: error: Exceeded job memory limit": ("end 137", "out-of-memory"),
    "srun: error: Unable to create step for job 7: Memory required by task": ("end 78", "settings"),
    "rank 0: srun: error: node2: task 1: Out Of Memory": ("requeue 137", "unknown"),
}


@pytest.mark.parametrize("line", SRUN_SAYS)
def test_what_srun_says_of_a_step_without_a_verdict_is_decided_by(shell: Shell, line: str) -> None:
    (shell.run / "slurm-7.log").write_text(f"fsdpkit: 2 nodes (node1 node2)\n{line}\n")
    answer = shell.ask(137)
    assert (answer, shell.written["cause"]) == SRUN_SAYS[line]


def test_attempts_without_a_new_checkpoint_are_counted_from_the_last_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.retry = {"requeues": 1}
    told = []
    for number in range(4):
        if number == 1:
            (shell.run / "checkpoints" / "step-5").mkdir(parents=True)
        shell.attempt = begin(shell.run, number, monkeypatch)
        (shell.run / "slurm-7.log").write_text("")
        shell.fails(0, "71 node1: no sign of life")
        told.append(shell.ask(71))
    assert told == ["requeue 71", "requeue 71", "requeue 71", "end 71"]
    assert "2 attempts in a row" in shell.written["why"]


def begin(run: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of that start by Slurm, which the job's variables name."""
    attempt = run / f"attempt-{number}"
    (attempt / "failures").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("FSDPKIT_ATTEMPT_DIR", str(attempt))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(number))
    return attempt


@pytest.mark.parametrize(
    ("args_again", "lasted_s", "comes_back"),
    [(["--resume"], 4000.0, True), (["--resume"], 20.0, False), ([], 4000.0, False)],
)
def test_a_script_that_is_told_to_go_on_comes_back_at_each_time_limit(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    args_again: list[str],
    lasted_s: float,
    comes_back: bool,
) -> None:
    """It saves by itself, so nobody sees a checkpoint; attempts that hardly began do count."""
    shell.retry = {"requeues": 1, "args_again": args_again}
    trouble = Trouble(cause="crash", status=143, message="node1: ended in time", lasted_s=lasted_s)
    for number in range(3):
        shell.attempt = begin(shell.run, number, monkeypatch) if number else shell.attempt
        write(shell.attempt / "verdict.json", AttemptVerdict(trouble=trouble, warned=True))
        answer = shell.ask(143)
    assert (answer == "requeue 143") is comes_back
