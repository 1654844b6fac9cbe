"""Resuming, chaining and cancelling runs on a real Slurm cluster.

The jobs are one process from a template of the test's own: what is tested is which jobs Slurm has,
what the run directory says of them, and that no moment of a resume loses one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.errors import UsageError
from fsdpkit.runs.avoided_nodes import avoid
from fsdpkit.runs.exclusions import expand
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Write
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import everything_said, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

TRAINER = """
    import os, pathlib, subprocess, sys, time

    # Each start does one of the steps, of which there are sys.argv[1].
    task = pathlib.Path(os.environ["FSDPKIT_TASK_DIR"])
    steps = task / "steps"
    with open(steps, "a") as file:
        file.write(os.environ["SLURM_JOB_ID"] + "\\n")
    done = len(steps.read_text().split())
    go = pathlib.Path(os.environ["FSDPKIT_RUN_DIR"]) / "go"
    while sys.argv[2:] and not go.exists():
        if (task / "stop-requested").exists():
            sys.exit(75)
        time.sleep(0.05)
    if sys.argv[2:] == ["requeue"] and "SLURM_RESTART_COUNT" not in os.environ:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        time.sleep(600)
    sys.exit(0 if done >= int(sys.argv[1]) else 75)
"""

Submit = Callable[..., Run]


@pytest.fixture
def start(
    submit: Callable[..., dict[str, Any]], isolated_user: Path, write_script: Write
) -> Submit:
    """Submits the trainer with so many steps to do. `hold` among its arguments: it goes on when
    there is a file `go` in the run directory; `requeue`: its first attempt then has Slurm queue it
    again."""
    write_bare_template(isolated_user / "centre")
    script = write_script("trainer.py", TRAINER)

    def call(steps: int | str, *options: str, args: tuple[str, ...] = ()) -> Run:
        words = ["--nodes", "1", "--gpus", "1", "--set", "template=bare", *options]
        return Run.open(submit(str(script), *words, "--", str(steps), *args)["dir"])

    return call


def ended(run: Run, state: str = "FAILED") -> Run:
    """The run as it is once it has ended that way."""
    assert run.wait(poll_s=0.2).state == state, everything_said(run.dir)
    return Run.open(run.dir)


def on_its_way(run: Run) -> Run:
    """The run once its process has begun."""
    until((run.dir / "steps").exists, "the start")
    return run


def test_a_run_goes_on_in_its_directory_on_other_nodes(start: Submit, fsdpkit: Fsdpkit) -> None:
    first = ended(start(2))
    words = ["--nodes", "2", "--time", "20", "--json"]
    answer = answer_of(fsdpkit("resume", str(first.dir), *words))
    run = ended(Run.open(answer["dir"]), "COMPLETED")
    assert run.dir == first.dir
    assert (run.dir / "steps").read_text().split() == [first.job_id, run.job_id]
    assert run.paths.task().attempts() == [0, 1]
    assert "--nodes=2\n" in run.paths.script.read_text()
    assert "--nodes=1\n" in (run.dir / f"job.{first.job_id}.sbatch").read_text()
    assert json.loads(run.paths.job.read_text())["resources"]["nodes"] == 2

    told = fsdpkit("status", str(run.dir)).stdout
    assert "state      COMPLETED" in told
    assert f"before     job {first.job_id}, 1 node x 1 rank: FAILED, exit status 75" in told
    assert "attempts   2, the newest is 1" in told

    with pytest.raises(UsageError, match="has reached its goal"):
        run.resume()
    more = ended(run.resume(sets=['args=["3"]']), "COMPLETED")
    assert more.paths.task().attempts() == [0, 1, 2]
    assert [job.job_id for job in more.record.earlier] == [first.job_id, run.job_id]


def test_an_array_goes_on_where_it_is_short_of_its_goal(start: Submit) -> None:
    first = ended(start("{array_task}", "--array", "0-3%2"))  # as many steps as the task's number
    run = first.resume()
    assert run.record.array == [2, 3]
    assert "--array=2,3%2\n" in run.paths.script.read_text()
    run = ended(run)
    decisive = [f"{first.job_id}_0", f"{first.job_id}_1", f"{run.job_id}_2", f"{run.job_id}_3"]
    assert list(run.states()) == decisive
    assert [s.succeeded for s in run.states().values() if s] == [True, True, True, False]
    last = ended(run.resume(), "COMPLETED")
    assert last.record.array == [3]
    assert last.paths.task(3).attempts() == [0, 1, 2]
    assert last.paths.task(0).attempts() == [0]


def test_chained_jobs_start_one_by_one_until_the_goal_is_reached(
    start: Submit, fsdpkit: Fsdpkit
) -> None:
    run = on_its_way(start(2, args=("hold",)))
    refused = fsdpkit("resume", str(run.dir), status=2)
    assert f"is not over (job {run.job_id}: RUNNING)" in refused.stderr
    with pytest.raises(UsageError, match="--chained cannot change"):
        run.resume(chained=True, sets=['args=["3"]'])

    jobs = [run.job_id, run.resume(chained=True).job_id, run.resume(chained=True).job_id]
    chained = Run.open(run.dir)
    assert chained.record.after == jobs[:2]
    assert list(chained.states()) == jobs[:1]
    told = fsdpkit("status", str(run.dir)).stdout
    assert f"state      RUNNING\n  job        {jobs[0]} on" in told
    assert told.count("PENDING (Dependency)") == 2
    (run.dir / "go").touch()
    over = ended(run, "COMPLETED")
    assert (run.dir / "steps").read_text().split() == jobs[:2]
    assert len(over.paths.task().attempts()) == 2
    until(lambda: (s := over.job_states()[str(jobs[2])]) and s.state == "CANCELLED", "the end")
    assert over.state() == over.job_states()[str(jobs[1])]


def test_a_requeue_by_the_job_itself_is_not_the_end(start: Submit) -> None:
    """Nor for the job that is chained behind it."""
    run = on_its_way(start(2, args=("requeue",)))
    behind = run.resume(chained=True)
    (run.dir / "go").touch()
    state = run.wait(poll_s=0.2)
    assert state.succeeded, everything_said(run.dir)
    assert (run.dir / "steps").read_text().split() == [run.job_id] * 2
    assert run.paths.task().attempts() == [0, 1]
    until(lambda: (s := behind.job_states()[str(behind.job_id)]) and s.phase == "ended")


def test_cancel_lets_what_runs_save_and_nothing_comes_after_it(
    start: Submit, fsdpkit: Fsdpkit
) -> None:
    run = on_its_way(start(2, args=("hold",)))
    behind = run.resume(chained=True)
    told = fsdpkit("cancel", str(run.dir), "--save", "--wait", status=0)
    assert f"{run.id} (job {run.job_id})" in told.stdout
    assert (run.dir / "stop-requested").read_text() == "cancel\n"
    assert f"{run.id}: FAILED, exit status 75" in told.stdout
    over = Run.open(run.dir)
    until(lambda: all(s and s.phase == "ended" for s in over.job_states().values()))
    assert over.job_states()[str(run.job_id)].exit_code == 75  # type: ignore[union-attr]
    assert (run.dir / "steps").read_text().split() == [run.job_id]

    (run.dir / "go").touch()
    again = ended(behind.resume(), "COMPLETED")  # the request was not meant for this job
    assert not again.paths.task().stop_requested.exists()


def test_cancel_ends_what_runs_and_what_waits(start: Submit, fsdpkit: Fsdpkit) -> None:
    run = on_its_way(start(2, args=("hold",)))
    run.resume(chained=True)
    assert run.id in fsdpkit("cancel", str(run.dir), "--wait").stdout
    states = Run.open(run.dir).job_states()
    assert [s.state for s in states.values() if s] == ["CANCELLED"] * 2
    assert (run.dir / "steps").read_text().split() == [run.job_id]


LOST = ("was resumed meanwhile", "is not over", "another resume", "is being changed")


def test_of_three_who_resume_at_once_one_wins(start: Submit, on_slurm: SlurmCluster) -> None:
    run = ended(start(2))
    partition = ["scontrol", "update", "PartitionName=main"]
    on_slurm.run([*partition, "State=DOWN"], check=True)  # who comes late finds no ended run
    words = [sys.executable, "-m", "fsdpkit", "resume", str(run.dir), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        started = [subprocess.Popen(words, **pipes) for _ in range(3)]  # type: ignore[call-overload]
        said = [process.communicate()[1] for process in started]
    finally:
        on_slurm.run([*partition, "State=UP"], check=True)
    assert sorted(process.returncode for process in started) == [0, 2, 2], said
    for line in "".join(said).splitlines():
        assert "main is down" in line or any(words in line for words in LOST)
    over = ended(Run.open(run.dir), "COMPLETED")
    assert len(over.record.jobs) == 2
    assert len((run.dir / "steps").read_text().split()) == 2


@pytest.fixture
def deadly_sbatch(tmp_path: Path) -> dict[str, str]:
    """A PATH whose sbatch hands the job in and then kills who called it, unheard."""
    directory = tmp_path / "deadly"
    directory.mkdir()
    wrapper = f'#!/bin/sh\n{shutil.which("sbatch")} "$@" >/dev/null\nkill -KILL $PPID\n'
    (directory / "sbatch").write_text(wrapper)
    (directory / "sbatch").chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_a_resume_that_is_killed_loses_no_job(
    start: Submit, fsdpkit: Fsdpkit, deadly_sbatch: dict[str, str]
) -> None:
    run = ended(start(2))
    assert fsdpkit("resume", str(run.dir), env=deadly_sbatch).returncode == -9
    told = answer_of(fsdpkit("status", str(run.dir), "--json"))
    assert told["job_id"] != run.job_id
    assert [job["job_id"] for job in told["before"]] == [run.job_id]
    over = ended(Run.open(run.dir), "COMPLETED")
    assert (run.dir / "steps").read_text().split() == [run.job_id, over.job_id]
    more = ended(over.resume(sets=['args=["3"]']), "COMPLETED")  # its lock is in nobody's way
    assert len(more.record.jobs) == 3


def test_a_refused_resume_leaves_the_run_as_it_was(start: Submit, fsdpkit: Fsdpkit) -> None:
    run = ended(start(2))
    before = {path: path.read_bytes() for path in (run.paths.script, run.paths.job)}
    refused = fsdpkit("resume", str(run.dir), "--set", "resources.nodelist=none-such", status=69)
    assert "resources.nodelist" in refused.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert Run.open(run.dir).record == run.record


def test_a_node_that_failed_is_left_out_until_it_is_forgiven(
    on_slurm: SlurmCluster, start: Submit, fsdpkit: Fsdpkit
) -> None:
    run = ended(start(2))
    for node in ("node1", "node2"):
        avoid(run.dir.parent, node, why="hung", run_id=run.id, until_s=time.time() + 3600)
    resumed = fsdpkit("resume", str(run.dir), "--wait")
    assert "avoiding node1" in resumed.stderr
    assert "without node1" in run.paths.script.read_text()
    state = Run.open(run.dir).state()
    assert state is not None
    assert (state.state, state.node_list) == ("COMPLETED", "node3")

    assert fsdpkit("nodes").stdout.startswith("node1 ")
    assert fsdpkit("nodes", "--forgive", "node1").returncode == 0
    assert "exclude=node2\n" in start(1).paths.script.read_text()


def test_a_forgiven_node_is_used_by_jobs_that_wait_in_the_queue_too(
    on_slurm: SlurmCluster, start: Submit, fsdpkit: Fsdpkit
) -> None:
    """Until then status and diagnose say that it is left out, why, and how to use it again."""
    before = ended(start(1), "COMPLETED")
    for node in ("node1", "node2"):
        avoid(before.dir.parent, node, why="it hung", run_id=before.id, until_s=time.time() + 3600)
    partition = ["scontrol", "update", "PartitionName=main"]
    on_slurm.run([*partition, "State=DOWN"])
    try:
        runs = [
            start(1),
            start(1, "--array", "0-3%2"),
            start(1, "--set", "resources.exclude=node1"),
        ]
        excluded = {one.id: exclusions_of(on_slurm, one) for one in runs}
        assert list(excluded.values()) == [{"node1", "node2"}] * 3
        for command in ("status", "diagnose"):
            told = " ".join(fsdpkit(command, str(runs[0].dir)).stdout.split())
            assert re.search(r"without +node1 until 20[^;]*: it hung; node2 until", told), told
            assert "fsdpkit nodes --forgive NODE --runs " in told
        assert "node1" not in fsdpkit("status", str(runs[2].dir)).stdout
        done = fsdpkit("nodes", "--forgive", "node1")
        assert done.stdout.startswith("node1 may be used again, also by queued jobs: ")
        assert [exclusions_of(on_slurm, one) for one in runs] == [
            {"node2"},
            {"node2"},
            {"node1", "node2"},
        ]
        assert fsdpkit("nodes", "--forgive", "node2").returncode == 0
        assert [exclusions_of(on_slurm, one) for one in runs] == [set(), set(), {"node1"}]
        assert fsdpkit("nodes", "--forgive", "node2").returncode == 66
    finally:
        on_slurm.run([*partition, "State=UP"])
        for one in runs:
            on_slurm.run(["scancel", str(one.job_id)])


def exclusions_of(cluster: SlurmCluster, run: Run) -> set[str]:
    found = {job["ExcNodeList"] for job in cluster.jobs(str(run.job_id))}
    (names,) = found
    return set() if names == "(null)" else set(expand(names) or ())
