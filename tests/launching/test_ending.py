"""What the batch shell is told when srun is over, from what lies in the attempt's directory."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.launching import ending

RUNNING = "JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0 ExcNodeList=(null)"
BROKEN = "check before training failed: torch cannot be imported by python on this node"


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
        for name, value in {**environ, "FSDPKIT_NODES": 2, "SLURM_JOB_ID": 7}.items():
            monkeypatch.setenv(name, str(value))

    def fails(self, node: int, line: str) -> None:
        (self.attempt / "failures" / f"{node:020}-node-{node}").write_text(line + "\n")

    def ask(self, status: int) -> str:
        """The answer on standard output; `said` is what a person reads."""
        (self.run / "job.json").write_text(json.dumps({"retry": self.retry}))
        self._patch.setattr(sys, "argv", ["ending", str(status)])
        self._patch.setattr(sys, "stdin", io.StringIO(RUNNING))
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


def test_a_node_that_fails_its_check_is_left_out_of_the_next_attempt(shell: Shell) -> None:
    shell.fails(1, f"71 node2: {BROKEN}")
    assert shell.ask(71) == "requeue 71 node2"
    assert shell.written["cause"] == "node-failure"
    assert shell.said == f"fsdpkit: node2: {BROKEN}; queued again\n"
    assert (shell.run.parent / "avoided-nodes" / "node2.json").exists()


def test_a_check_that_fails_on_several_nodes_is_not_their_fault(shell: Shell) -> None:
    shell.fails(0, f"71 node1: {BROKEN}")
    shell.fails(1, f"71 node2: {BROKEN}")
    assert shell.ask(71) == "end 78"
    assert shell.written["cause"] == "preflight"


def test_a_check_that_does_not_speak_against_the_node_ends_the_job(shell: Shell) -> None:
    shell.fails(1, "78 node2: check before training failed: only 1 GB are free")
    assert shell.ask(78) == "end 78"


def test_where_the_policy_says_stop_a_broken_node_ends_the_job(shell: Shell) -> None:
    shell.retry = {"on_node_failure": "stop"}
    shell.fails(1, f"71 node2: {BROKEN}")
    assert shell.ask(71) == "end 71"


def test_what_cannot_be_the_name_of_a_node_reaches_no_shell(shell: Shell) -> None:
    shell.fails(1, f"71 $(reboot): {BROKEN}")
    assert shell.ask(71) == "requeue 71"


def test_a_log_that_cannot_be_written_does_not_change_the_answer(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(sys, "stderr", Full())
    shell.fails(1, "1 rank 3 on node2: ValueError: no")
    assert shell.ask(1) == "requeue 1"
