"""`fsdpkit submit` on a real Slurm cluster, as a person and as a program use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit import submit as submit_from_python
from tests.conftest import COLD, Completed, answer_of
from tests.programs import Submit, Write
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import (
    ACCOUNT,
    WHO,
    Finished,
    Person,
    everything_said,
    finish,
    told_by_ranks,
    until,
)
from tests.slurm_cluster import SlurmCluster
from tests.terminals import Terminal

pytestmark = pytest.mark.slurm


def wait(answer: dict[str, Any]) -> Run:
    run = Run.open(answer["dir"])
    run.wait(poll_s=0.2)
    return run


# Runs made once and read by many tests


def test_ranks_see_their_place_their_gpus_and_their_share_of_cores(good_run: Finished) -> None:
    """A02, A06, A38, A40, A47: addresses, GPUs per node, cores in the step, threads per rank."""
    told = told_by_ranks(good_run.dir)
    assert [t["RANK"] for t in told] == [str(r) for r in range(8)], everything_said(good_run.dir)
    assert {t["WORLD_SIZE"] for t in told} == {"8"}
    assert {t["CUDA_VISIBLE_DEVICES"] for t in told} == {"0,1,2,3"}
    assert {(t["cpus"], t["OMP_NUM_THREADS"]) for t in told} == {("2", "2")}  # of the node's 8
    assert len({t["MASTER_ADDR"] for t in told}) == 1
    assert told[0]["MASTER_ADDR"].startswith("10.")


def test_wait_exits_with_the_training_s_own_status(
    good_run: Finished, failed_run: Finished
) -> None:
    """A20, A22, A23: the first failing rank's status, not the signal that ended the others."""
    assert good_run.done.returncode == 0, good_run.done.stderr
    assert failed_run.done.returncode == 3, failed_run.done.stderr
    assert "rank 3 on node2" in failed_run.done.stderr


def reads_well(run: Run) -> None:
    """Submitit and we find what the run has left."""
    state = run.state()
    assert state is not None, everything_said(run.dir)
    assert state.succeeded, everything_said(run.dir)
    assert run.batch_logs()
    assert [r["node"] for r in run.results()] == ["node1", "node2"]
    (job,) = run.jobs()
    assert job.exception() is None
    assert job.num_tasks == 2
    assert "node1" in (job.task(0).stdout() or "")


def test_a_run_directory_may_be_called_anything(on_slurm: SlurmCluster, good_run: Finished) -> None:
    reads_well(Run.open(good_run.dir))


def test_submit_from_python_returns_the_same_verbs(
    on_slurm: SlurmCluster,
    write_script: Write,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In a directory that may be called anything, too."""
    there = tmp_path / "ünïcode, [brackets]&;"
    there.mkdir()
    monkeypatch.chdir(there)
    run = submit_from_python(
        str(write_script("who.py", WHO)), nodes=2, gpus=1, account="pas1234", time="15"
    )
    assert run.wait(poll_s=0.2).succeeded
    assert run.dir.parent == there / "runs"
    assert Run.open(run.id).job_id == run.job_id
    assert len(told_by_ranks(run.dir)) == 2
    reads_well(run)


def test_what_init_asks_and_writes_is_submitted_as_it_stands(
    on_slurm: SlurmCluster,
    write_script: Write,
    fsdpkit: Callable[..., Completed],
    isolated_user: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The account is the one that this cluster's accounting lists, and goes into the defaults."""
    write_script("who.py", f"import sys\nif __name__ == '__main__':\n{textwrap.indent(WHO, '  ')}")
    monkeypatch.chdir(tmp_path)
    terminal = Terminal([sys.executable, "-m", "fsdpkit", "init", "--gpus", "2", "--time", "15"])
    for proposed in ("[pas1234]: ", "current) [", "[who.py]: "):
        terminal.wait_for(proposed)
        terminal.type("\n")
    assert terminal.end() == 0, terminal.shown
    assert "pas1234" in (isolated_user / "config" / "defaults.toml").read_text()
    run = wait(answer_of(fsdpkit("submit", "who.toml", *COLD, "--json")))
    assert [told["RANK"] for told in told_by_ranks(run.dir)] == ["0", "1"], everything_said(run.dir)
    assert "account=pas1234" in (run.dir / "job.sbatch").read_text()


def test_the_plugin_is_known_to_submitit() -> None:
    from submitit.core import plugins

    assert plugins.get_executors()["fsdpkit"].__name__ == "FsdpkitExecutor"
    assert "fsdpkit" in plugins.get_job_environments()


# Runs of one test each


def test_the_dry_run_is_what_sbatch_gets(
    on_slurm: SlurmCluster,
    fsdpkit: Callable[..., Completed],
    submit: Submit,
    write_script: Write,
) -> None:
    words = [str(write_script("who.py", WHO)), "--nodes", "2", "--gpus", "1"]
    dry = fsdpkit("submit", *words, *ACCOUNT, *COLD, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    answer = submit(*words)
    held = on_slurm.run(["scontrol", "write", "batch_script", answer["job_id"], "-"], check=True)
    expected = dry.stdout.replace("who-RUN-ID", answer["run"])
    assert held.stdout.rstrip("\n") == expected.rstrip("\n")
    assert (Path(answer["dir"]) / "job.sbatch").read_text() == expected


def test_a_wrong_account_is_refused_with_the_remedy_and_leaves_nothing(
    on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    done = fsdpkit("submit", "--nodes", "2", "--gpus", "4", "--account", "pas9999")
    assert done.returncode == 69
    assert "--account pas1234" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()
    assert on_slurm.run(["squeue", "-h"], check=True).stdout == ""


def test_check_asks_slurm_and_submits_nothing(
    on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    words = ["submit", "--nodes", "2", "--gpus", "4", "--check", "--account"]
    good = fsdpkit(*words, "pas1234")
    assert good.returncode == 0, good.stderr
    assert "to start at" in good.stdout
    bad = fsdpkit(*words, "pas9999")
    assert bad.returncode == 69
    assert "account pas9999" in bad.stderr
    assert not (tmp_path / "runs").exists()
    assert on_slurm.run(["squeue", "-h"], check=True).stdout == ""


def test_the_partition_that_ends_first_by_slurms_estimate_is_taken(
    on_slurm: SlurmCluster, fsdpkit: Callable[..., Completed]
) -> None:
    sleeps = ("--nodes=3", "--exclusive", "--account=pas1234", "--time=15", "--wrap=sleep 600")
    held = on_slurm.submit(*sleeps, "--output=/dev/null")
    on_slurm.wait_job(held, 120, ["RUNNING"])
    words = ("submit", "--nodes", "3", "--gpus", "4", *ACCOUNT, "--soonest", "--dry-run")
    done = fsdpkit(*words, "--partition", "main,high")
    on_slurm.run(["scancel", held], check=True)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --partition=high" in done.stdout  # whose jobs take nodes from those in main
    rows = [line.split()[1] for line in done.stderr.splitlines() if " 20" in line]
    assert rows == ["high", "main"]


def test_an_array_runs_our_script_in_every_task_from_one_call(
    submit: Submit, on_slurm: SlurmCluster, write_script: Write
) -> None:
    """A63, L1: all tasks are our template's, each with its own directory and result."""
    script = write_script(
        "who.py", WHO + "\n    import sys; print(sys.argv[1:], file=sys.stderr)\n"
    )
    words = ("--nodes", "1", "--gpus", "2", "--array", "0-1,5", "--", "--seed={array_task}")
    run = wait(submit(str(script), *words))
    tasks = (0, 1, 5)
    assert [s.succeeded for s in run.states().values() if s] == [True] * 3, everything_said(run.dir)
    assert run.paths.array_tasks() == [*tasks]
    jobs = set()
    for task in tasks:
        told = told_by_ranks(run.dir, f"task-{task}/attempt-0")
        assert [t["SLURM_ARRAY_TASK_ID"] for t in told] == [str(task)] * 2
        error = run.rank_log(0, array_task=task, stream="err").read_text()
        assert f"['--seed={task}']" in error
        jobs |= {t["SLURM_JOB_ID"] for t in told}
    assert len(run.results()) == len(jobs) == 3


def test_a_run_starts_after_another_succeeded_and_never_after_a_failure(
    submit: Submit, write_script: Write, isolated_user: Path
) -> None:
    write_bare_template(isolated_user / "centre")
    says_when = """
        import pathlib, sys, time
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.05)
        pathlib.Path(sys.argv[2]).write_text(str(time.time()))
        sys.exit(int(sys.argv[3]))
    """
    script = write_script("says_when.py", says_when)
    words = (str(script), "--nodes", "1", "--gpus", "1", "--set", "template=bare")
    go, here = script.with_name("go"), script.parent

    def start(name: str, status: int, *options: str) -> dict[str, Any]:
        return submit(*words, *options, "--", str(go), str(here / name), str(status))

    first, failing = start("first", 0), start("failing", 3)
    then = start("then", 0, "--after", first["dir"])
    never = start("never", 0, "--after", failing["dir"])
    go.touch()
    assert wait(then).state().succeeded  # type: ignore[union-attr]
    assert Run.open(first["dir"]).state().succeeded  # type: ignore[union-attr]
    assert float((here / "first").read_text()) < float((here / "then").read_text())
    state = wait(never).state()
    assert state is not None
    assert state.state == "CANCELLED"
    assert not (here / "never").exists()


def test_cancel_ends_the_run_and_all_its_processes(
    submit: Submit,
    on_slurm: SlurmCluster,
    write_script: Write,
    fsdpkit: Callable[..., Completed],
) -> None:
    script = write_script("sleeps-for-ever.py", "import time; print('up'); time.sleep(600)")
    answer = submit(str(script), "--nodes", "2", "--gpus", "2")
    run = Run.open(answer["dir"])
    until(lambda: (run.dir / "attempt-0" / "rank-3.out").exists())
    assert fsdpkit("cancel", answer["dir"]).returncode == 0
    state = run.wait(poll_s=0.2)
    assert state.state == "CANCELLED"
    assert not state.succeeded
    until(lambda: not _processes_with(str(script)))
    again = fsdpkit("cancel", answer["dir"])
    assert "ended" in again.stdout


def test_no_rank_outlives_its_agent(
    submit: Submit, on_slurm: SlurmCluster, write_script: Write
) -> None:
    """A26: ranks have a session of their own; killing the agent must still end them."""
    script = write_script(
        "stubborn.py",
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(600)
    """,
    )
    stay = ["--set", "retry.on_node_failure=stop", "--set", "retry.on_crash=stop"]
    answer = submit(str(script), "--nodes", "2", "--gpus", "2", *stay)
    run = Run.open(answer["dir"])
    until(lambda: all("up" in _said(run, rank) for rank in range(4)))
    agents = _processes_with("fsdpkit.launching.agent", answer["run"])
    assert len(agents) == 2
    os.kill(agents[0], signal.SIGKILL)
    run.wait(poll_s=0.2)
    until(lambda: not _processes_with(str(script)))


def _said(run: Run, rank: int) -> str:
    """What a rank of the first attempt has printed so far."""
    path = run.dir / "attempt-0" / f"rank-{rank}.out"
    return path.read_text() if path.exists() else ""


def _processes_with(*words: str) -> list[int]:
    """Processes whose command line or environment hold all words; shells do not count."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            text = (directory / "cmdline").read_bytes()
            if not text.startswith(b"python") and b"/python" not in text.split(b"\0")[0]:
                continue
            text += (directory / "environ").read_bytes()
        except OSError:
            continue
        if all(word.encode() in text for word in words) and int(directory.name) != os.getpid():
            found.append(int(directory.name))
    return found


CROWD = 5
ALL_REDUCE = """
    import torch
    from fsdpkit.training.distributed import process_group
    with process_group(300) as ranks:
        total = torch.ones(1000)
        torch.distributed.all_reduce(total)
        assert total[0].item() == ranks.world_size
"""


@pytest.fixture(scope="module")
def crowd(person: Person) -> list[Finished]:
    """Runs at once on the same three nodes, most of them of ranks that only say who they are;
    two of these wait for each other."""
    waits = """
        import os, pathlib, time
        here = pathlib.Path(__file__).parent
        (here / f"up-{os.environ['SLURM_JOB_ID']}").touch()
        while len(list(here.glob("up-*"))) < 2:
            time.sleep(0.1)
    """
    scripts = [ALL_REDUCE] * 2 + [textwrap.dedent(waits) + textwrap.dedent(WHO)] * (CROWD - 2)
    words = [("--nodes", "2", "--gpus", "1", *(() if n < 2 else COLD)) for n in range(CROWD)]
    with ThreadPoolExecutor(CROWD) as pool:
        return [
            *pool.map(
                lambda n: finish(person, f"crowd{n}.py", scripts[n], *words[n], runs=f"crowd-{n}"),
                range(CROWD),
            )
        ]


@pytest.mark.torch
def test_many_submissions_at_once_start_and_end_well(crowd: list[Finished]) -> None:
    """A27: no failure at start-up, none at shutdown."""
    assert [run.done.returncode for run in crowd] == [0] * CROWD, [run.done.stderr for run in crowd]


def test_jobs_that_share_nodes_do_not_meet(crowd: list[Finished]) -> None:
    """A18, A19: two of them at least run at once; each on a port of its own."""
    told = [told_by_ranks(run.dir) for run in crowd[2:]]
    assert [[t["RANK"] for t in ranks] for ranks in told] == [["0", "1"]] * (CROWD - 2)
    assert {t["WORLD_SIZE"] for ranks in told for t in ranks} == {"2"}
    heads = [next(run.dir.glob("slurm-*.log")).read_text() for run in crowd]
    ports = {re.findall(r"^fsdpkit: .* head .*:(\d+)$", text, re.M)[-1] for text in heads}
    assert len(ports) == CROWD, heads
    assert all(10000 <= int(port) < 30000 for port in ports)


def test_a_surrounding_allocation_does_not_leak_into_the_job(
    on_slurm: SlurmCluster, write_script: Write, tmp_path: Path
) -> None:
    """A36: submitted inside salloc, with the variables that have hurt people."""
    script = write_script(
        "env.py",
        """
        import json, os
        print(json.dumps(dict(os.environ)))
    """,
    )
    words = [
        sys.executable,
        "-m",
        "fsdpkit",
        "submit",
        str(script),
        "--nodes",
        "2",
        "--gpus",
        "1",
        *ACCOUNT,
        *COLD,
        "--json",
    ]
    start_up = tmp_path / "start-up.sh"
    start_up.write_text(f"echo $0 >>{tmp_path}/started\n")
    inherited = {
        "BASH_ENV": str(start_up),
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SBATCH_PARTITION": "nowhere",
        "RANK": "7",
        "MASTER_ADDR": "wrong.example",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_MEM_PER_NODE": "9",
        "SLURM_ARRAY_TASK_ID": "99",
    }
    done = subprocess.run(
        ["salloc", "-Q", "-N1", "-A", "pas1234", *words],
        env={**os.environ, **inherited},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "allocation" in done.stderr
    answer = json.loads(done.stdout)
    run = wait(answer)
    environment = json.loads(run.rank_log(1).read_text())
    assert environment["SLURM_JOB_ID"] == answer["job_id"]
    assert environment["RANK"] == "1"
    assert environment["MASTER_ADDR"].startswith("10.")
    assert environment["SLURM_JOB_PARTITION"] == "main"
    assert "SLURM_ARRAY_TASK_ID" not in environment
    assert environment.get("SLURM_MEM_PER_CPU") != "1"
    assert not (tmp_path / "started").exists(), "BASH_ENV ran before the script's first line"


def test_a_submitter_that_dies_after_sbatch_accepted_loses_nothing(
    on_slurm: SlurmCluster,
    write_script: Write,
    tmp_path: Path,
    fsdpkit: Callable[..., Completed],
) -> None:
    """The terminal is gone the moment sbatch has answered; the job runs and the run is found."""
    real = shutil.which("sbatch")
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/bash\n{real} "$@"\nkill -9 $PPID\n')
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    done = fsdpkit(
        "submit",
        str(write_script("who.py", WHO)),
        "--nodes",
        "1",
        "--gpus",
        "1",
        *ACCOUNT,
        *COLD,
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == -signal.SIGKILL
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "run.json").read_text())["state"] == "submitting"
    run = Run.open(directory)
    assert run.job_id is not None
    state = run.wait(poll_s=0.2)
    assert state.succeeded, everything_said(directory)
    assert len(run.results()) == 1
    assert run.id in fsdpkit("status").stdout


def test_a_requeued_run_is_one_run_with_two_attempts(
    submit: Submit, on_slurm: SlurmCluster, write_script: Write
) -> None:
    """A34, L7: a new attempt's logs stand beside the old ones, and old results do not count."""
    script = write_script(
        "twice.py",
        """
        import os, time
        print("attempt", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
        if "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(600)
    """,
    )
    answer = submit(str(script), "--nodes", "2", "--gpus", "1")
    run = Run.open(answer["dir"])
    until(lambda: all("attempt 0" in _said(run, rank) for rank in (0, 1)))
    stale = run.dir / "submitit" / f"{run.job_id}_0_result.pkl"
    stale.write_bytes(b"left by an earlier attempt")
    (stale.parent / f"{stale.name}.save_tmp").write_bytes(b"torn")
    job = run.jobs()[0]
    assert not job.done(force_check=True)
    on_slurm.run(["scontrol", "requeue", answer["job_id"]], check=True)
    state = run.wait(poll_s=0.2)
    assert state.succeeded, everything_said(run.dir)
    assert run.paths.task().attempts() == [0, 1]
    assert "attempt 1" in run.rank_log(0).read_text()
    assert "attempt 0" in (run.dir / "attempt-0" / "rank-0.out").read_text()
    assert len(run.results()) == 2  # perhaps not of the nodes that had the first attempt
    starts = [x for x in run.batch_logs()[0].read_text().splitlines() if ", head node" in x]
    assert len({line.rpartition(":")[2] for line in starts}) == 2


def test_a_job_that_slurm_queues_again_although_it_was_done_trains_no_second_time(
    submit: Submit,
    fsdpkit: Callable[..., Completed],
    on_slurm: SlurmCluster,
    write_script: Write,
) -> None:
    """As releases before 26.05 do after a preemption with a grace time."""
    script = write_script("once.py", "open(__file__ + '.ran', 'a').write('x')")
    answer = submit(str(script), "--nodes", "1", "--gpus", "1")
    run = Run.open(answer["dir"])
    assert run.wait(poll_s=0.2).succeeded, everything_said(run.dir)
    on_slurm.run(["scontrol", "requeue", answer["job_id"]], check=True)
    until(lambda: "nothing is left to do" in run.batch_logs()[0].read_text())
    on_slurm.wait_job(answer["job_id"], states=["COMPLETED"])
    assert script.with_name("once.py.ran").read_text() == "x"
    assert run.wait(poll_s=0.2).succeeded, everything_said(run.dir)
    assert answer_of(fsdpkit("diagnose", answer["dir"], "--json"))["cause"] == "done"


# What is started, but for scripts


@pytest.mark.parametrize("kind", ["module", "command"])
def test_a_module_and_a_command_get_their_words_on_every_node(person: Person, kind: str) -> None:
    words = ["--run", "a", "--log=b", "--local", "--", "--nnodes=9"]
    lab = person.home / kind / "lab"
    lab.mkdir(parents=True)
    program = "import os, sys\nprint(os.environ['RANK'], __package__, sys.argv[1:])\n"
    (lab / "train.py").write_text(program)
    tool = lab.parent / "tool"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{lab}/train.py" "$@"\n')
    tool.chmod(0o755)
    entry = ["-m", "lab.train"] if kind == "module" else ["./tool"]
    size = ("--nodes", "2", "--gpus", "2", *ACCOUNT, *COLD, "--wait", "--json", "--runs", "runs")
    done = person.fsdpkit("submit", *entry, *size, "--", *words, cwd=lab.parent)
    run = Run.open(answer_of(done)["dir"])
    package = "lab" if kind == "module" else "None"
    told = [run.rank_log(rank).read_text() for rank in range(4)]
    assert told == [f"{rank} {package} {words}\n" for rank in range(4)], everything_said(run.dir)
