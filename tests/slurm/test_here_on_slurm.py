"""`submit --here` as an ordinary user, inside a step that holds all that the allocation has."""

from __future__ import annotations

import shlex
import sys
import textwrap

import pytest

from fsdpkit import Run
from tests.slurm.conftest import USERS_LANE, Person

pytestmark = [pytest.mark.slurm, USERS_LANE]

RANK = """
    import os, sys, time
    time.sleep(float(sys.argv[1]))
    sys.exit(3 if os.environ["RANK"] == "3" else 0)
"""
# A second run beside the first; Ctrl-C; a failing rank; the same run on one node; the allocation's
# own steps and state.
SHELL = """
    run() { "$PYTHON" -m fsdpkit "$@"; }
    (
        until squeue -h -s -j "$SLURM_JOB_ID" -o "%j" | grep -q fsdpkit-here; do sleep 0.3; done
        run submit --here here.py --runs here -- 0; echo "beside $?"
        kill -INT "$(cat first)"
    ) &
    (echo "$BASHPID" >first; exec "$PYTHON" -m fsdpkit submit --here here.py --runs here -- 600)
    wait
    run submit --here here.py --runs here -- 0; echo "status $?"
    failed=$(basename "$(ls -td here/*/ | head -n 1)")
    run resume --here "$failed" --nodes 1 --runs here; echo "status $?"
    run submit --here here.py --nodes 3 --runs here; echo "status $?"
    squeue -h -j "$SLURM_JOB_ID" -o "allocation %T"; squeue -h -s -j "$SLURM_JOB_ID" -o "%j"
"""


def test_runs_in_an_allocation_end_and_it_stays(alex: Person) -> None:
    assert alex.session is not None
    (alex.home / "here.py").write_text(textwrap.dedent(RANK))
    (alex.home / "here.sh").write_text(textwrap.dedent(SHELL))
    holds_all = ["srun", "--nodes=1", "--ntasks=1", "--gres=gpu:2", "bash", "here.sh"]
    argv = ["salloc", "-Apas1234", "-pmain", "-N2", "--gres=gpu:2", "-t15", *holds_all]
    environ = {**alex.session.env(), **alex.site, "PYTHON": sys.executable}
    done = alex.session.run(argv, env=environ, timeout=540)
    told = f"{shlex.join(argv)}\n{done.stdout}\n{done.stderr}"
    runs = {path.name: Run.open(path) for path in (alex.home / "here").glob("here-*")}
    states = [runs[name].state() for name in sorted(runs)]
    assert [state and state.state for state in states] == ["CANCELLED", "COMPLETED"], told
    assert [len(run.record.jobs) for run in runs.values()] == [1, 1], told
    assert "beside 2\n" in done.stdout, told
    assert [line for line in done.stdout.splitlines() if line.startswith("status")] == [
        "status 3",
        "status 0",
        "status 2",
    ], told
    assert done.stdout.splitlines()[-2:] == ["allocation RUNNING", "bash"], told
