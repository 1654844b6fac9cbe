"""On the newest release of Slurm: what another release does otherwise, and what newer ones give.

`make test-releases` runs all tests of Slurm on each release.

A cluster of the newest release that has a root; FSDPKIT_TEST_SLURM chooses another. A root that
cannot be made (no mirror, no room) leaves these tests out, in one line. They fail instead where
FSDPKIT_REQUIRE_SLURM=1 and the root is there already, or the release was asked for by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdpkit import Run
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import WHO, everything_said
from tests.slurm_cluster import NEWEST, SlurmCluster, choice
from tests.slurm_cluster.machines import poll

pytestmark = pytest.mark.newest_slurm

RELEASE = choice() or NEWEST
HOLDS = """
    import os, pathlib, signal, sys, time
    here = pathlib.Path(sys.argv[1])
    (here / f"at-{os.environ.get('SLURM_RESTART_COUNT', '0')}").touch()
    for _ in range(6000):
        if (here / "go").exists() or "SLURM_RESTART_COUNT" in os.environ:
            raise SystemExit(0)
        if (pathlib.Path(os.environ["FSDPKIT_TASK_DIR"]) / "stop-requested").exists():
            raise SystemExit(75)
        time.sleep(0.1)
"""
"""Ranks that run until the file `go` is there, are asked to stop, or are queued again."""


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    expedite = "SlurmctldParameters=enable_expedited_requeue"
    options = {"node_timeout_s": 10, "extra_conf": f"MessageTimeout=5\n{expedite}"}
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), release=RELEASE, **options) as cluster:
        yield cluster


@pytest.fixture
def holding(submit: Submit, write_script: Write, tmp_path: Path) -> Callable[..., Run]:
    """Submits a run that holds, and waits until its ranks are there."""

    def start(*words: str) -> Run:
        script = str(write_script("holds.py", HOLDS))
        answer = submit(script, *words, "--", str(tmp_path))
        poll(lambda: (tmp_path / "at-0").exists(), 120, "the first attempt")
        return Run.open(answer["dir"])

    return start


@contextlib.contextmanager
def configured(cluster: SlurmCluster, change: Callable[[str], str]) -> Iterator[None]:
    """The cluster with a changed slurm.conf, and afterwards as it was."""
    before = cluster.conf.read_text()
    try:
        cluster.conf.write_text(change(before))
        cluster.run(["scontrol", "reconfigure"], check=True)
        yield
    finally:
        cluster.conf.write_text(before)
        cluster.run(["scontrol", "reconfigure"], check=True)


def over(run: Run) -> str:
    """How `status` describes the run once it has ended."""
    run = Run.open(run.dir)
    state = run.wait(poll_s=1)
    assert state is not None, everything_said(run.dir)
    return state.describe()


def expedites() -> bool:
    return tuple(map(int, RELEASE.split("."))) >= (25, 11)


# What releases differ in.


def test_a_drafted_profile_agrees_with_its_cluster_and_makes_scripts_that_slurm_takes(
    on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    fsdpkit("site", "draft", "--output", "ours.toml", status=0)
    assert f'version = "{RELEASE}"' in (tmp_path / "ours.toml").read_text()
    fsdpkit("site", "diff", "./ours.toml", status=0)
    words = ("--account", "pas1234", "--nodes", "2", "--gpus", "4")
    fsdpkit("submit", "--cluster", "./ours.toml", *words, "--check", status=0)


def test_a_failure_is_over_with_the_rank_s_own_status(
    submit: Submit, write_script: Write, fsdpkit: Fsdpkit
) -> None:
    """Also where Slurm would hold a failed job in the queue, as it does with --requeue=expedite."""
    script = write_script("fails.py", "raise SystemExit(3)")
    run = Run.open(submit(str(script), "--nodes", "1", "--gpus", "1")["dir"])
    assert over(run) == "FAILED, exit status 3", everything_said(run.dir)
    assert "FAILED, exit status 3" in fsdpkit("status", str(run.dir)).stdout


def test_a_requeue_is_another_attempt_of_the_same_run(
    holding: Callable[..., Run], on_slurm: SlurmCluster
) -> None:
    run = holding("--nodes", "1", "--gpus", "1")
    on_slurm.run(["scontrol", "requeue", str(run.job_id)], check=True)
    assert over(run) == "COMPLETED", everything_said(run.dir)
    assert run.paths.task().attempts() == [0, 1]


def test_a_preempted_run_that_finishes_has_no_failed_step(
    holding: Callable[..., Run], submit: Submit, write_script: Write, fsdpkit: Fsdpkit
) -> None:
    whole_node = ("--nodes", "1", "--gpus", "4", "--set", "resources.nodelist=node2")
    run = holding(*whole_node)
    other = submit(str(write_script("who.py", WHO)), *whole_node, "--partition", "high")
    assert over(Run.open(other["dir"])) == "COMPLETED", everything_said(other["dir"])
    assert over(run) == "COMPLETED", everything_said(run.dir)
    assert run.paths.task().attempts() == [0, 1]
    assert "step failed" not in fsdpkit("status", str(run.dir)).stdout


def test_cancel_with_a_last_checkpoint_ends_the_run(
    holding: Callable[..., Run], fsdpkit: Fsdpkit
) -> None:
    run = holding("--nodes", "1", "--gpus", "2")
    told = fsdpkit("cancel", str(run.dir), "--save", "--wait")
    assert f"{run.id}: STOPPED" in told.stdout, everything_said(run.dir)


# What newer releases give.


def test_a_job_asks_to_be_expedited_where_the_cluster_does_that(
    holding: Callable[..., Run], on_slurm: SlurmCluster
) -> None:
    """From 25.11: the loss of the head node costs neither two minutes nor a place in the queue."""
    run = holding("--nodes", "2", "--gpus", "1")
    wish = "#SBATCH --requeue=expedite\n" if expedites() else "#SBATCH --requeue\n"
    assert wish in run.paths.script.read_text()
    (job,) = on_slurm.jobs(str(run.job_id))
    on_slurm.kill_node(job["BatchHost"])
    try:
        if expedites():
            on_slurm.wait_job(run.job_id or "", states=["EXPEDITING", "RUNNING", "COMPLETED"])
        assert over(run) == "COMPLETED", everything_said(run.dir)
        assert run.paths.task().attempts() == [0, 1]
    finally:
        on_slurm.start_node(job["BatchHost"])


def test_a_user_environment_that_cannot_be_read_is_named(
    on_slurm: SlurmCluster,
    submit: Submit,
    write_script: Write,
    fsdpkit: Fsdpkit,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """From 25.05 Slurm holds such a job; before, the job ran without. It reads one for a site whose
    sbatch adds --export=NONE."""
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("sbatch")} --export=NONE "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    script = str(write_script("who.py", WHO))
    for node in on_slurm.nodes():
        on_slurm.node_exec(node, ["mount", "--bind", "/bin/false", "/bin/su"], check=True)
    try:
        run = Run.open(submit(script, "--nodes", "1", "--gpus", "1")["dir"])
        if RELEASE < "25.05":
            assert over(run) == "COMPLETED", everything_said(run.dir)
            return
        poll(lambda: "held" in str(on_slurm.jobs(run.job_id or "")), 120, "the hold")
        told = fsdpkit("status", str(run.dir)).stdout
        assert "user env retrieval failed" in told
        assert f"fsdpkit resume {run.id}" in told
    finally:
        for node in on_slurm.nodes():
            on_slurm.node_exec(node, ["umount", "/bin/su"], check=True)


def test_a_run_whose_tasks_never_began_is_not_taken_for_done(
    on_slurm: SlurmCluster, submit: Submit, write_script: Write, tmp_path: Path
) -> None:
    """Cancelled while a node still ran its prolog, srun ended with 0 in 22.05 and does not in
    26.05. No agent vouched for that end, so in every release the run goes on."""
    prolog = tmp_path / "prolog"
    prolog.write_text(f"#!/bin/sh\ntouch {tmp_path}/prolog-$SLURMD_NODENAME\nsleep 6\n")
    prolog.chmod(0o755)
    with configured(on_slurm, lambda conf: f"{conf}Prolog={prolog}\n"):
        script = str(write_script("who.py", WHO))
        run = Run.open(submit(script, "--nodes", "2", "--gpus", "1")["dir"])
        poll(lambda: (tmp_path / "prolog-node2").exists(), 120, "the second node's prolog")
        on_slurm.run(["scancel", f"{run.job_id}.0"], check=True)
        assert over(run) == "COMPLETED", everything_said(run.dir)
        assert run.paths.task().attempts() == [0, 1]
