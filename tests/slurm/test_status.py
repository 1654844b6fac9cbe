"""`fsdpkit status` against real Slurm: why it waits, what it was granted, who does not answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Submit, Write
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import wait_accounted
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.configuration import CONTROLLER
from tests.slurm_cluster.machines import poll

pytestmark = pytest.mark.slurm
SLEEPS = "import time; time.sleep(600)"


@contextmanager
def stalled(cluster: SlurmCluster) -> Iterator[None]:
    """slurmctld accepts connections and says nothing, as on a controller that is swamped."""
    pid = cluster.places.pid_file("slurmctld").read_text().strip()
    cluster.node_exec(CONTROLLER, ["kill", "-STOP", pid], check=True)
    try:
        yield
    finally:
        cluster.node_exec(CONTROLLER, ["kill", "-CONT", pid], check=True)


def test_a_pending_job_tells_why_and_what_to_do(
    on_slurm: SlurmCluster,
    submit: Submit,
    fsdpkit: Fsdpkit,
    write_script: Write,
    isolated_user: Path,
) -> None:
    """Behind another job, held, for want of nodes, and behind one that failed it."""
    write_bare_template(isolated_user / "centre")
    sleeps = (str(write_script("sleeps.py", SLEEPS)), "--set", "template=bare")
    first = submit(*sleeps, "--nodes", "1", "--gpus", "1")
    on_slurm.wait_job(first["job_id"], states=["RUNNING"])
    after = submit(*sleeps, "--nodes", "1", "--gpus", "1", "--after", first["dir"])
    large = submit(*sleeps, "--nodes", "3", "--gpus", "4", "--set", "resources.exclusive=true")

    def told(run: dict[str, Any]) -> str:
        # Slurm has a reason only once its scheduler has looked at the job.
        poll(lambda: on_slurm.jobs(run["job_id"])[0]["Reason"] != "None", 120, "a reason")
        done = fsdpkit("status", run["dir"], status=0)
        return done.stdout

    assert re.search(rf"why .*afterok:{first['job_id']}\b", told(after))
    assert re.search(r"why .*(Resources|Priority|priority)", told(large))

    on_slurm.run(["scontrol", "uhold", large["job_id"]], check=True)
    held = told(large)
    assert re.search(r"why .*held", held)
    assert re.search(r"to do +\S", held)
    fsdpkit("resume", large["dir"], status=0)
    assert on_slurm.jobs(large["job_id"])[0]["Priority"] != "0"
    assert Run.open(large["dir"]).job_id == large["job_id"]

    # A limit that somebody changes, and a dependency without fsdpkit's --kill-on-invalid-dep.
    change = ["scontrol", "update"]
    on_slurm.run([*change, f"JobId={first['job_id']}", "TimeLimit=10"], check=True)
    dependency = f"Dependency=afterok:{first['job_id']}"
    on_slurm.run([*change, f"JobId={large['job_id']}", dependency], check=True)
    running = answer_of(fsdpkit("status", first["dir"], "--json"))
    assert (running["phase"], running["nodes"]) == ("running", "node1")
    assert running["ends_s"] - running["started_s"] == 600
    limit = {"what": "time limit", "asked": "15", "granted": "00:10:00"}
    assert running["differences"] == [limit]

    fsdpkit("cancel", first["dir"])
    wait_accounted(on_slurm, first["job_id"], "CANCELLED by")
    assert Run.open(first["dir"]).wait(poll_s=0.2).describe() == "CANCELLED by root"
    on_slurm.wait_job(after["job_id"])
    hopeless = "DependencyNeverSatisfied"
    poll(lambda: on_slurm.jobs(large["job_id"])[0]["Reason"] == hopeless, 120, hopeless)
    never = fsdpkit("status", large["dir"]).stdout
    assert hopeless in never
    assert re.search(rf"to do .*fsdpkit cancel {large['run']}", never)
    ended = fsdpkit("status", after["dir"]).stdout
    assert re.search("CANCELLED.*depends", ended)
    everything = fsdpkit("status").stdout
    assert re.search(rf"{large['run']} +\d+ +PENDING\n +waits", everything)
    assert re.search(rf"{first['run']} +\d+ +CANCELLED by root", everything)


def test_without_accounting_or_an_answer_nothing_is_taken_for_done(
    on_bare: SlurmCluster, fsdpkit: Fsdpkit, write_script: Write
) -> None:
    words = ["--nodes", "1", "--gpus", "1", "--time", "10", *COLD, "--json"]
    good = answer_of(fsdpkit("submit", str(write_script("good.py", "print(1)")), *words))
    bad = answer_of(fsdpkit("submit", str(write_script("bad.py", "raise SystemExit(4)")), *words))
    on_bare.wait_job(bad["job_id"])
    done = answer_of(fsdpkit("status", bad["dir"], "--json"))
    assert (done["phase"], done["exit"].split(",")[0]) == ("failed", "ExitCode 4:0")
    assert done["failure"]["status"] == 4
    assert done["unread"] == ["sacct: Slurm accounting storage is disabled"]

    # The end of the first is not on record yet: nobody has asked.
    assert json.loads(Path(good["dir"], "run.json").read_text())["ended"] is None
    with stalled(on_bare):
        everything = fsdpkit("status")
    assert everything.returncode == 0
    row = rf"{good['run']} +{good['job_id']} +unknown: Slurm does not answer"
    assert re.search(row, everything.stdout)
    assert re.search(rf"{bad['run']} +{bad['job_id']} +FAILED, exit status 4", everything.stdout)
    assert re.search("not read:.*squeue", everything.stdout)
    assert answer_of(fsdpkit("status", good["dir"], "--json"))["phase"] == "succeeded"
