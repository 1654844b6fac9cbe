"""Exported apps on a real Slurm, submitted as their portals do: with `--export=NONE` or the form's
variables alone, and by a user who has nothing of fsdpkit on PATH."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.site import load_site
from fsdpkit.publishing.export.build import RELEASES, Portal, build
from fsdpkit.publishing.replacing import EXPORT, write
from fsdpkit.publishing.template_named import open_template
from tests.publishing.export import portals
from tests.publishing.export.portals import Submission
from tests.slurm.conftest import USERS_LANE, Person, everything_said
from tests.slurm.exported_jobs import hand_in
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, USERS_LANE]

WHO = """
import os, sys
leaked = sorted(name for name in os.environ if name.startswith("LEAK"))
print(os.environ["RANK"], os.environ["WORLD_SIZE"], leaked, sys.argv[1:])
"""
AGAIN = """
import os, subprocess, sys, time
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    if os.environ["RANK"] == "0":
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    time.sleep(600)
print("again", os.environ["RANK"])
sys.exit(3)
"""
JOB = """
schema = "fsdpkit.job/1"
name = "who"
entry = "who.py"
[resources]
nodes = 2
gpus = 1
time = "01:00:00"
[launch]
warm = "off" # ranks without torch
[retry]
on_crash = "stop"
"""


@dataclass(frozen=True)
class Office:
    """Where apps lie, and who submits them."""

    cluster: SlurmCluster
    user: Person
    apps: Path

    def submit(self, portal: Portal, **said: str) -> tuple[str, Path]:
        """The job's number and directory, of a form filled in with its defaults but for `said`."""
        place = self.user.home / f"{portal}-{len(list(self.user.home.glob(f'{portal}-*')))}"
        place.mkdir()
        work = place / "work" if portal == "ondemand" else place
        work.mkdir(exist_ok=True)
        (work / "who.py").write_text(WHO)
        (work / "again.py").write_text(AGAIN)
        return hand_in(self.user, place, self.submission(portal, place, said)), place

    def submission(self, portal: Portal, place: Path, said: dict[str, str]) -> Submission:
        app = self.apps / portal
        shared = {"arguments": "--epochs 2 a=b", "environment": sys.prefix, **said}
        if portal == "ondemand":
            form = portals.batch_connect_defaults(app) | {"auto_accounts": "pas1234"}
            form |= {"fsdpkit_place": "testbed:main:1", "fsdpkit_directory": str(place / "work")}
            form |= {f"fsdpkit_{key}": text for key, text in shared.items()}
            return portals.batch_connect(app, form, place)
        form = portals.open_composer_defaults(app) | {"account": "pas1234", **shared}
        return portals.open_composer(app, form)


@pytest.fixture(scope="module")
def office(
    shared_cluster: SlurmCluster, sam: Person, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Office]:
    apps = tmp_path_factory.mktemp("apps")
    (apps / "who.py").write_text(WHO)
    (apps / "who.toml").write_text(JOB)
    profile = sam.home / "centre" / "site" / "profiles" / "testbed.toml"
    clusters = [(load_site(str(profile)), "testbed")]
    job = load_job(str(apps / "who.toml")).spec
    for portal in RELEASES:
        app = build(open_template("torchrun"), clusters, portal, job=job)
        files = {name: text.encode() for name, text in app.files.items()}
        write(EXPORT, files, apps / portal)
    yield Office(shared_cluster, sam, apps)
    shared_cluster.run(["scancel", "--user=sam"])
    shared_cluster.wait_idle()


def test_two_nodes_run_as_each_portal_submits_them(office: Office) -> None:
    """With the form's arguments, no variable of the web server's, and a run to read afterwards."""
    jobs = {portal: office.submit(portal) for portal in RELEASES}
    for portal, (job, place) in jobs.items():
        ended = office.cluster.wait_job(job)
        logs = [path for path in place.iterdir() if path.suffix in (".out", ".log")]
        said = "".join(path.read_text() for path in logs)
        said += "".join(map(everything_said, place.glob("**/runs/*")))
        assert (ended["JobState"], ended["NumNodes"]) == ("COMPLETED", "2"), f"{portal}: {said}"
        (run,) = place.glob("**/runs/*")
        assert run.name == f"who-{job}"
        logs = sorted(run.glob("attempt-0/rank-*.out"))
        told = [log.read_text().strip() for log in logs]
        assert told == [f"{rank} 2 [] ['--epochs', '2', 'a=b']" for rank in (0, 1)], portal
        status = json.loads(office.user.fsdpkit("status", str(run), "--json").stdout)
        assert (status["phase"], status["error"]) == ("succeeded", None), status
        assert office.user.fsdpkit("diagnose", str(run)).returncode == 0


def test_a_job_that_is_queued_again_goes_on_in_its_run(office: Office) -> None:
    """With what the form said the first time. Its status is the training's, and `resume` can go
    on from there."""
    job, place = office.submit("ondemand", script="again.py")
    ended = office.cluster.wait_job(job)
    (run,) = (place / "work" / "runs").iterdir()
    said = (place / "output.log").read_text() + everything_said(run)
    assert (ended["ExitCode"], ended["Restarts"]) == ("3:0", "1"), said
    logs = sorted(run.glob("attempt-1/rank-*.out"))
    assert [log.read_text().strip() for log in logs] == ["again 0", "again 1"]
    told = office.user.fsdpkit("resume", str(run), "--account", "pas1234", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "again.py" in told.stdout
