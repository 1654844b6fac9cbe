"""`fsdpkit hold` as an ordinary user: an edit, two runs side by side, Ctrl-C, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from fsdpkit import Run
from fsdpkit.runs.account import Account
from tests.programs import until
from tests.slurm.conftest import USERS_LANE, Person

pytestmark = [pytest.mark.slurm, USERS_LANE]

RANK = """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("world", int(total), "on", os.environ["SLURMD_NODENAME"], flush=True)
    time.sleep(float(sys.argv[1]))
"""

NOTEBOOK = """
    import os, signal, sys
    import fsdpkit

    def build(kept, value):
        import torch.distributed as dist
        dist.init_process_group("gloo")
        kept["sum"] = value * dist.get_rank()

    def total(kept):
        import torch, torch.distributed as dist
        found = torch.tensor(float(kept["sum"]) + 1)
        dist.all_reduce(found)
        return found.item()

    def dies(kept):
        if os.environ["RANK"] == "3":
            os.kill(os.getpid(), signal.SIGKILL)
        total(kept)

    ranks = fsdpkit.hold(sys.argv[1]).keep()
    ranks.run(build, 1)
    print(ranks.run(total), flush=True)
    for function, word in ((dies, "SIGKILL"), (total, "gone")):
        try:
            ranks.run(function)
        except fsdpkit.FunctionError as error:
            print(word, word in str(error) and error.rank in (3, None), flush=True)
"""


def test_runs_on_a_hold_share_its_nodes_and_leave_it_as_it_was(alex: Person) -> None:
    assert alex.session is not None
    script = alex.home / "edit.py"
    script.write_text(textwrap.dedent(RANK))
    asked = ("--nodes", "2", "--gpus", "2", "--account", "pas1234", "--time", "15")
    got = alex.fsdpkit("hold", *asked)
    assert got.returncode == 0, got.stderr
    hold = got.stdout.split()[0]
    on_it = ("submit", "edit.py", "--on", hold)
    try:
        first = alex.fsdpkit(*on_it, "--", "0")
        assert first.returncode == 0, first.stderr
        ran = Run.open(alex.home / "runs" / first.stdout.split()[0])
        assert "world 4" in (ran.newest_attempt().dir / "rank-0.out").read_text()
        logs = [path.read_text() for path in ran.paths.submitit.glob("*_log.err")]
        assert ["imported anew" in text for text in logs] == [False, False], logs

        notebook = alex.home / "notebook.py"
        notebook.write_text(textwrap.dedent(NOTEBOOK))
        argv = [sys.executable, str(notebook), hold]
        environ = {**alex.session.env(), **alex.site}
        cells = alex.session.start(argv, env=environ, stdout=subprocess.PIPE, text=True)
        said, _ = cells.communicate(timeout=240)
        assert said == "[10.0, 10.0, 10.0, 10.0]\nSIGKILL True\ngone True\n"

        script.write_text(script.read_text().replace("world", "edited world"))
        argv = [sys.executable, "-m", "fsdpkit", *on_it, "--nodes", "1", "--", "600"]
        beside = alex.session.start(argv, env=environ, stdout=subprocess.PIPE, text=True)
        name = beside.stdout.readline().strip()
        output = alex.home / "runs" / name / "attempt-0" / "rank-0.out"
        until(lambda: output.exists() and "edited world 2" in output.read_text())
        refused = alex.fsdpkit(*on_it, "--nodes", "2", "--", "0")
        assert (refused.returncode, "1 nodes of 2" in refused.stderr) == (2, True), refused.stderr
        other = alex.fsdpkit(*on_it, "--nodes", "1", "--", "0")
        assert other.returncode == 0, other.stderr
        beside.send_signal(signal.SIGINT)
        beside.wait()
        assert (state_of(alex, name), state_of(alex, hold)) == ("CANCELLED", "RUNNING")
    finally:
        alex.fsdpkit("release", hold)
    until(lambda: state_of(alex, hold) == "COMPLETED")
    assert_each_hour_counts_once(alex, hold)
    gone = alex.fsdpkit(*on_it, "--", "0")
    assert (gone.returncode, "has no nodes now" in gone.stderr) == (2, True), gone.stderr


def assert_each_hour_counts_once(alex: Person, hold: str) -> None:
    """The hold and the runs on it have, together, what Slurm granted to the hold's job."""
    assert alex.session is not None
    records = map(Path.read_bytes, (alex.home / "runs").glob("*/run.json"))
    runs = [run["id"] for run in map(json.loads, records) if run.get("on") == hold]
    assert len(runs) >= 4
    answer = json.loads(alex.fsdpkit("usage", hold, *runs, "--by", "run", "--json").stdout)
    (total,) = answer["total"]
    job_id = json.loads(alex.fsdpkit("status", hold, "--json").stdout)["job_id"]
    asked = ["sacct", "-X", "-n", "-P", "-o", "Start,End", "-j", str(job_id)]
    in_seconds = {**alex.session.env(), "SLURM_TIME_FORMAT": "%s"}
    start_s, end_s = map(int, alex.session.run(asked, env=in_seconds).stdout.split("|"))
    files = [alex.home / "runs" / run / "attempt-0" / "account.json" for run in (hold, *runs)]
    there = [file.read_bytes() for file in files if file.exists()]  # none of what was cancelled
    held, *others = (msgspec.json.decode(text, type=Account) for text in there)
    assert total["hours"] * 3600 == pytest.approx(held.granted_s * held.gpus, abs=1)
    assert start_s - 1 < held.began_s < held.ended_s < end_s + 1
    assert all(held.began_s < one.began_s < one.ended_s <= held.ended_s for one in others)
    (own,) = [row["hours"] for row in answer["rows"] if row["by"]["run"] == hold]
    assert 0 < own < total["hours"]


def state_of(alex: Person, run: str) -> str:
    """As `status` says it."""
    answer = json.loads(alex.fsdpkit("status", run, "--json").stdout)
    return str(answer["state"]).partition(",")[0]
