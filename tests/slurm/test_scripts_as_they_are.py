"""Scripts that know nothing of fsdpkit, on a real Slurm cluster: they find their world, and come
back at the time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.runs.events import read_json_lines
from tests.programs import Fsdpkit, Submit
from tests.slurm.conftest import until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

GOES_ON = """
import os, time
print("start", flush=True)
for _ in range(6000):
    time.sleep(0.1)
"""
SAVES = """
import os, signal, sys, time
def save(number, frame):
    print("saves", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("start", flush=True)
for _ in range(6000):
    time.sleep(0.1)
"""
RANKS = """
import os
names = "SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NODEID SLURM_TASKS_PER_NODE SLURM_NPROCS"
print(*(os.environ[name] for name in names.split()), os.environ["RANK"])
assert os.environ["SLURM_LAUNCH_NODE_IPADDR"] == os.environ["MASTER_ADDR"]
"""


def starts(run: Path) -> int:
    """How often rank 0's script has started, in all attempts."""
    found = [path.read_text().count("start") for path in run.glob("attempt-*/rank-0.out")]
    return sum(found)


def test_jobs_of_any_script_are_queued_again_at_their_time_limit(
    on_slurm: SlurmCluster, submit: Submit, tmp_path: Path
) -> None:
    """The cluster kills a job five seconds after its limit, with its batch shell. It looks at
    limits twice a minute, so two jobs are waited for at once: the second saves by itself."""
    jobs: dict[Path, str] = {}
    for name, text in (("plain.py", GOES_ON), ("saves.py", SAVES)):
        (tmp_path / name).write_text(text)
        told = submit(str(tmp_path / name), "--nodes", "2", "--gpus", "1")
        jobs[Path(told["dir"])] = told["job_id"]
    until(lambda: all(starts(run) == 1 for run in jobs), "the start")
    for job in jobs.values():
        on_slurm.set_time_left(job, 1)
    until(lambda: all(starts(run) >= 2 for run in jobs), "the second start")
    on_slurm.run(["scancel", *map(str, jobs.values())], check=True)
    for run, (saved, cause) in zip(jobs, [(False, "crash"), (True, "stopped")], strict=True):
        (words,) = run.glob("slurm-*.log")
        assert ("by the script's own handler" in words.read_text()) is saved
        (first,) = [e for e in read_json_lines(run / "attempt-0" / "orders.jsonl") if "cause" in e]
        assert first["cause"] == cause


def test_cancel_save_reaches_a_script_s_own_handler(
    submit: Submit, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAVES)
    told = submit(str(script), "--nodes", "2", "--gpus", "1")
    run = Path(told["dir"])
    until(lambda: starts(run) == 1, "the start")
    assert fsdpkit("cancel", str(run), "--save").returncode == 0
    until(lambda: "STOPPED" in fsdpkit("status", str(run)).stdout, "the end")
    assert starts(run) == 1
    assert (run / "attempt-0" / "rank-0.out").read_text() == "start\nsaves\n"


def test_ranks_find_slurm_s_variables_as_under_srun(
    submit: Submit, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    told = submit(
        str(script), "--nodes", "2", "--gpus", "2", "--set", "environment.variables.SLURM_NPROCS=9"
    )
    run = Path(told["dir"])
    until(lambda: len([*run.glob("attempt-0/rank-*.out")]) == 4, "all ranks")
    until(lambda: "COMPLETED" in fsdpkit("status", str(run)).stdout, "the end")
    said = [path.read_text().split() for path in sorted(run.glob("attempt-0/rank-*.out"))]
    assert [line[:4] for line in said] == [
        *(["0", "0", "4", "0"], ["1", "1", "4", "0"]),
        *(["2", "0", "4", "1"], ["3", "1", "4", "1"]),
    ]
    assert {tuple(line[4:6]) for line in said} == {("2(x2)", "9")}  # the job's own stays
    assert all(line[0] == line[6] for line in said)
