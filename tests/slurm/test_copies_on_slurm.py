"""`[stage]` on real Slurm, as an ordinary user: copies on each node's own disk, and back from them.

Each node of the tests' cluster has a directory of its own for a disk. Cluster time is dear, so a
run shows several things.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.runs.events import read_json_lines
from tests.conftest import COLD, ROOT, answer_of
from tests.slurm.conftest import ACCOUNT, USERS_LANE, Person, everything_said, until, write_profile
from tests.slurm_cluster import FINISHED
from tests.slurm_cluster.machines import run_checked

pytestmark = [pytest.mark.slurm, USERS_LANE]

NODES = ("node1", "node2")
# What a rank finds; then it waits to be stopped, or for a file that is given to it.
SCRIPT = """
import hashlib, json, os, pathlib, sys, time
import fsdpkit, moved

def contents(top):
    found = {}
    for where, _, names in os.walk(top, followlinks=True):
        for path in (pathlib.Path(where, name) for name in names):
            if path.name[0] != ".":
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(path.relative_to(top))] = [digest, str(path.resolve())]
    return found

stage, node = pathlib.Path(os.environ["FSDPKIT_STAGE"]), os.environ["SLURMD_NODENAME"]
said = {"stage": contents(stage), "argument": contents(sys.argv[1]), "node": node}
said |= {"prefix": sys.prefix, "moved": moved.__file__, "uid": os.geteuid()}
(stage / "logs").mkdir(exist_ok=True)
(stage / "logs" / "of-this-rank.txt").write_text(node)
print(json.dumps(said), flush=True)
until = [pathlib.Path(path) for path in sys.argv[2:]]
while not fsdpkit.stop_requested() and not any(path.exists() for path in until):
    time.sleep(0.1)
sys.exit(fsdpkit.STOPPED if fsdpkit.stop_requested() else 0)
"""


@dataclass(frozen=True)
class Desk:
    """A person with data, a Python environment, a script and nodes that have disks."""

    person: Person
    dir: Path

    @property
    def disks(self) -> Path:
        return self.dir / "disks"

    def submit(self, words: Sequence[str], *sets: str) -> Path:
        """The run's directory. words: the script, its options, and behind `--` its arguments."""
        at = words.index("--") if "--" in words else len(words)
        given = [word for each in sets for word in ("--set", each)]
        argv = [*words[:at], *ACCOUNT, *given, "--json", "--runs", str(self.dir / "runs")]
        answer = answer_of(self.person.fsdpkit("submit", *argv, *words[at:]))
        return Path(answer["dir"])

    def ended(self, run: Path) -> str:
        """Its job's state at the end."""
        return str(self.person.cluster.wait_job(self.job_id(run), timeout_s=300)["JobState"])

    def job_id(self, run: Path) -> str:
        return str(answer_of(self.person.fsdpkit("status", str(run), "--json"))["job_id"])

    def said_by(self, run: Path, attempt: int, ranks: int = 2) -> list[dict[str, Any]]:
        """What all ranks of an attempt have printed."""
        files = [run / f"attempt-{attempt}" / f"rank-{rank}.out" for rank in range(ranks)]
        job_id = self.job_id(run)

        def lines() -> list[str]:
            texts = [path.read_text() if path.exists() else "" for path in files]
            found = [line for text in texts for line in text.splitlines() if line[:1] == "{"]
            states = {job["JobState"] for job in self.person.cluster.jobs(job_id)}
            assert len(found) == ranks or not states & FINISHED, everything_said(run)
            return found

        until(lambda: len(lines()) == ranks, f"attempt {attempt} of {run}")
        return [json.loads(line) for line in lines()]

    def left(self, pattern: str) -> list[str]:
        """What is on the nodes' disks, below the user's directory."""
        return sorted(str(p.relative_to(self.disks)) for p in self.disks.glob(f"*/*/{pattern}"))


@pytest.fixture(scope="module")
def desk(alex: Person) -> Desk:
    assert alex.session is not None
    top = Path(tempfile.mkdtemp(prefix="stage-", dir=alex.home))
    site = write_profile(top)
    profile = Path(site["FSDPKIT_SITE_PATH"]) / "site" / "profiles" / "testbed.toml"
    storage = f'local = "{top}/disks/$SLURMD_NODENAME"\nlocal_kept_h = 1.0'
    profile.write_text(f"{profile.read_text()}\n[storage]\n{storage}\n")
    for name in alex.cluster.options.node_names:
        (top / "disks" / name).mkdir(parents=True)
    (top / "script.py").write_text(SCRIPT)
    corpus = top / "corpus"
    (corpus / "deep").mkdir(parents=True)
    for number in range(8):
        (corpus / f"part {number}.bin").write_bytes(os.urandom(1 << number) * 4097)
    (corpus / "deep" / "new\nline").write_text("x")
    (top / "words.txt").write_text("one two")
    run_checked(["chown", "-R", "61001:61001", str(top)])
    venv = top / "venv"
    made = alex.session.run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    assert made.returncode == 0, made.stderr
    (installed,) = venv.glob("lib/python3*/site-packages")
    # The packages of this suite are gigabytes: a line of code finds them where they are.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (installed / "suite.pth").write_text(f"import sys; sys.path += {[str(ROOT), *packages]!r}\n")
    (installed / "moved.py").touch()
    return Desk(replace(alex, site=site), top)


@pytest.fixture(autouse=True)
def free_nodes(alex: Person) -> Iterator[None]:
    yield
    alex.cluster.run(["scancel", "--user=alex"])
    alex.cluster.wait_idle()


def digests(top: Path) -> dict[str, str]:
    found = (path for path in top.rglob("*") if path.is_file())
    return {str(p.relative_to(top)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def reused(run: Path, attempt: int) -> list[bool]:
    told = json.loads((run / f"attempt-{attempt}" / "stage.json").read_text())
    return [told["nodes"][node]["reused"] for node in NODES]


def staged(desk: Desk, *more: str) -> tuple[str, ...]:
    data = [str(desk.dir / "corpus"), str(desk.dir / "words.txt")]
    return (
        f"stage.data={json.dumps(data)}",
        f"environment.venv={desk.dir}/venv",
        "stage.environment=true",
        *more,
    )


def test_each_node_has_its_copies_and_keeps_them_and_what_it_wrote_comes_back(desk: Desk) -> None:
    """Over a warning, after which the job is queued again, and `fsdpkit cancel`."""
    run = desk.submit(
        (str(desk.dir / "script.py"), "--nodes", "2", "--gpus", "1", "--", "{stage}/corpus"),
        *staged(desk, 'stage.back=["logs/"]', "resources.nodelist=node1,node2"),
    )
    expected = digests(desk.dir / "corpus")
    for attempt in (0, 1):
        said = desk.said_by(run, attempt)
        assert [each["node"] for each in said] == [*NODES]
        for each in said:
            disk = f"{desk.disks}/{each['node']}/"
            found = each["argument"]
            assert {name: digest for name, (digest, _) in found.items()} == expected
            assert all(path.startswith(disk) for _, path in found.values())
            assert each["stage"]["words.txt"][1].startswith(disk)
            assert each["prefix"].startswith(disk)
            assert each["moved"].startswith(disk)
            assert each["uid"] == 61001
        if attempt == 0:
            warned = ["scancel", "--signal=USR1", "--batch", desk.job_id(run)]
            assert desk.person.cluster.run(warned).returncode == 0
        else:
            assert desk.person.fsdpkit("cancel", str(run), "--wait").returncode == 0
    assert (reused(run, 0), reused(run, 1)) == ([False, False], [True, True])
    for attempt in (0, 1):
        back = run / f"attempt-{attempt}" / "back"
        texts = [(back / f"node-{n}/logs/of-this-rank.txt").read_text() for n in (0, 1)]
        assert texts == [*NODES], everything_said(run)
    assert desk.left("jobs/*") == []
    assert not [name for name in desk.left("trees/*") if name.endswith(".part")]


def test_two_jobs_share_a_node_and_a_sharded_one_has_what_its_ranks_read(desk: Desk) -> None:
    go = desk.dir / "go"
    script = str(desk.dir / "script.py")
    tail = ("--", "{stage}/corpus", str(go))
    shape = ("--nodes", "2", "--gpus", "2", *COLD, *tail)
    where = "resources.nodelist=node1,node2"
    sharded = desk.submit((script, *shape), *staged(desk, "stage.share=sharded", where))
    beside = desk.submit(
        (script, "--nodes", "1", "--gpus", "1", *COLD, *tail),
        *staged(desk, "resources.nodelist=node1"),
    )
    said, other = desk.said_by(sharded, 0, ranks=4), desk.said_by(beside, 0, ranks=1)
    go.touch()
    assert [desk.ended(run) for run in (sharded, beside)] == ["COMPLETED", "COMPLETED"]
    expected = digests(desk.dir / "corpus")
    assert {name: found[0] for name, found in other[0]["argument"].items()} == expected
    order = sorted(expected)
    for each in said:
        found = each["argument"]
        assert {name: digest for name, (digest, _) in found.items()} == expected
        own = {name for name, (_, path) in found.items() if path.startswith(f"{desk.disks}/")}
        node = NODES.index(each["node"])
        assert own == {name for i, name in enumerate(order) if i % 4 // 2 == node}
    assert desk.left("jobs/*") == []


def test_a_node_whose_disk_is_full_ends_the_run_and_is_named(desk: Desk) -> None:
    (desk.dir / "large").write_bytes(os.urandom(12 << 20))
    os.chown(desk.dir / "large", 61001, 61001)
    enter = desk.person.cluster.network.machine("node2").enter()
    small = ["mount", "-t", "tmpfs", "-o", "size=8m,uid=61001,mode=0700", "small"]
    run_checked([*enter, *small, str(desk.disks / "node2")])
    try:
        run = desk.submit(
            (str(desk.dir / "script.py"), "--nodes", "2", "--gpus", "1", *COLD, "--", "{stage}"),
            f"stage.data={json.dumps([str(desk.dir / 'large')])}",
            f"environment.venv={desk.dir}/venv",
            "resources.nodelist=node1,node2",
        )
        assert desk.ended(run) == "FAILED"
    finally:
        run_checked([*enter, "umount", "--lazy", str(desk.disks / "node2")])
    told = answer_of(desk.person.fsdpkit("diagnose", str(run), "--json"))
    assert (told["cause"], told["node"]) == ("disk-full", "node2"), everything_said(run)
    assert not (run / "attempt-0" / "rank-0.out").exists()


@pytest.mark.torch
def test_t5_has_the_same_losses_from_copies(desk: Desk) -> None:
    """The data, prepared, and the environment; the run's record still has the path as written."""
    pairs, prepared = desk.dir / "pairs.jsonl", desk.dir / "prepared"
    rows = [{"source": f"count to {i}", "target": "one two"} for i in range(60)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = desk.person.fsdpkit("data", "prepare", str(pairs), "--output", str(prepared))
    assert done.returncode == 0, done.stderr
    training = {
        "data.source": prepared,
        "data.task": "pairs",
        "steps": 3,
        "metrics.every_steps": 1,
        "model.num_layers": 1,
        "model.num_decoder_layers": 1,
        "evaluation.batches": 0,
        "checkpoint.every_steps": 0,
        "checkpoint.at_end": "false",
    }
    sets = [f"training.{name}={value}" for name, value in training.items()]
    sets.append(f"environment.venv={desk.dir}/venv")
    copied = [f"stage.data={json.dumps([str(prepared)])}", "stage.environment=true"]
    losses = []
    for more in ([], copied):
        run = desk.submit(("--nodes", "2", "--gpus", "1"), *sets, *more)
        assert desk.ended(run) == "COMPLETED", everything_said(run)
        lines = read_json_lines(run / "metrics.jsonl")
        losses.append([line["loss"] for line in lines if "loss" in line])
        assert str(prepared) in (run / "job.json").read_text()
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
