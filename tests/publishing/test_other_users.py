"""Real other users of the machine: who publishes, who uses, who attacks, none of them root."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Completed
from tests.json_answers import checked
from tests.publishing.centres import JOB, SITE, line_of, make_key
from tests.slurm_cluster.users import Session, User, lay_out, users_of

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0,
    reason="only root can act as other users",
)


@dataclass
class Place:
    """A machine with an administrator (ada), two people (sam, kim) and an attacker (eve)."""

    root: Path
    users: dict[str, User]
    site_end: str = ""

    def run(self, who: str, *words: str | Path, **env: str) -> Completed:
        unshare = ("unshare", "--mount", "--propagation", "slave", "/bin/sh")
        entering = (*unshare, str(self.root / "etc" / "entering"))
        # Slurm refuses an empty configuration at once, and waits a minute for a missing one.
        session = Session(self.users[who], entering, Path("/dev/null"))
        return session.run([str(w) for w in words], env={**session.env(), **env}, timeout=300)

    def fsdpkit(self, who: str, *words: str | Path, **env: str) -> Completed:
        python = [sys.executable, "-m", "fsdpkit"]
        return self.run(who, *python, *words, FSDPKIT_SITE_PATH=str(self.centre), **env)

    @property
    def centre(self) -> Path:
        return self.root / "centre"

    @property
    def key(self) -> Path:
        return self.users["ada"].home / "key"

    def own(self, who: str, path: Path, mode: int) -> Path:
        os.chown(path, self.users[who].id, self.users[who].id)
        path.chmod(mode)
        return path

    def publish(self, title: str = "One") -> Completed:
        source = self.users["ada"].home / "cluster.toml"
        source.write_text(SITE.format(title=title) + self.site_end)
        self.own("ada", source, 0o644)
        done = self.fsdpkit("ada", "publish", source, "--to", self.centre, "--key", self.key)
        assert done.returncode == 0, done.stderr
        return done

    def submit(self, who: str) -> Completed:
        home = self.users[who].home
        text = JOB.format(template="torchrun")
        for name, content in (("job.toml", text), ("train.py", "")):
            (home / name).write_text(content)
            self.own(who, home / name, 0o644)
        return self.fsdpkit(who, "submit", "job.toml", "--cluster", "cluster", "--dry-run")


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="fsdpkit-publishing-", dir="/tmp") as directory:
        root = Path(directory)
        (root / "etc").mkdir()
        users = users_of(["ada", "sam", "kim", "eve"], root / "home")
        mounts = {f"/etc/{name}": root / "etc" / name for name in ("passwd", "group")}
        lay_out(root, users.values(), mounts)
        found = Place(root, users)
        key = make_key(found.key)
        for path in (key, key.with_suffix(".pub")):
            found.own("ada", path, 0o600)
        found.centre.mkdir()
        found.own("ada", found.centre, 0o755)
        signers = found.centre / "allowed_signers"
        signers.write_text(line_of(key, "ada@centre.example"))
        found.own("ada", signers, 0o644)
        yield found


def test_one_publishes_another_uses_and_what_a_third_changes_is_refused(place: Place) -> None:
    place.publish()
    done = place.submit("sam")
    assert done.returncode == 0, done.stderr
    assert "published: site cluster 1, sha256 " in done.stdout
    assert "signed by ada@centre.example" in done.stdout
    state = place.users["sam"].home / ".local" / "state" / "fsdpkit" / "centres"
    assert [path.stat().st_mode & 0o777 for path in state.iterdir()] == [0o600]
    profile = place.centre / "published" / "site" / "cluster" / "1" / "cluster.toml"
    assert place.run("eve", "sh", "-c", f"echo x >> {profile}").returncode != 0
    place.own("eve", profile, 0o644)  # as if she had come by the right to
    assert place.run("eve", "sh", "-c", f"echo '# x' >> {profile}").returncode == 0
    done = place.submit("sam")
    assert done.returncode == 65
    assert "is not what ada@centre.example signed" in done.stderr
    place.publish()
    assert place.submit("sam").returncode == 0


def test_who_cannot_write_the_folder_publishes_nothing(place: Place) -> None:
    place.publish()
    before = (place.centre / "published" / "index").read_bytes()
    source = place.users["eve"].home / "cluster.toml"
    source.write_text(SITE.format(title="Eve's"))
    done = place.fsdpkit("eve", "publish", source, "--to", place.centre, "--key", source)
    assert done.returncode in (65, 74), done.stderr
    key = make_key(place.users["eve"].home / "key")
    place.own("eve", key, 0o600)
    done = place.fsdpkit("eve", "publish", source, "--to", place.centre, "--key", key)
    assert done.returncode == 74, done.stderr
    assert (place.centre / "published" / "index").read_bytes() == before


def test_who_can_write_where_versions_lie_and_not_who_may_sign_changes_nothing(
    place: Place,
) -> None:
    place.publish()
    assert place.submit("sam").returncode == 0
    published = place.centre / "published"
    place.own("eve", published, 0o755)
    key = make_key(place.users["eve"].home / "key")
    place.own("eve", key, 0o600)
    # The best she can do without the key: an index of her own, and signers of her own beside it.
    program = (
        "import sys; from pathlib import Path\n"
        "from fsdpkit.config.published.index import split\n"
        "from fsdpkit.publishing.signing import sign\n"
        "index = Path(sys.argv[1]); body = split(index.read_bytes())[0]\n"
        "body = body.replace(b'\"cluster\"', b'\"klaster\"')\n"
        "index.rename(index.with_name('was'))\n"
        "index.write_bytes(body + sign(body, Path(sys.argv[2])))\n"
    )
    done = place.run("eve", sys.executable, "-c", program, published / "index", key)
    assert done.returncode == 0, done.stderr
    assert place.submit("sam").returncode == 65
    assert place.submit("kim").returncode == 65, "who has never seen it, neither"
    place.own("eve", place.centre / "allowed_signers", 0o644)
    done = place.submit("kim")
    assert done.returncode == 65
    assert "others than root and the centre's owner can change" in done.stderr


def test_a_home_that_cannot_be_written_is_no_reason_to_refuse(place: Place) -> None:
    place.publish()
    done = place.fsdpkit("sam", "sites", FSDPKIT_STATE_DIR="/proc/nowhere")
    assert done.returncode == 0, done.stderr
    assert "cluster " in done.stdout


# ---- Audit


def _shared_run(place: Place, who: str, text: str = "[audit]\nshare = true\n") -> Completed:
    home = place.users[who].home
    for name, content in (("own.toml", JOB.format(template="torchrun") + text), ("train.py", "")):
        (home / name).write_text(content)
        place.own(who, home / name, 0o644)
    bin_dir = place.root / "bin"
    bin_dir.mkdir(exist_ok=True)
    (bin_dir / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (bin_dir / "sbatch").chmod(0o755)
    path = f"{bin_dir}:{Path(sys.executable).parent}:/usr/bin:/bin"
    done = place.fsdpkit(who, "submit", "own.toml", "--cluster", "cluster", PATH=path)
    assert done.returncode == 0, done.stderr
    return done


def _published_with_records(place: Place) -> Path:
    """The folder in which each user may leave records."""
    place.publish()
    drop = place.centre / "audit"
    drop.mkdir()
    return place.own("ada", drop, 0o1733)


def _audit(place: Place) -> tuple[tuple[int, int], dict[str, int]]:
    done = place.fsdpkit("ada", "audit", place.centre, "--json")
    assert done.returncode == 0, done.stderr
    answer = checked(done.stdout)
    return (answer["runs"], answer["users"]), answer["left_out"]


def test_the_audit_counts_who_shares_and_knows_nothing_of_anybody_else(place: Place) -> None:
    drop = _published_with_records(place)
    _shared_run(place, "sam")
    _shared_run(place, "sam", "[files]\ngroup = true\n")
    _shared_run(place, "sam", "[files]\ngroup = true\n[audit]\nshare = false\n")
    _shared_run(place, "kim", "")
    assert _audit(place) == ((2, 1), {})
    # Nobody but the centre sees who shares.
    assert place.run("eve", "ls", drop).returncode != 0
    names = [path.name for path in drop.iterdir()]
    assert all(name.startswith(f"{place.users['sam'].id}-mine-") for name in names)
    for path in drop.iterdir():
        assert str(place.users["sam"].home) not in path.read_text()
    # She herself sees all of it, also once her run is gone.
    shutil.rmtree(place.users["sam"].home / "runs")
    told = checked(place.fsdpkit("sam", "audit", "--mine", "--json").stdout)["records"]
    assert {name: json.dumps(one) for name, one in told.items()} == {
        str(path): json.dumps(json.loads(path.read_text())) for path in drop.iterdir()
    }
    assert checked(place.fsdpkit("eve", "audit", "--mine", "--json").stdout)["records"] == {}


def test_a_centres_profile_switches_records_on_and_each_user_may_switch_them_off(
    place: Place,
) -> None:
    place.site_end = '[audit]\nshare = true\nreaders = "the support team"\n'
    _published_with_records(place)
    told = [_shared_run(place, "sam", text) for text in ("", "", "[audit]\nshare = false\n")]
    assert ["support team" in done.stderr for done in told] == [True, False, False]
    assert _audit(place) == ((2, 1), {})
    scripts = [one.read_text() for one in place.users["sam"].home.glob("runs/*/job.sbatch")]
    assert sum("support team can read a record" in script for script in scripts) == 2


def test_what_others_put_beside_the_records_counts_for_no_more_than_their_own_line(
    place: Place,
) -> None:
    drop = _published_with_records(place)
    _shared_run(place, "sam")
    before, _ = _audit(place)
    sam, eve = place.users["sam"].id, place.users["eve"].id
    used_s = {"training": 60.0}
    account = {"attempt": 0, "began_s": time.time() - 60, "ended_s": time.time(), "nodes": 1}
    account |= {"gpus": 8, "gpu": "\x1b[2JH100", "used_s": used_s}
    ends = [
        {"attempt": n, "action": "requeue", "cause": "crash", "at_s": time.time(), "account": one}
        for n, one in enumerate([account, {**account, "used_s": {"training": 1e9}}])
    ]
    lie = {
        "schema": "fsdpkit.shared-run/1",
        "run": "r-1",
        "submitted_s": time.time(),
        "nodes": 1,
        "ranks_per_node": 1,
        "fsdpkit": "1",
        "used": [{"kind": "site", "name": "cluster", "version": "1", "sha256": "0" * 64}],
        "ends": ends,
    }
    nasty = {**lie, "run": "r-2", "used": [{"kind": "site", "name": "\x1b[2Jx"}]}
    later = {**lie, "run": "r-3", "submitted_s": time.time() + 1e7}
    files = {
        f"{eve}-r-1.json": json.dumps(lie),
        f"{sam}-r-1.json": json.dumps(lie),  # in another's name
        f"{eve}-r-2.json": json.dumps(nasty),
        f"{eve}-r-3.json": json.dumps(later),
        f"{eve}-deep.json": "[" * 15_000,
        f"{eve}-nan.json": json.dumps({**lie, "run": "nan", "submitted_s": math.nan}),
        f"{eve}-vast.json": json.dumps({**lie, "run": "vast"}).replace("60.0", "1e999"),
        f"{eve}-none.json": "",
        f"{eve}-text.json": "\xff\x00",
        "a\x1b[2Jb\n.json": "{}",
    }
    home = place.users["eve"].home
    for n, (name, text) in enumerate(files.items()):
        (home / f"f{n}").write_text(text)
        done = place.run("eve", "cp", home / f"f{n}", drop / name)
        assert done.returncode == 0, done.stderr
    made = [
        ("truncate", "-s", "10M", drop / f"{eve}-big.json"),
        ("truncate", "-s", "3T", drop / f"{eve}-huge.json"),
        ("mkfifo", drop / f"{eve}-pipe.json"),
        ("mkdir", drop / f"{eve}-folder.json"),
        ("ln", "-s", "/dev/zero", drop / f"{eve}-zero.json"),
        ("ln", "-s", next(drop.glob(f"{sam}-*")), drop / f"{eve}-link.json"),
    ]
    for words in made:
        place.run("eve", *words)
    (runs, users), left_out = _audit(place)
    # Her one believable record counts as one run of one user, and its hours are nobody's.
    assert (runs, users) == (before[0] + 1, before[1] + 1)
    assert left_out["an attempt: uses are not what was granted"] == 1
    assert sum(left_out.values()) >= 12
    done = place.fsdpkit("ada", "audit", place.centre, "--by", "gpu,site")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "cluster 1, not as published" in done.stdout


def test_a_flood_of_one_user_does_not_crowd_others_out(place: Place) -> None:
    from fsdpkit.runs.shared_record import MOST_OF_ONE

    drop = _published_with_records(place)
    _shared_run(place, "sam")
    before, _ = _audit(place)
    program = (
        "import os, sys\n"
        f"for n in range({MOST_OF_ONE} + 500):\n"
        "    os.close(os.open(f'{sys.argv[1]}/{n}.json', os.O_CREAT | os.O_WRONLY, 0o644))\n"
    )
    assert place.run("eve", sys.executable, "-c", program, drop).returncode == 0
    counts, left_out = _audit(place)
    assert counts == before
    assert left_out == {
        "no record": MOST_OF_ONE,
        f"one of more than {MOST_OF_ONE} of one user": 500,
    }


def test_a_folder_for_records_that_leads_elsewhere_is_not_written_through(place: Place) -> None:
    place.publish()
    theirs = place.root / "theirs"
    theirs.mkdir()
    place.own("eve", theirs, 0o777)
    (place.centre / "audit").symlink_to(theirs)
    _shared_run(place, "sam")
    assert list(theirs.iterdir()) == []
