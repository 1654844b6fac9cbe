"""The local cluster runs the same script: several nodes, limits, warnings, arrays, cancelling."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.config.job import Resources
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.scheduling.job_mark import JobMark
from fsdpkit.scheduling.local import commands, store
from fsdpkit.scheduling.local.client import LocalClient, check_fits
from fsdpkit.scheduling.local.supervisor import nodes_of
from fsdpkit.scheduling.states import JobState
from tests.conftest import COLD, Completed, answer_of
from tests.reporting.made_run import made_run

Submit = Callable[..., dict[str, Any]]
WHO = """
    import json, os
    keys = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURMD_NODENAME", "SLURM_ARRAY_TASK_ID")
    print(json.dumps({k: os.environ.get(k) for k in keys}))
"""


@pytest.fixture
def submit(fsdpkit: Callable[..., Completed]) -> Submit:
    def call(*args: str) -> dict[str, Any]:
        return answer_of(fsdpkit("submit", "--cluster", "local", *COLD, "--json", *args))

    return call


def said(run: Run) -> str:
    logs = [*run.batch_logs(), *run.paths.submitit.glob("*log*")]
    return "\n".join(f"== {p.name}\n{p.read_text()}" for p in logs)


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.local
def test_two_nodes_of_two_ranks_meet_on_loopback_addresses(
    submit: Submit,
    write_script: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    assert [r["gpus"] for r in run.results()] == [None, None]
    assert list((tmp_path / "tmp").glob("torchelastic_*")) == []


@pytest.mark.local
def test_an_array_s_tasks_run_one_after_another(
    submit: Submit, write_script: Callable[..., Path]
) -> None:
    script = str(write_script("who.py", WHO))
    run = Run.open(submit(script, "--nodes", "1", "--gpus", "1", "--array", "1,3")["dir"])
    assert run.wait(poll_s=0.1).succeeded, said(run)
    until(lambda: all(s and s.succeeded for s in run.states().values()))
    told = [json.loads(run.rank_log(0, array_task=k).read_text()) for k in (1, 3)]
    assert [t["SLURM_ARRAY_TASK_ID"] for t in told] == ["1", "3"]


@pytest.mark.local
def test_the_outcome_is_the_training_s_and_the_next_in_line_does_not_start(
    submit: Submit, write_script: Callable[..., Path], fsdpkit: Callable[..., Completed]
) -> None:
    failing = write_script(
        "fails.py", "import os, sys; sys.exit(5 if os.environ['RANK'] == '1' else 0)"
    )
    words = ["submit", "--cluster", "local", *COLD, "--nodes", "2", "--gpus", "1"]
    done = fsdpkit(*words, str(failing), "--wait")
    assert done.returncode == 5, done.stderr
    assert "rank 1" in done.stderr
    first = done.stdout.split(", in ")[1].splitlines()[0]
    script = str(write_script("who.py", WHO))
    then = Run.open(submit(script, "--nodes", "1", "--gpus", "1", "--after", first)["dir"])
    assert then.wait(poll_s=0.1).reason == "DependencyNeverSatisfied"


@pytest.mark.local
def test_cancel_ends_every_process(
    submit: Submit, write_script: Callable[..., Path], fsdpkit: Callable[..., Completed]
) -> None:
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


def test_a_local_job_of_another_run_is_left_alone(tmp_path: Path) -> None:
    """As in the record of a stranger, which names this user's own job."""
    job = store.create()
    (job.dir / "job.json").write_text('{"options": {"comment": "fsdpkit:mine"}}')
    job.save_state(JobState("RUNNING", "local"))
    stranger = made_run(tmp_path / "stranger", state=None, job_id=job.id)
    with pytest.raises(SchedulerError, match=r"is not the one .* 'fsdpkit:mine'"):
        stranger.cancel()
    assert not job.cancel_requested.exists()
    made_run(tmp_path / "mine", state=None, job_id=job.id).cancel()
    assert job.cancel_requested.exists()


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
    with pytest.raises(SchedulerError, match="link" if link else "owner user 0"):
        theirs.cancel()
    for act in (theirs.save_checkpoint, lambda: theirs.cancel(save=True)):
        with pytest.raises(UsageError, match="user 12002"):
            act()
    assert not job.cancel_requested.exists()
    assert not theirs.paths.task().stop_requested.exists()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.local
def test_the_warning_comes_before_the_time_limit_and_the_limit_is_kept(tmp_path: Path) -> None:
    """Ten seconds of limit, five of warning; a shell that does not stop is ended."""
    script = tmp_path / "job.sbatch"
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --job-name=deaf --nodes=1 --cpus-per-task=1 --time=0:10 --signal=B:USR1@5\n"
        f'#SBATCH --chdir={tmp_path} --output="{tmp_path}/log-%j"\n'
        "trap 'echo warned' USR1\n"
        "while :; do sleep 0.1; done\n"
    )
    client = LocalClient()
    job_id = client.submit(script).job_id
    until(lambda: client.states([job_id])[job_id].phase == "ended", timeout_s=120)
    assert client.states([job_id])[job_id].state == "TIMEOUT"
    assert (tmp_path / f"log-{job_id}").read_text() == "warned\n"


def test_what_an_earlier_release_left_open_is_closed_but_no_directory_that_a_person_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, own = Path(os.environ["FSDPKIT_STATE_DIR"]), tmp_path / "state" / "fsdpkit"
    for place in (named, own):
        (place / "local").mkdir(parents=True)
        for each in (place, place / "local"):
            each.chmod(0o775)
    store.create()
    monkeypatch.delenv("FSDPKIT_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store.create()
    places = [named, named / "local", own, own / "local"]
    assert [stat.S_IMODE(p.stat().st_mode) for p in places] == [0o775, 0o700, 0o700, 0o700]


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
        job_id = client.submit(script).job_id
        until(lambda: client.states([job_id])[job_id].phase == "ended")
        client.cancel(job_id, JobMark("", os.geteuid()))
    finally:
        os.umask(before)
    found = [tmp_path / "log", state / "local", *(state / "local").rglob("*")]
    assert {p.name for p in found} > {"bin", "scontrol", "script.sh", "job.json", "cancel"}
    assert [p.name for p in found if p.stat().st_mode & 0o077] == []


@pytest.mark.local
def test_a_supervisor_that_is_killed_is_not_running_for_ever(
    submit: Submit, write_script: Callable[..., Path]
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


def test_a_supervisor_that_ends_between_two_looks_was_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = store.create()
    job.save_state(JobState("RUNNING", "local"))

    def ends(job: store.LocalJob) -> bool:
        job.save_state(JobState("COMPLETED", "local", exit_code=0, exit_signal=0))
        return False

    monkeypatch.setattr(store.LocalJob, "_supervisor_alive", ends)
    state = job.state()
    assert state is not None
    assert state.state == "COMPLETED"


def _end_tree_of(job: Path) -> None:
    import psutil

    for process in psutil.process_iter():
        try:
            if str(job) in process.environ().get("PATH", ""):
                process.kill()
        except psutil.Error:
            continue


def test_what_does_not_fit_the_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"this machine has .* GB free"):
        check_fits(Resources(nodes=200, gpus=64, time="10"))
    with pytest.raises(UsageError, match="as --set memory asks"):
        check_fits(Resources(nodes=2, gpus=1, time="10", memory="900T"))
    check_fits(Resources(nodes=1, gpus=1, time="10"))


def test_nodes_of_different_jobs_have_different_addresses() -> None:
    seen = [address for job in range(1, 600) for address in nodes_of(job, 3)]
    assert len(set(seen)) == len(seen)
    assert all(0 < int(part) < 255 for address in seen for part in address.split("."))


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


def test_the_stand_ins_refuse_what_they_do_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "127.0.1.1,127.0.1.2")
    with pytest.raises(SystemExit):
        commands.srun(["--gpu-bind=none", "true"])
    assert commands.scontrol(["update", "job=3"]) == 1
    assert commands.scontrol(["show", "hostnames"]) == 0
    assert capsys.readouterr().out == "127.0.1.1\n127.0.1.2\n"


def test_srun_s_stand_in_gives_the_highest_status_and_ends_the_rest(tmp_path: Path) -> None:
    """A20, A22 on the local cluster: --kill-on-bad-exit and the failing task's status."""
    env = {**os.environ, "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "9",
           "SLURM_JOB_NODELIST": "127.0.1.1,127.0.1.2"}  # fmt: skip
    program = "from fsdpkit.scheduling.local.commands import srun; import sys; "
    program += "sys.exit(srun(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "--kill-on-bad-exit=1", f"--output={tmp_path}/%j-%t.log",
         "bash", "-s"],
        input=b"echo node $SLURMD_NODENAME; [[ $SLURM_NODEID == 1 ]] && exit 7; exec sleep 600",
        env=env, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 143  # of the task that would have slept on
    assert (tmp_path / "9-1.log").read_text() == "node 127.0.1.2\n"


@pytest.mark.local
def test_what_waits_runs_as_it_was_submitted_and_in_its_own_directory(
    submit: Submit, write_script: Callable[..., Path]
) -> None:
    """Others may be able to rename a directory above the runs."""
    words = (str(write_script("short.py", "print('trained')\n")), "--nodes", "1", "--gpus", "1")
    first = Run.open(submit(str(write_script("long.py", "import time; time.sleep(4)\n")))["dir"])
    second = Run.open(submit(*words, "--after", first.id)["dir"])
    third = Run.open(submit(*words, "--after", first.id)["dir"])
    second.paths.script.write_text("#!/bin/bash\nexit 9\n")
    third.dir.rename(third.dir.with_name("aside"))
    third.dir.symlink_to(first.dir)
    assert second.wait(poll_s=0.1).succeeded, said(second)
    logs = first.dir.glob
    until(lambda: any("another was put in" in log.read_text() for log in logs("slurm-*.log")))
    failures = first.newest_attempt().dir / "failures"
    assert failures.is_dir()
