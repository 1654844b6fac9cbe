"""From a cluster without a profile to a template that others use, in an administrator's hour.

Nobody in it is root: alex owns the centre's folder, drafts, tries, publishes and submits; sam
submits. Here is what wants a real Slurm; versions, rollback, withdrawal, tampering and the
catalogue have their tests in tests/publishing, portals in test_exported_scripts.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import ConfigError
from fsdpkit.publishing.template_new import PLACEHOLDERS
from tests.conftest import Completed
from tests.json_answers import checked
from tests.publishing.centres import ALEX as SIGNER
from tests.publishing.centres import Said, line_of, make_key
from tests.publishing.typist import Typist, typist
from tests.slurm.conftest import USERS_LANE, Person, everything_said
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
template = "ours"
[resources]
nodes = {nodes}
gpus = {gpus}
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

    def submit(self, user: Person, name: str, *, nodes: int = 1, status: int = 0) -> Completed:
        """A job of the user's own, of two ranks, to its end."""
        assert user.session is not None
        share = "true" if user is self.sam else "false"
        texts = {
            "who.py": WHO,
            f"{name}.toml": JOB.format(
                name=name, nodes=nodes, gpus=2 // nodes, status=status, share=share
            ),
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
    """What the ranks said, in the job that is over."""
    assert list((user.home / "hour").glob(f"{name}-*")), done.stderr
    directory = run_of(user, name)
    state = "COMPLETED" if done.returncode == 0 else "FAILED"
    assert finished(hour, directory)[0] == state, done.stderr + everything_said(directory)
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


def test_from_no_profile_to_a_template_that_others_use_and_the_audit_counts(hour: Hour) -> None:
    draft_a_profile(hour)
    make_a_template(hour)
    a_canary_of_two_nodes_is_kept_and_shown(hour)
    others_use_what_was_published(hour)
    a_job_that_fails_is_counted_and_who_does_not_share_is_not(hour)
    the_audit_counts_who_shares_and_nobody_else(hour)


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
    assert canary.startswith("canary: 2 ranks added up to 3 by gloo; kept in ours/tested.txt")

    (run,) = (hour.dir / "own").iterdir()
    assert finished(hour, run) == ("COMPLETED", "2")
    version = hour.cluster.run(["sbatch", "--version"]).stdout.split()[-1]
    shown = hour.good("templates", hour.template).out
    date = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    line = rf"testbed: ok, {date} \(Slurm {re.escape(version)}, 2 nodes, 2 ranks\); version \S+, "
    assert re.search(rf"(?m)^canary on {line}sha256 \w+$", shown), shown
    (kept,) = checked(hour.good("templates", hour.template, "--json").out)["canaries"]
    assert re.match(line, kept)


def others_use_what_was_published(hour: Hour) -> None:
    assert "template ours 1.0.0 published" in hour.publish(hour.template).out
    done = hour.submit(hour.sam, "first", nodes=2)
    assert ran(hour, done, hour.sam, "first") == ["one 0 2", "one 1 2"]
    assert finished(hour, run_of(hour.sam, "first")) == ("COMPLETED", "2")
    template = used(hour.sam, "first")
    assert (template["version"], template["channel"]) == ("1.0.0", "stable")
    assert "canary on testbed: ok" in hour.sam.fsdpkit("templates", "ours").stdout


def a_job_that_fails_is_counted_and_who_does_not_share_is_not(hour: Hour) -> None:
    done = hour.submit(hour.sam, "second", status=3)
    assert ran(hour, done, hour.sam, "second") == ["one 0 2", "one 1 2"]
    assert done.returncode != 0
    done = hour.submit(hour.alex, "not-shared")
    assert ran(hour, done, hour.alex, "not-shared") == ["one 0 2", "one 1 2"]


def the_audit_counts_who_shares_and_nobody_else(hour: Hour) -> None:
    told = checked(hour.good("audit", hour.centre, "--by", "version,site", "--json").out)
    assert told["left_out"] == {}
    assert (told["runs"], told["users"], told["without_end"]) == (2, 1, 0)
    (row,) = told["rows"]
    assert (row["by"]["version"], row["by"]["site"]) == ("ours 1.0.0", "testbed 1")
    assert (row["attempts"], row["ends"]) == (2, {"done": 1, "crash": 1})
    assert sum(row["used"].values()) == pytest.approx(row["hours"])
