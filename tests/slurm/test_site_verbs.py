"""`fsdpkit site draft` and `site diff` on a real Slurm cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.site import load_site
from tests.conftest import Completed
from tests.json_answers import checked
from tests.programs import Fsdpkit
from tests.slurm.conftest import USERS_LANE, Person
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


@pytest.fixture
def ours(on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path) -> Path:
    """The profile that is drafted from the cluster as it is."""
    fsdpkit("site", "draft", "--output", "ours.toml", status=0)
    return tmp_path / "ours.toml"


@pytest.fixture
def changed(on_slurm: SlurmCluster) -> Iterator[Callable[..., None]]:
    """Changes a partition until the end of the test."""
    undo: list[list[str]] = []

    def change(partition: str, key: str, value: str, before: str) -> None:
        undo.append(["scontrol", "update", f"PartitionName={partition}", f"{key}={before}"])
        words = ["scontrol", "update", f"PartitionName={partition}", f"{key}={value}"]
        on_slurm.run(words, check=True)

    yield change
    for words in undo:
        on_slurm.run(words, check=True)


def test_the_drafted_profile_says_what_the_cluster_is(ours: Path) -> None:
    profile = load_site(str(ours)).profile
    (kind,) = profile.node_types.values()
    assert (kind.gpus, kind.nodes, kind.cpus, kind.memory_mb) == (4, 3, 8, 64_000)
    limits = {name: (way.max_time, way.preempt) for name, way in profile.partitions.items()}
    assert limits == {
        "main": ("1-00:00:00", "requeue"),
        "high": ("1-00:00:00", "none"),
        "short": ("00:10:00", "requeue"),
    }
    assert profile.slurm.default_partition == "main"


def test_slurm_takes_what_the_profile_lets_through(ours: Path, fsdpkit: Fsdpkit) -> None:
    def asked(*words: str) -> Completed:
        account = ("--account", "pas1234", "--check")
        return fsdpkit("submit", "--cluster", "./ours.toml", *account, *words)

    for name, time in (("main", "1-0"), ("high", "1-0"), ("short", "10")):
        edge = ("--nodes", "3", "--gpus", "4", "--partition", name, "--time", time)
        done = asked(*edge)
        assert done.returncode == 0, done.stderr
    beyond = asked("--nodes", "4", "--gpus", "4")
    assert "4 nodes asked, the cluster has 3" in beyond.stderr


def test_a_fresh_draft_agrees_with_its_cluster(ours: Path, fsdpkit: Fsdpkit) -> None:
    done = fsdpkit("site", "diff", "./ours.toml", "--json", status=0)
    answer = checked(done.stdout)
    assert (answer["same"], answer["differ"], answer["missing"]) == (True, [], [])


def test_what_changed_since_is_a_line_with_both_values(
    ours: Path, fsdpkit: Fsdpkit, changed: Callable[..., None]
) -> None:
    changed("short", "MaxTime", "00:20:00", "00:10:00")
    changed("main", "MaxNodes", "2", "UNLIMITED")
    changed("high", "AllowAccounts", "pas1234", "ALL")
    done = fsdpkit("site", "diff", "./ours.toml", status=1)
    assert done.stdout.splitlines() == [
        "partitions.main.max_nodes: the profile has no limit, the cluster 2",
        "partitions.high.automatic: the profile has True, the cluster AllowAccounts=pas1234",
        "partitions.short.max_time: the profile has 00:10:00, the cluster 00:20:00",
    ]


def test_a_cluster_that_is_silent_is_no_difference(
    ours: Path, on_slurm: SlurmCluster, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    broken = tmp_path / "slurm.conf"
    text = on_slurm.conf.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("SlurmctldHost")]
    broken.write_text("\n".join([*lines, "SlurmctldHost=nobody(127.0.0.1)", "SlurmctldPort=1"]))
    silent: dict[str, Any] = {"env": {"SLURM_CONF": str(broken)}}
    compared = fsdpkit("site", "diff", "./ours.toml", **silent)
    assert (compared.returncode, compared.stdout) == (69, "")
    assert "slurmctld does not answer" in compared.stderr


@pytest.fixture
def private(shared_cluster: SlurmCluster) -> Iterator[Callable[[str], None]]:
    """Has Slurm keep what is named from ordinary users, until the end of the test."""
    before = shared_cluster.conf.read_text()

    def keep(what: str) -> None:
        shared_cluster.conf.write_text(f"{before}PrivateData={what}\n")
        shared_cluster.run(["scontrol", "reconfigure"], check=True)

    yield keep
    shared_cluster.conf.write_text(before)
    shared_cluster.run(["scontrol", "reconfigure"], check=True)


@USERS_LANE
def test_what_slurm_keeps_from_an_ordinary_user_stays_unknown_with_the_reason(
    private: Callable[[str], None], sam: Person
) -> None:
    assert sam.session is not None
    whole = sam.fsdpkit("site", "draft", "--output", "whole.toml", "--force")
    assert whole.returncode == 0, whole.stderr
    private("nodes,accounts,users,usage")
    done = sam.fsdpkit("site", "draft", "--output", "part.toml", "--force")
    assert done.returncode == 0, done.stderr
    profile = load_site(str(sam.home / "part.toml")).profile
    assert set(profile.partitions) == {"main", "high", "short"}
    assert (profile.partitions["short"].max_time, profile.node_types) == ("00:10:00", {})
    (why,) = (line for line in profile.unknown if line.startswith("nodes, their GPUs"))
    assert "Access/permission denied" in why
    compared = sam.fsdpkit("site", "diff", "./whole.toml")
    assert (compared.returncode, "differ" in compared.stdout) == (0, False), compared.stdout
    assert "not read: scontrol show node" in compared.stderr
    private("nodes,partitions")
    done = sam.fsdpkit("site", "draft")
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert "Access/permission denied" in done.stderr
    assert "Traceback" not in done.stderr
