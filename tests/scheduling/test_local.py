"""The local cluster runs the same script: several nodes, limits, warnings, arrays, cancelling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.local import store
from fsdpkit.scheduling.local.client import LocalClient
from fsdpkit.scheduling.states import JobState
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Submit, Write, until
from tests.reporting.made_run import made_run

WHO = """
    import json, os
    keys = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURMD_NODENAME", "SLURM_ARRAY_TASK_ID")
    ids = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
    print(json.dumps({k: os.environ.get(k) for k in (*keys, *ids)}))
"""


@pytest.fixture
def submit(fsdpkit: Fsdpkit) -> Submit:
    def call(*args: str) -> dict[str, Any]:
        return answer_of(fsdpkit("submit", "--cluster", "local", *COLD, "--json", *args))

    return call


def said(run: Run) -> str:
    logs = [*run.batch_logs(), *run.paths.submitit.glob("*log*")]
    return "\n".join(f"== {p.name}\n{p.read_text()}" for p in logs)


@pytest.mark.local
def test_two_nodes_of_two_ranks_meet_on_loopback_addresses(
    submit: Submit, write_script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    run = Run.open(submit(str(write_script("who.py", WHO)), "--nodes", "2", "--gpus", "2")["dir"])
    state = run.wait(poll_s=0.1)
    assert state.succeeded, said(run)
    assert run.record.submitted_s <= (state.start_s or 0) < (state.end_s or 0) <= time.time()
    told = [json.loads(run.rank_log(rank).read_text()) for rank in range(4)]
    assert [t["RANK"] for t in told] == ["0", "1", "2", "3"]
    assert len({t["SLURMD_NODENAME"] for t in told}) == 2
    assert all(t["MASTER_ADDR"].startswith("127.") for t in told)
    nodes = f"{told[0]['SLURMD_NODENAME']},{told[3]['SLURMD_NODENAME']}"
    assert all(t["SLURM_NODELIST"] == t["SLURM_STEP_NODELIST"] == nodes for t in told)
    assert all(t["SLURM_JOBID"] == t["SLURM_JOB_ID"] for t in told)
    assert [r["gpus"] for r in run.results()] == [None, None]
    assert list((tmp_path / "tmp").glob("torchelastic_*")) == []


@pytest.mark.local
def test_the_outcome_is_the_training_s_and_the_next_in_line_does_not_start(
    submit: Submit, write_script: Write, fsdpkit: Fsdpkit
) -> None:
    failing = write_script(
        "fails.py", "import os, sys; sys.exit(5 if os.environ['RANK'] == '1' else 0)"
    )
    words = ["submit", "--cluster", "local", *COLD, "--nodes", "2", "--gpus", "1"]
    done = fsdpkit(*words, str(failing), "--wait", status=5)
    assert "rank 1" in done.stderr
    first = done.stdout.split(", in ")[1].splitlines()[0]
    script = str(write_script("who.py", WHO))
    then = Run.open(submit(script, "--nodes", "1", "--gpus", "1", "--after", first)["dir"])
    assert then.wait(poll_s=0.1).reason == "DependencyNeverSatisfied"


@pytest.mark.local
def test_cancel_ends_every_process(submit: Submit, write_script: Write, fsdpkit: Fsdpkit) -> None:
    script = write_script(
        "stubborn.py",
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 start_new_session=True)
        print(os.getpid(), child.pid, flush=True)
        time.sleep(600)
        """,
    )
    run = Run.open(submit(str(script), "--nodes", "2", "--gpus", "1")["dir"])
    until(lambda: all(_text(run.dir / f"attempt-0/rank-{r}.out") for r in (0, 1)))
    pids = [int(p) for r in (0, 1) for p in run.rank_log(r).read_text().split()]
    answer = answer_of(fsdpkit("cancel", str(run.dir), "--wait", "--json"))
    assert (answer["had_ended"], answer["saving"]) == (False, [])
    assert "CANCELLED" in answer["state"]
    assert answer_of(fsdpkit("cancel", str(run.dir), "--json"))["had_ended"]
    assert run.wait(poll_s=0.1).state == "CANCELLED"
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a run of somebody else")
@pytest.mark.parametrize("link", [False, True])
def test_a_run_of_the_same_name_that_somebody_else_made_or_linked_ends_nothing(
    tmp_path: Path, link: bool
) -> None:
    job = store.create()
    (job.dir / "job.json").write_text('{"options": {"comment": "fsdpkit:mine"}}')
    job.save_state(JobState("RUNNING", "local"))
    (tmp_path / "sam").mkdir()
    if link:
        made_run(tmp_path / "mine", state=None, job_id=job.id)
        (tmp_path / "sam" / "mine").symlink_to(tmp_path / "mine")
    else:
        made_run(tmp_path / "sam" / "mine", state=None, job_id=job.id)
    os.chown(tmp_path / "sam" / "mine", 12002, 12002, follow_symlinks=False)
    theirs = Run.open(tmp_path / "sam" / "mine")
    with pytest.raises(SchedulerError, match="link" if link else "owner is user 0"):
        theirs.cancel()
    for act in (theirs.save_checkpoint, lambda: theirs.cancel(save=True)):
        with pytest.raises(UsageError, match="user 12002"):
            act()
    assert not job.cancel_requested.exists()
    assert not theirs.paths.task().stop_requested.exists()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


SUPERVISOR = """#!{python}
import sys, time
from pathlib import Path
from types import SimpleNamespace
from fsdpkit.scheduling.local import supervisor

def monotonic(began=[0]):
    said = "".join(log.read_text() for log in Path({place!r}).glob("log-*"))
    return began.pop() if began else {{"": 0, "up\\n": 6, "up\\nwarned\\n": 11}}[said]

supervisor.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep, time=time.time)
sys.argv = sys.argv[2:]
sys.exit(supervisor.main())
"""
"""Its clock goes on when the job's shell has said something."""


@pytest.mark.local
def test_the_warning_comes_before_the_time_limit_and_the_limit_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of limit, five of warning; a shell that does not stop is ended."""
    program = tmp_path / "supervisor"
    program.write_text(SUPERVISOR.format(python=sys.executable, place=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    script = tmp_path / "job.sbatch"
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --job-name=deaf --nodes=1 --cpus-per-task=1 --time=0:10 --signal=B:USR1@5\n"
        f'#SBATCH --chdir={tmp_path} --output="{tmp_path}/log-%j"\n'
        "trap 'echo warned' USR1; echo up\n"
        "while :; do sleep 0.1; done\n"
    )
    client = LocalClient()
    job_id = client.submit(script).job_id
    job = MarkedJob(job_id, JobMark("", os.geteuid()))
    until(lambda: client.states([job])[job].phase == "ended")
    assert client.states([job])[job].state == "TIMEOUT"
    assert (tmp_path / f"log-{job_id}").read_text() == "up\nwarned\n"


@pytest.mark.local
def test_what_a_job_runs_and_writes_is_its_owner_s_whatever_the_umask(tmp_path: Path) -> None:
    script, state = tmp_path / "job.sbatch", Path(os.environ["FSDPKIT_STATE_DIR"])
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --job-name=open --nodes=1 --cpus-per-task=1 --time=5 --signal=B:USR1@10\n"
        f'#SBATCH --chdir={tmp_path} --output="{tmp_path}/log"\n'
        "echo done\n"
    )
    (state / "local").mkdir(parents=True)
    (state / "local").chmod(0o775)  # by an earlier release
    before = os.umask(0)
    try:
        client = LocalClient()
        job = MarkedJob(client.submit(script).job_id, JobMark("", os.geteuid()))
        until(lambda: client.states([job])[job].phase == "ended")
        client.cancel(job)
    finally:
        os.umask(before)
    found = [tmp_path / "log", state / "local", *(state / "local").rglob("*")]
    assert {p.name for p in found} > {"bin", "scontrol", "script.sh", "job.json", "cancel"}
    assert [p.name for p in found if p.stat().st_mode & 0o077] == []


@pytest.mark.local
def test_a_supervisor_that_is_killed_is_not_running_for_ever(
    submit: Submit, write_script: Write
) -> None:
    script = write_script("sleeps.py", "import time; print('up', flush=True); time.sleep(600)")
    answer = submit(str(script), "--nodes", "1", "--gpus", "1")
    run = Run.open(answer["dir"])
    until(lambda: _text(run.dir / "attempt-0" / "rank-0.out"))
    job = Path(os.environ["FSDPKIT_STATE_DIR"]) / "local" / answer["job_id"]
    pid = json.loads((job / "supervisor.json").read_text())[0]
    subprocess.run(["kill", "-9", str(pid)], check=True)
    assert run.wait(poll_s=0.1).state == "NODE_FAIL"
    # Its processes are orphans now; they are ours to end, by the id the batch shell wrote.
    _end_tree_of(job)


def _end_tree_of(job: Path) -> None:
    import psutil

    for process in psutil.process_iter():
        try:
            if str(job) in process.environ().get("PATH", ""):
                process.kill()
        except psutil.Error:
            continue


def test_two_people_s_jobs_on_one_machine_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A18: job ids give ports, addresses and rendezvous ids, and people count separately."""
    ids = []
    for person in ("alex", "sam", "kim"):
        monkeypatch.setenv("FSDPKIT_STATE_DIR", str(tmp_path / person))
        first, second = store.create(), store.create()
        assert int(second.id) == int(first.id) + 1
        ids.append(int(first.id))
    assert len(set(ids)) == 3
