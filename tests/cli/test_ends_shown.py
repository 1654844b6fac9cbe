"""How a run ended, as `status` and `--wait` tell it: in a word, with times and the right log."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.cli.submit import failure_lines, outcome
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.record import JobRecord
from fsdpkit.scheduling import asking
from fsdpkit.scheduling.run import Run
from tests.conftest import Completed
from tests.reporting.made_run import made_run, write_lines

Fsdpkit = Callable[..., Completed]
ID = "made-20260101-000000-0000"
BEGAN = time.mktime(time.strptime("2026-01-01 10:00:00", "%Y-%m-%d %H:%M:%S"))


def state(word: str, **fields: Any) -> dict[str, Any]:
    known = {"source": "sacct", "exit_signal": 0, "node_list": "n1", "start_s": BEGAN}
    return {"state": word, "exit_code": 0, "end_s": BEGAN + 11_100, **known, **fields}


def ended(tmp_path: Path, states: dict[str, dict[str, Any]], **fields: Any) -> Run:
    return made_run(tmp_path / "runs" / ID, ended=states, **fields)


def test_start_elapsed_time_and_end_are_told(tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    ended(tmp_path, {"7": state("COMPLETED")})
    told = fsdpkit("status", ID).stdout
    assert "  started    2026-01-01 10:00:00\n" in told
    assert "  elapsed    3 h 05 min\n" in told
    assert "  ended      2026-01-01 13:05:00\n" in told
    answer = json.loads(fsdpkit("status", ID, "--json").stdout)
    assert (answer["elapsed_s"], answer["ends_s"] - answer["started_s"]) == (11_100, 11_100)
    (row,) = fsdpkit("status").stdout.splitlines()[1:]
    assert row.endswith("COMPLETED  2026-01-01 10:00:00  3 h 05 min  2026-01-01 13:05:00")


LOOKING = ("diagnose", "status", "logs", "logs --errors", "report --output r.html", "watch")
CHANGING = ("cancel", "resume", "stacks", "track", "checkpoint save")


def test_a_copied_run_is_looked_at_and_not_changed(tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    run = ended(tmp_path, {"7": state("COMPLETED")})
    copy = shutil.copytree(run.dir, tmp_path / "sent by a colleague")
    for command in LOOKING:
        verb, *options = command.split()
        done, own = fsdpkit(verb, str(copy), *options), fsdpkit(verb, str(run.dir), *options)
        assert done.returncode == own.returncode != 74, command
    for command in CHANGING:
        done = fsdpkit(*command.split(), str(copy))
        assert (done.returncode, ID in done.stderr) == (74, True), command


def test_what_never_began_has_no_start(tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    ended(tmp_path, {"7": state("CANCELLED", node_list=None, reason="DependencyNeverSatisfied")})
    told = fsdpkit("status", ID).stdout
    assert "CANCELLED, the job that it depends on did not end as required" in told
    assert "started" not in told
    _, row, note = fsdpkit("status").stdout.splitlines()
    assert row.endswith("CANCELLED")
    assert note == "    the job that it depends on did not end as required"


def test_stopped_is_a_word_of_its_own_and_tells_how_to_go_on(
    tmp_path: Path, fsdpkit: Fsdpkit
) -> None:
    account = "asked to stop and not to come back; saved at step 120"
    stopped = state("FAILED", exit_code=75, outcome="stopped", account=account)
    run = ended(tmp_path, {"7": stopped})
    done = fsdpkit("status", ID)
    assert done.returncode == 0
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
    done = fsdpkit("status", ID)
    assert done.returncode == FsdpkitError.exit_code
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


def test_after_a_resume_the_newest_job_s_log_is_named(tmp_path: Path, fsdpkit: Fsdpkit) -> None:
    """Job 10 came after job 9, whatever the alphabet says."""
    failed = state("FAILED", exit_code=3)
    before = JobRecord(job_id="9", nodes=2, ranks_per_node=2, ended={"9": failed})
    run = ended(tmp_path, {"10": failed}, job_id="10", earlier=[before])
    logs(run, "9", "10")
    assert f"start-up log: {run.dir}/slurm-10.log\n" in fsdpkit("status", ID).stdout
    assert failure_lines(run)[-1] == f"start-up log: {run.dir}/slurm-10.log"


def test_the_steps_of_an_array_s_tasks_stand_in_the_list(
    tmp_path: Path, fsdpkit: Fsdpkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "7_0|RUNNING|None|n1",
        "7_1|RUNNING|None|n2",
        "7_2|COMPLETED|None|n3",
        "7_3|PENDING|None|",
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text(
        "#!/bin/bash\nprintf '%s\\n' " + " ".join(f"'{w}'" for w in words)
    )
    (tmp_path / "bin" / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run = ended(tmp_path, None, array=[0, 1, 2, 3])  # type: ignore[arg-type]
    for task, step in ((0, 12), (1, 7), (2, 20)):
        line = {"time_s": BEGAN, "step": step, "step_time_s": 1.0, "loss": 1.0}
        write_lines(run.paths.task(task).metrics, line)
    heads, row = fsdpkit("status").stdout.splitlines()[:2]
    assert "  STEP" in heads
    assert row.endswith("7-12/20")


def test_who_waits_for_a_job_that_will_not_start_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held after `scontrol requeuehold` at three looks, then cancelled."""
    commands = tmp_path / "bin"
    commands.mkdir()
    held = "echo '7|PENDING|job requeued in held state|'"
    look = f"echo >>{commands}/looks; (( $(wc -l <{commands}/looks) > 3 )) || {held}"
    for name, line in {"squeue": look, "sacct": "echo '7|CANCELLED by 0|0:0|0:0||'"}.items():
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setattr(asking, "FIRST_S", 0.05)
    run = ended(tmp_path, None)  # type: ignore[arg-type]
    assert outcome(run) == 1
    told = capsys.readouterr().err
    assert told.count("it was requeued and is held; this will not resolve") == 1
    assert told.count(f"fsdpkit resume {ID}") == 1
    assert f"{ID}: CANCELLED by root" in told
