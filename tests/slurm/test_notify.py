"""A requeue and then the end, on a real cluster: who hears of it, and what a watcher sees.

`[notify]` has Slurm's mail and the job's command; `fsdpkit watch` looks on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Write
from tests.slurm.conftest import everything_said, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

# Fails on its first start, so that the policy of the test queues the job again.
TRAINER = 'import os; raise SystemExit(0 if "SLURM_RESTART_COUNT" in os.environ else 4)\n'
# One write a call, of what was told and of nothing else.
TELL = """#!/bin/bash
read -r told
echo "$FSDPKIT_EVENT $FSDPKIT_STATUS $FSDPKIT_CAUSE $SLURM_JOB_ID $told" >>"$1"
"""


@pytest.fixture
def start(on_bare: SlurmCluster, fsdpkit: Fsdpkit, write_script: Write) -> Callable[..., Run]:
    def call(command: list[str], *sets: str) -> Run:
        words = ["--nodes", "1", "--gpus", "1", "--time", "10", *COLD, "--json"]
        for one in (f"notify.command={json.dumps(command)}", *sets):
            words += ["--set", one]
        answer = answer_of(fsdpkit("submit", str(write_script("trainer.py", TRAINER)), *words))
        return Run.open(answer["dir"])

    return call


def test_a_requeue_and_then_the_end_are_told_and_no_command_harms_the_job(
    start: Callable[..., Run], fsdpkit: Fsdpkit, on_bare: SlurmCluster, tmp_path: Path
) -> None:
    tell, told = tmp_path / "tell", tmp_path / "told $HOME; `x`"
    tell.write_text(TELL)
    tell.chmod(0o755)
    again = start(
        [str(tell), str(told)],
        "retry.on_crash=requeue",
        "notify.mail=o'neil#1@example.org",
    )
    sleeps = start(["sleep", "600"], "notify.limit_s=1", "retry.on_crash=stop")
    missing = start(["/no/such/program"], "retry.on_crash=stop")

    watched = fsdpkit("watch", str(again.dir), "--every", "0.5", timeout_s=300, status=0)
    happened = [line[10:] for line in watched.stdout.splitlines()]
    assert ["attempt 0 began" in happened, "attempt 1 began" in happened] == [True, True]
    last, why = watched.stdout.splitlines()[-2:]
    assert (last.partition(", at ")[0], why) == (f"{again.id}: COMPLETED", "The run is complete.")

    assert ended(again).succeeded
    assert again.paths.task().attempts() == [0, 1]
    calls = [line.split(" ", 4) for line in told.read_text().splitlines()]
    expected = [["requeue", "4", "crash"], ["end", "0", "done"]]
    assert [call[:3] for call in calls] == expected, everything_said(again.dir)
    for event, call in zip(("requeue", "end"), calls, strict=True):
        as_json = json.loads(call[4])
        assert (as_json["event"], as_json["run_id"]) == (event, again.id)
        assert as_json["job_id"] == again.job_id == call[3]
    assert "rank 0 on node" in json.loads(calls[0][4])["why"]

    for run, words in ((sleeps, "was killed after 1 s"), (missing, "could not be started")):
        assert ended(run).exit_status == 4, everything_said(run.dir)
        assert f"the command of [notify] {words}" in run.batch_logs()[0].read_text()

    mails = on_bare.root / "sent"  # by slurmctld in its own time, in any order
    until(lambda: mails.exists() and len(mails.read_text().splitlines()) >= 2, "the mail")
    sent = sorted(mails.read_text().splitlines(), key=lambda line: "COMPLETED" in line)
    assert [again.job_id in line and line.endswith("o'neil#1@example.org") for line in sent] == [
        True
    ] * 2
    assert ("Requeue" in sent[0], "COMPLETED" in sent[1]) == (True, True)


def ended(run: Run) -> Any:
    state = run.wait(poll_s=0.2)
    assert state.phase == "ended", everything_said(run.dir)
    return state
