"""A requeue and then the end, on a real cluster: who hears of it, and what a watcher sees.

`[notify]` has Slurm's mail and the job's command; `fsdpkit watch` looks on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import Completed, answer_of, require_slurm
from tests.slurm.conftest import everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

# Fails on its first start, so that the policy of the test queues the job again.
TRAINER = 'import os; raise SystemExit(0 if "SLURM_RESTART_COUNT" in os.environ else 4)\n'
# One write a call, of what was told and of nothing else.
TELL = """#!/bin/bash
read -r told
echo "$FSDPKIT_EVENT $FSDPKIT_STATUS $FSDPKIT_CAUSE $SLURM_JOB_ID $told" >>"$1"
"""


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MailProg of the cluster below, and the file `sent` beside it."""
    path = tmp_path_factory.mktemp("mail") / "mail"
    path.write_text(f'#!/bin/bash\necho "$*" >>{path.parent}/sent\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def post_office(mails: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    require_slurm()
    options = {"nodes": 3, "accounting": False, "extra_conf": f"MailProg={mails}"}
    with SlurmCluster(tmp_path_factory.mktemp("notify"), **options) as cluster:
        yield cluster


@pytest.fixture
def start(
    post_office: SlurmCluster,
    fsdpkit: Callable[..., Completed],
    write_script: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Run]:
    monkeypatch.setenv("SLURM_CONF", post_office.env()["SLURM_CONF"])
    monkeypatch.setenv("FSDPKIT_CLUSTER", "generic")

    def call(command: list[str], *sets: str) -> Run:
        words = ["--nodes", "1", "--gpus", "1", "--time", "10", "--json"]
        for one in (f"notify.command={json.dumps(command)}", *sets):
            words += ["--set", one]
        answer = answer_of(fsdpkit("submit", str(write_script("trainer.py", TRAINER)), *words))
        return Run.open(answer["dir"])

    return call


def test_a_requeue_and_then_the_end_are_told_and_no_command_harms_the_job(
    start: Callable[..., Run],
    fsdpkit: Callable[..., Completed],
    mails: Path,
    tmp_path: Path,
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

    watched = fsdpkit("watch", str(again.dir), "--every", "0.5", timeout_s=300)
    assert watched.returncode == 0, watched.stderr
    happened = [line[10:] for line in watched.stdout.splitlines()]
    assert ["attempt 0 began" in happened, "attempt 1 began" in happened] == [True, True]
    assert watched.stdout.splitlines()[-2:] == [f"{again.id}: COMPLETED", "The run is done."]

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

    sent = waited_for(mails.parent / "sent", 2)
    assert [again.job_id in line and line.endswith("o'neil#1@example.org") for line in sent] == [
        True
    ] * 2
    assert ("Requeue" in sent[0], "COMPLETED" in sent[1]) == (True, True)


def ended(run: Run) -> Any:
    state = run.wait(poll_s=0.2)
    assert state.phase == "ended", everything_said(run.dir)
    return state


def waited_for(path: Path, lines: int) -> list[str]:
    """slurmctld sends mail in its own time."""
    deadline = time.monotonic() + 240
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no mail at all"
        time.sleep(0.2)
    return path.read_text().splitlines()
