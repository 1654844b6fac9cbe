"""What a person adds to a job (options of sbatch, steps, paths, later arguments) on a real Slurm
cluster, over a requeue."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import answer_of
from tests.programs import Fsdpkit
from tests.slurm.conftest import everything_said, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

SCRIPT = """
    import os, sys, time
    print(sys.argv[1:], os.environ["LD_LIBRARY_PATH"].split(":")[0], flush=True)
    if "--resume" not in sys.argv:
        time.sleep(600)
"""
JOB = """
    schema = "fsdpkit.job/1"
    name = "own"
    entry = "own.py"
    args = ["--x"]
    [resources]
    nodes = 2
    gpus = 1
    time = "15"
    account = "pas1234"
    memory = 0
    [slurm]
    options = { nice = 7, spread-job = true }
    [steps]
    before = "before.sh"
    each_node = "each_node.sh"
    after = "after.sh"
    [environment]
    prepend = { LD_LIBRARY_PATH = "/x" }
    [launch]
    warm = "off"
    [retry]
    args_again = ["--resume"]
"""
NOTES = 'echo "{} ${{SLURM_RESTART_COUNT:-0}} ${{SLURMD_NODENAME}} ${{FSDPKIT_STATUS-}}" >>{}\n'


def written(directory: Path, **more: str) -> tuple[Path, Path]:
    """The job with its files, which note in the second one that they ran."""
    (directory / "own.py").write_text(textwrap.dedent(SCRIPT))
    (directory / "job.toml").write_text(textwrap.dedent(JOB))
    notes = directory / "notes"
    for key in ("before", "each_node", "after"):
        text = NOTES.format(key, notes) + more.get(key, "")
        (directory / f"{key}.sh").write_text(text)
    return directory / "job.toml", notes


def lines(notes: Path) -> list[list[str]]:
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def test_what_a_person_adds_holds_over_a_requeue(
    fsdpkit: Fsdpkit, on_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job, notes = written(tmp_path)
    answer: dict[str, Any] = answer_of(fsdpkit("submit", str(job), "--json"))
    run = Run.open(answer["dir"])
    first = run.dir / "attempt-0" / "rank-0.out"
    until(lambda: first.exists() and first.read_text(), "the first start")
    shown = on_slurm.run(["scontrol", "show", "job", answer["job_id"]]).stdout
    assert "Nice=7" in shown
    assert "MinMemoryNode=0" in shown
    on_slurm.run(["scontrol", "requeue", answer["job_id"]], check=True)
    assert run.wait(poll_s=0.2).succeeded, everything_said(run.dir)
    assert run.rank_log(0).read_text() == "['--x', '--resume'] /x\n"
    ran = lines(notes)
    assert [key for key, start, *_ in ran if start == "0"] == ["before", "each_node", "each_node"]
    again = [(key, *status) for key, start, _, *status in ran if start == "1"]
    assert again == [("before",), ("each_node",), ("each_node",), ("after", "0")]


def test_a_first_step_that_hangs_ends_with_the_job(
    fsdpkit: Fsdpkit, on_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job, notes = written(tmp_path, before="exec sleep 600")
    answer = answer_of(fsdpkit("submit", str(job), "--json"))
    run = Run.open(answer["dir"])
    until(lambda: lines(notes), "the step")
    fsdpkit("cancel", str(run.dir))
    assert run.wait(poll_s=0.2).state == "CANCELLED", everything_said(run.dir)
    said = answer_of(fsdpkit("diagnose", str(run.dir), "--json"))
    assert said["cause"] == "cancelled"
