"""The `[notify]` command: what it is told, when, and how little it can do to the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fsdpkit.launching import notifying
from fsdpkit.runs.account import Account
from fsdpkit.runs.job_file import DIGEST
from fsdpkit.runs.uses import Uses
from tests.programs import until

ENDING = {"action": "end", "status": 1, "cause": "crash", "why": "rank 1 on node2: x", "step": 40}
KEEP = "import json, os, sys; keep = {k: v for k, v in os.environ.items() if 'FSDPKIT' in k}; "
KEEP += "json.dump([keep, json.load(sys.stdin)], open(sys.argv[1], 'x'))"

Notified = Callable[..., str]


@pytest.fixture
def notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Notified:
    """Does what the batch shell does in attempt 2 of job 77; what was complained of."""
    attempt = tmp_path / "a run" / "attempt-2"
    attempt.mkdir(parents=True)
    monkeypatch.setenv("FSDPKIT_RUN_DIR", str(attempt.parent))
    monkeypatch.setenv("FSDPKIT_ATTEMPT_DIR", str(attempt))
    monkeypatch.setenv("SLURM_JOB_ID", "77")

    def call(
        what: str = "end",
        status: int = 1,
        *,
        ending: dict[str, Any] | None = ENDING,
        **notify: Any,
    ) -> str:
        notify = {"command": [sys.executable, "-c", KEEP, str(tmp_path / "told")], **notify}
        (attempt.parent / "job.json").write_text(json.dumps({"name": "t5", "notify": notify}))
        if ending is not None:
            (attempt / "ending.json").write_text(json.dumps(ending))
        monkeypatch.setattr(sys, "argv", ["notifying", what, str(status)])
        assert notifying.main() == 0
        return capfd.readouterr().err

    return call


def told(tmp_path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    variables, told_as_json = json.loads((tmp_path / "told").read_text())
    return variables, told_as_json


def test_a_command_that_was_not_submitted_is_not_called(
    notified: Notified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIGEST, "0" * 64)
    assert "job.json is not what was submitted" in notified()
    assert not (tmp_path / "told").exists()


def test_the_command_is_told_the_same_in_variables_and_as_json(
    notified: Notified, tmp_path: Path
) -> None:
    account = Account(
        attempt=2,
        began_s=0,
        ended_s=3600,
        nodes=2,
        gpus=4,
        used_s={"training": 7200.0},
    )
    (tmp_path / "a run" / "attempt-2" / "account.json").write_bytes(msgspec.json.encode(account))
    assert notified() == ""
    variables, as_json = told(tmp_path)
    assert as_json.pop("used") == variables["FSDPKIT_USED"] == Uses([account]).words
    assert as_json == {
        "event": "failure",
        "run_id": "a run",
        "run_dir": str(tmp_path / "a run"),
        "job_id": "77",
        "job_name": "t5",
        "attempt": 2,
        "status": 1,
        "cause": "crash",
        "why": "rank 1 on node2: x",
        "step": 40,
    }
    assert variables.items() >= {f"FSDPKIT_{k.upper()}": str(v) for k, v in as_json.items()}.items()


DONE = {**ENDING, "status": 0, "cause": "done", "why": "all ranks are done"}
AGAIN = {**ENDING, "action": "requeue"}
CASES = [
    ("end", 0, DONE, "end", "all ranks are done"),
    ("end", 1, ENDING, "failure", "rank 1 on node2: x"),
    ("requeued", 1, AGAIN, "requeue", "rank 1 on node2: x"),
    # Slurm itself had done so: ending.json then says end.
    ("requeued", 143, ENDING, "requeue", "rank 1 on node2: x"),
    ("requeue", 1, AGAIN, "failure", "rank 1 on node2: x; but the job could not be queued again"),
    ("end", 1, None, "failure", "nothing on record says why"),
]


@pytest.mark.parametrize(("what", "status", "ending", "event", "why"), CASES)
def test_each_event_is_called_what_it_is(
    what: str,
    status: int,
    ending: dict[str, Any] | None,
    event: str,
    why: str,
    notified: Notified,
    tmp_path: Path,
) -> None:
    notified(what, status, ending=ending)
    assert (told(tmp_path)[1]["event"], told(tmp_path)[1]["why"]) == (event, why)


@pytest.mark.parametrize("notify", [{"on": ["end", "requeue"]}, {"command": []}])
def test_who_did_not_ask_is_not_told(
    notify: dict[str, Any], notified: Notified, tmp_path: Path
) -> None:
    assert notified(**notify) == ""
    assert not (tmp_path / "told").exists()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_that_never_ends_is_killed_with_all_it_started(
    notified: Notified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"

    class Begun(subprocess.Popen[bytes]):
        """Its time runs from when it has told whom it started."""

        def communicate(self, *given: Any, **named: Any) -> tuple[bytes, bytes]:
            until(lambda: pids.exists() and pids.read_text().endswith("\n"))
            return super().communicate(*given, **named)

    monkeypatch.setattr(notifying.subprocess, "Popen", Begun)
    sleepers = f'trap "" TERM; sleep 600 & echo $$ $! > {pids}; sleep 600'
    complaint = notified(command=["bash", "-c", sleepers], limit_s=1)
    assert complaint == "fsdpkit: the command of [notify] was killed after 1 s (notify.limit_s)\n"
    until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
