"""From a cluster without a profile to a template that others use, in an administrator's hour.

Nobody in it is root: alex owns the centre's folder, drafts, tries, publishes, takes back and
submits; sam submits. Each thing of it has its own tests in tests/publishing; here they are one
story on a real Slurm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.publishing.catalogue.runtime import fetch
from fsdpkit.publishing.template_new import PLACEHOLDERS
from tests.conftest import Completed
from tests.json_answers import checked
from tests.publishing.catalogue_pages import CACHE
from tests.publishing.centres import ALEX as SIGNER
from tests.publishing.centres import Said, line_of, make_key
from tests.publishing.export import portals
from tests.publishing.typist import Typist, typist
from tests.slurm.conftest import USERS_LANE, Person, everything_said
from tests.slurm.exported_jobs import hand_in
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, USERS_LANE]

MARK = "export PYTHONUNBUFFERED=1"
"""The line of the template below which the centre's own comes."""
WHO = """
import os, sys
print(os.environ["CENTRE_SAYS"], os.environ["RANK"], os.environ["WORLD_SIZE"])
sys.exit(int(sys.argv[1]))
"""
JOB = """
schema = "fsdpkit.job/1"
name = "{name}"
entry = "who.py"
args = ["{status}"]
template = "{template}"
[resources]
nodes = 2
gpus = 1
time = "00:10:00"
[launch]
warm = "off" # ranks without torch
[retry]
on_crash = "stop"
[audit]
share = {share}
"""


@dataclass(frozen=True)
class Hour:
    """The administrator's place on the login node, and the two users of the centre's folder."""

    cluster: SlurmCluster
    dir: Path
    key: Path
    sam: Person
    """Shares their runs with the centre."""
    alex: Person
    """Does not. The administrator, whose all of this is."""
    admin: Typist

    @property
    def centre(self) -> Path:
        return self.dir / "centre"

    @property
    def template(self) -> Path:
        return self.dir / "ours"

    def good(self, *words: str | Path) -> Said:
        """A command of the administrator's, which ends with 0."""
        done = self.admin.typed(*words)
        assert done.status == 0, done.out + done.err
        return done

    def publish(self, *words: str | Path) -> Said:
        return self.good("publish", *words, "--to", self.centre, "--key", self.key)

    def change_template(self, version: str, says: str) -> None:
        script, manifest = self.template / "job.sbatch.j2", self.template / "template.toml"
        text = re.sub(r"export CENTRE_SAYS=.*\n", "", script.read_text())
        assert text.count(MARK) == 1
        script.write_text(text.replace(MARK, f"export CENTRE_SAYS={says}\n{MARK}"))
        text, changed = re.subn(
            r'(?m)^version = ".*"', f'version = "{version}"', manifest.read_text()
        )
        assert changed == 1
        manifest.write_text(text)

    def submit(
        self, user: Person, name: str, *, status: int = 0, template: str = "ours"
    ) -> Completed:
        """A job of the user's own, of two nodes, to its end."""
        assert user.session is not None
        share = "true" if user is self.sam else "false"
        texts = {
            "who.py": WHO,
            f"{name}.toml": JOB.format(name=name, status=status, template=template, share=share),
        }
        for file, text in texts.items():
            (user.home / file).write_text(text)
        account = ("--account", "pas1234", "--cluster", "testbed")
        return user.fsdpkit("submit", f"{name}.toml", *account, "--wait", "--runs", "hour")


@pytest.fixture
def hour(shared_cluster: SlurmCluster, sam: Person, alex: Person) -> Iterator[Hour]:
    place = Path(tempfile.mkdtemp(prefix="hour-", dir=shared_cluster.root))
    place.chmod(0o755)
    site = {"FSDPKIT_SITE_PATH": str(place / "centre")}
    people = [replace(person, site=site) for person in (sam, alex)]
    key = make_key(place / "key")
    (place / "centre" / "audit").mkdir(parents=True)
    (place / "centre" / "allowed_signers").write_text(line_of(key, SIGNER))
    assert alex.session is not None
    for path in (place, *place.rglob("*")):
        os.chown(path, alex.session.user.id, alex.session.user.id)
    (place / "centre" / "audit").chmod(0o1733)
    with typist(alex.session, place, site) as admin:
        yield Hour(shared_cluster, place, key, *people, admin)
    for person in people:
        shutil.rmtree(person.home / "hour", ignore_errors=True)
    shared_cluster.run(["scancel", "--user=alex,sam"])
    shared_cluster.wait_idle()


def run_of(user: Person, name: str) -> Path:
    (directory,) = (user.home / "hour").glob(f"{name}-*")
    return directory


def finished(hour: Hour, run: Path) -> tuple[str, str]:
    """The end of the run's job, and its nodes, as Slurm tells them."""
    (log,) = run.glob("slurm-*.log")
    job = hour.cluster.jobs(log.stem.removeprefix("slurm-"))[0]
    return job["JobState"], job["NumNodes"]


def ran(hour: Hour, done: Completed, user: Person, name: str) -> list[str]:
    """What the ranks said, in the job of two nodes that is over."""
    assert list((user.home / "hour").glob(f"{name}-*")), done.stderr
    directory = run_of(user, name)
    state = "COMPLETED" if done.returncode == 0 else "FAILED"
    assert finished(hour, directory) == (state, "2"), done.stderr + everything_said(directory)
    logs = sorted(directory.glob("attempt-0/rank-*.out"))
    return [log.read_text().strip() for log in logs]


def used(user: Person, name: str) -> dict[str, Any]:
    """The template as the run's record has it, after the script's header, which says the same."""
    directory = run_of(user, name)
    published = json.loads((directory / "provenance.json").read_text())["published"]
    assert {one["signer"] for one in published} == {SIGNER}
    (template,) = (one for one in published if one["kind"] == "template")
    script = (directory / "job.sbatch").read_text()
    told = f"template ours {template['version']}, sha256 {template['sha256']}"
    assert re.search(rf"(?m)^#   published: {told}, \w+, signed by {SIGNER}$", script), script[
        :3000
    ]
    return dict(template)


def test_from_no_profile_to_a_template_that_others_use_and_back(hour: Hour) -> None:
    draft_a_profile(hour)
    make_a_template(hour)
    a_canary_of_two_nodes_is_kept_and_shown(hour)
    others_use_what_was_published(hour)
    a_second_version_reaches_them_and_a_pin_stays(hour)
    a_rollback_gives_the_first_again(hour)
    one_byte_changed_is_refused_and_nothing_is_queued(hour)
    the_audit_counts_who_shares_and_nobody_else(hour)
    what_was_withdrawn_is_refused_with_its_reason(hour)
    the_catalogue_shows_what_is_published(hour)
    an_app_of_ondemand_runs_it(hour)


def draft_a_profile(hour: Hour) -> None:
    hour.good("site", "draft", "--output", "testbed.toml")
    assert "site testbed 1 published" in hour.publish("testbed.toml").out


def make_a_template(hour: Hour) -> None:
    hour.good("template", "new", "ours", "--from", "torchrun")
    hour.change_template("1.0.0", "one")
    assert hour.admin.typed("template", "lint", "ours").status == ConfigError.exit_code
    for file in ("template.toml", "README.md"):
        text = (hour.template / file).read_text()
        for placeholder in PLACEHOLDERS:
            text = text.replace(placeholder, "it sets a variable")
        (hour.template / file).write_text(text)
    hour.good("template", "lint", "ours")


def a_canary_of_two_nodes_is_kept_and_shown(hour: Hour) -> None:
    """And Slurm is asked for every partition first (sbatch --test-only)."""
    where = ("--site", "testbed", "--cluster", "testbed", "--account", "pas1234")
    words = ("template", "test", "ours", "--update", *where, "--canary", "--runs", hour.dir / "own")
    told = checked(hour.good(*words, "--json").out)
    steps = [(step["name"], step["told"]) for step in told["steps"] if not step["skipped"]]
    asked = [text for name, text in steps if name == "sbatch"]
    assert len(asked) == 3, told
    assert {text.partition(":")[0] for text in asked} == {
        f"testbed, {name}" for name in ("main", "high", "short")
    }
    (canary,) = (text for name, text in steps if name == "canary")
    assert canary.startswith("canary: 2 ranks added up to 3 by gloo; kept in ours/tested.toml")

    (run,) = (hour.dir / "own").iterdir()
    assert finished(hour, run) == ("COMPLETED", "2")
    version = hour.cluster.run(["sbatch", "--version"]).stdout.split()[-1]
    shown = hour.good("templates", hour.template).out
    date = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    line = rf"canary ok on testbed, {date} \(Slurm {re.escape(version)}, 2 nodes, 2 ranks\)"
    assert re.search(rf"(?m)^{line}, of this template$", shown), shown
    (kept,) = checked(hour.good("templates", hour.template, "--json").out)["canaries"]
    assert (kept["site"], kept["result"], kept["current"]) == ("testbed", "ok", True)
    assert (kept["slurm"], kept["nodes"], kept["ranks"]) == (version, 2, 2)


def others_use_what_was_published(hour: Hour) -> None:
    assert "template ours 1.0.0 published" in hour.publish(hour.template).out
    done = hour.submit(hour.sam, "first")
    assert ran(hour, done, hour.sam, "first") == ["one 0 2", "one 1 2"]
    assert done.returncode == 0, done.stderr
    template = used(hour.sam, "first")
    assert (template["version"], template["channel"]) == ("1.0.0", "stable")
    assert "canary ok on testbed" in hour.sam.fsdpkit("templates", "ours").stdout


def a_second_version_reaches_them_and_a_pin_stays(hour: Hour) -> None:
    hour.change_template("2.0.0", "two")
    assert "stable is 2.0.0, was 1.0.0" in hour.publish(hour.template).out
    compared = hour.admin.typed("template", "diff", "ours@1.0.0", "ours@2.0.0", "--site", "testbed")
    assert compared.status == 1
    lines = [line.strip() for line in compared.out.splitlines()]
    assert "-export CENTRE_SAYS=one" in lines
    assert "+export CENTRE_SAYS=two" in lines
    assert "ours 1.0.0 → ours 2.0.0: 0 of" in compared.err

    done = hour.submit(hour.sam, "second")
    assert ran(hour, done, hour.sam, "second") == ["two 0 2", "two 1 2"]
    assert done.returncode == 0, done.stderr
    assert used(hour.sam, "second")["version"] == "2.0.0"
    done = hour.submit(hour.alex, "pinned", template="ours@1")
    assert ran(hour, done, hour.alex, "pinned") == ["one 0 2", "one 1 2"]
    assert done.returncode == 0, done.stderr
    assert used(hour.alex, "pinned")["version"] == "1.0.0"


def a_rollback_gives_the_first_again(hour: Hour) -> None:
    """To a job that ends with a status of its own."""
    assert "stable is 1.0.0, was 2.0.0" in hour.publish("rollback", "ours").out
    done = hour.submit(hour.sam, "third", status=3)
    assert ran(hour, done, hour.sam, "third") == ["one 0 2", "one 1 2"]
    assert done.returncode != 0
    assert used(hour.sam, "third")["version"] == "1.0.0"


def one_byte_changed_is_refused_and_nothing_is_queued(hour: Hour) -> None:
    version = hour.centre / "published" / "template" / "ours" / "1.0.0"
    script = version / "ours" / "job.sbatch.j2"
    sound = script.read_bytes()
    changed = sound.replace(b"CENTRE_SAYS=one", b"CENTRE_SAYS=onf")
    assert sum(a != b for a, b in zip(sound, changed, strict=True)) == 1
    script.write_bytes(changed)
    done = hour.submit(hour.sam, "fourth")
    assert done.returncode == os.EX_DATAERR, done.stdout + done.stderr
    assert "ours/job.sbatch.j2 was changed" in done.stderr
    assert f"is not what {SIGNER} signed" in done.stderr
    assert "until then pin another version" in done.stderr
    assert not list((hour.sam.home / "hour").glob("fourth-*"))
    assert hour.cluster.run(["squeue", "--noheader", "--user=sam"]).stdout == ""

    # Both ways out are ones: a pin for the user, and to publish the same again.
    dry = ("submit", "fourth.toml", "--account", "pas1234", "--cluster", "testbed", "--dry-run")
    pinned = hour.sam.fsdpkit(*dry, "--set", "template=ours@2.0.0")
    assert "export CENTRE_SAYS=two" in pinned.stdout, pinned.stderr
    hour.change_template("1.0.0", "one")
    hour.publish(hour.template)
    assert script.read_bytes() == sound
    again = hour.sam.fsdpkit(*dry)
    assert "export CENTRE_SAYS=one" in again.stdout, again.stderr


def the_audit_counts_who_shares_and_nobody_else(hour: Hour) -> None:
    told = checked(hour.good("audit", hour.centre, "--json").out)
    assert told["left_out"] == {}
    lines = {(one["kind"], one["name"], one["version"]): one for one in told["lines"]}
    counts = ("runs", "users", "done", "failed", "unknown", "standing")
    assert {key: tuple(one[name] for name in counts) for key, one in lines.items()} == {
        ("template", "ours", "1.0.0"): (2, 1, 1, 1, 0, "published"),
        ("template", "ours", "2.0.0"): (1, 1, 1, 0, 0, "published"),
        ("site", "testbed", "1"): (3, 1, 2, 1, 0, "published"),
    }
    assert lines["template", "ours", "1.0.0"]["causes"] == {"crash": 1}


def what_was_withdrawn_is_refused_with_its_reason(hour: Hour) -> None:
    hour.good(
        *("publish", "withdraw", "ours@2.0.0", "--reason", "loses half of the ranks"),
        *("--to", hour.centre, "--key", hour.key),
    )
    dry = ("submit", "fourth.toml", "--account", "pas1234", "--cluster", "testbed", "--dry-run")
    refused = hour.sam.fsdpkit(*dry, "--set", "template=ours@2.0.0")
    assert refused.returncode == os.EX_DATAERR
    assert f"was withdrawn by {SIGNER}: loses half of the ranks" in refused.stderr


def the_catalogue_shows_what_is_published(hour: Hour) -> None:
    try:
        archives = fetch(CACHE)
    except FsdpkitError:  # no network, and none of it here yet
        return
    # Where alex can read it, as an administrator without a network brings it.
    shutil.copytree(archives, hour.dir / "browser")
    (hour.dir / "browser").chmod(0o755)
    hour.good("site", "build", "--output", "pages", "--runtime", "browser")
    page = (hour.dir / "pages" / "templates" / "ours.html").read_text()
    assert "loses half of the ranks" in page
    assert (hour.dir / "pages").stat().st_uid == hour.dir.stat().st_uid != 0


def an_app_of_ondemand_runs_it(hour: Hour) -> None:
    """As OnDemand submits it for a user; in a partition whose longest time is under an hour."""
    (hour.dir / "who.py").write_text(WHO)
    job = JOB.format(name="portal", status=0, template="ours", share="false")
    job = job.replace("[resources]", '[resources]\npartition = "short"')
    (hour.dir / "portal.toml").write_text(job)
    words = ("--to", "ondemand", "--cluster", "testbed", "--job", "portal.toml")
    hour.good("template", "export", "ours", *words, "--output", "app")

    session = hour.sam.home / "hour" / "session"
    session.mkdir()
    shutil.copy(hour.dir / "who.py", session)
    app = hour.dir / "app"
    said = portals.batch_connect_defaults(app) | {"auto_accounts": "pas1234"}
    said |= {"fsdpkit_environment": sys.prefix, "fsdpkit_directory": str(session)}
    job = hand_in(hour.sam, session, portals.batch_connect(app, said, session))
    ended = hour.cluster.wait_job(job)
    (run,) = (session / "runs").iterdir()
    assert (ended["JobState"], ended["NumNodes"]) == ("COMPLETED", "2"), everything_said(run)
    logs = sorted(run.glob("attempt-0/rank-*.out"))
    assert [log.read_text().strip() for log in logs] == ["one 0 2", "one 1 2"]
    assert (ended["Partition"], ended["TimeLimit"]) == ("short", "00:10:00")
    # As whoever resumes it asks again.
    assert json.loads((run / "job.json").read_text())["resources"]["time"] == "10:00"
