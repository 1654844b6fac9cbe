"""How a run ended, as `status` and `--wait` tell it: in a word, with times and the right log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.cli.submitting import failure_lines, outcome
from fsdpkit.errors import FsdpkitError
from fsdpkit.scheduling.run import Run
from tests.programs import Fsdpkit
from tests.reporting.made_run import made_run

ID = "made-20260101-000000-0000"
BEGAN = time.mktime(time.strptime("2026-01-01 10:00:00", "%Y-%m-%d %H:%M:%S"))


def state(word: str, **fields: Any) -> dict[str, Any]:
    known = {"source": "sacct", "exit_signal": 0, "node_list": "n1", "start_s": BEGAN}
    return {"state": word, "exit_code": 0, "end_s": BEGAN + 11_100, **known, **fields}


def ended(tmp_path: Path, states: dict[str, dict[str, Any]], **fields: Any) -> Run:
    return made_run(tmp_path / "runs" / ID, ended=states, **fields)


def test_stopped_is_a_word_of_its_own_and_tells_how_to_go_on(
    tmp_path: Path, fsdpkit: Fsdpkit
) -> None:
    account = "asked to stop and not to come back; saved at step 120"
    stopped = state("FAILED", exit_code=75, outcome="stopped", account=account)
    run = ended(tmp_path, {"7": stopped})
    done = fsdpkit("status", ID, status=0)
    assert f"  state      STOPPED: {account}\n" in done.stdout
    assert f"  to go on: fsdpkit resume {ID}\n" in done.stdout
    answer = json.loads(fsdpkit("status", ID, "--json").stdout)
    assert (answer["phase"], answer["states"]) == ("stopped", {"7": "STOPPED"})
    assert "STOPPED" in fsdpkit("report", ID, "-o", "-").stdout
    assert "FAILED" not in done.stdout
    assert outcome(run) == 75


def test_what_nobody_vouches_for_is_unknown_and_no_success(
    tmp_path: Path, fsdpkit: Fsdpkit, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ended(
        tmp_path, {"7": state("COMPLETED", outcome="unknown", account="no agent left a verdict")}
    )
    done = fsdpkit("status", ID, status=FsdpkitError.exit_code)
    assert "  state      UNKNOWN: it is COMPLETED, but no agent left a verdict\n" in done.stdout
    assert json.loads(fsdpkit("status", ID, "--json").stdout)["phase"] == "unknown"
    assert fsdpkit("status").returncode == 0, "a list of runs, however they stand"
    assert fsdpkit("watch", ID).returncode == FsdpkitError.exit_code
    assert "Finished" not in fsdpkit("report", ID, "-o", "-").stdout
    assert outcome(run) == FsdpkitError.exit_code
    assert "UNKNOWN" in capsys.readouterr().err


def logs(run: Run, *names: str) -> None:
    for name in names:
        (run.dir / f"slurm-{name}.log").write_text(f"slurmstepd: error: of {name}\n")


def test_the_log_of_the_task_that_failed_is_named(tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    fine, failed = state("COMPLETED"), state("FAILED", exit_code=3)
    stopped = state("FAILED", exit_code=75, outcome="stopped", account="asked to stop")
    states = {"7_0": fine, "7_1": stopped, "7_3": failed}
    run = ended(tmp_path, states, array=[0, 1, 3])
    logs(run, "7_0", "7_1", "7_3")
    for task in (1, 3):
        failures = run.paths.task(task).attempt(0).failures
        failures.mkdir(parents=True)
        (failures / "10-node-0-rank-0").write_text(f"3 rank 0 on n1: ValueError: task {task}\n")
    assert failure_lines(run) == [
        "first failure: rank 0 on n1: ValueError: task 3",
        f"start-up log: {run.dir}/slurm-7_3.log",
    ]
    told = fsdpkit("status", ID).stdout
    assert "  state      1 COMPLETED, 1 STOPPED, 1 FAILED, exit status 3\n" in told
    assert f"start-up log: {run.dir}/slurm-7_3.log\n" in told
    assert "first failure: rank 0 on n1: ValueError: task 3 (status 3)\n" in told
    assert f"why, and what to do: fsdpkit diagnose {ID} --page\n" in told
