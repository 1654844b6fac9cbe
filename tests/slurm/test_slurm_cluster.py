"""The harness starts clusters side by side and leaves nothing; all other tests use what it starts.

Where no cluster can run these tests skip and say why; FSDPKIT_REQUIRE_SLURM=1 makes that a failure,
so that a continuous-integration job cannot go green by skipping.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_slurm
from tests.slurm_cluster import ClusterOptions, SlurmCluster
from tests.slurm_cluster.configuration import Places, hosts_text, slurm_conf

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).parents[2]
ADDRESSES = {"node1": "10.99.7.1", "node2": "10.99.7.2", "controller": "10.99.7.250"}


# The text it writes; these run anywhere.


def test_an_extra_line_replaces_the_default_of_the_same_key() -> None:
    options = ClusterOptions(nodes=1, extra_conf="KillWait=7\nPartitionName=debug Nodes=ALL")
    lines = slurm_conf(options, Places(Path("/x"), ADDRESSES)).splitlines()
    assert [line for line in lines if line.startswith("KillWait=")] == ["KillWait=7"]
    assert lines[-1] == "PartitionName=debug Nodes=ALL"


def test_a_loopback_hosts_file_hides_only_the_node_s_own_address() -> None:
    options = ClusterOptions(nodes=2, loopback_hosts=True)
    text = hosts_text("node1", options, ADDRESSES)
    assert "127.0.1.1\tnode1" in text
    assert "10.99.7.1\t" not in text
    assert "10.99.7.2\tnode2" in text


# Several clusters, and none left.


def test_a_second_cluster_without_accounting_lives_beside_the_first_and_leaves_nothing(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    root = tmp_path / ("a long name with spaces " * 6).strip()
    with SlurmCluster(root, nodes=1, accounting=False, loopback_hosts=True) as second:
        link, short_path = second.network.state.link, second.network.short_path
        machines = list(second.network.state.machines.values())
        assert second.run(["srun", "-A", "anything", "hostname"], check=True).stdout == "node1\n"
        assert second.run(["sacct"]).returncode != 0
        own = second.node_exec("node1", ["getent", "ahostsv4", "node1"]).stdout
        assert own.startswith("127.0.1.1")
        assert len(slurm_cluster.nodes()) == 3
    assert not any(machine.alive() for machine in machines)
    assert not Path("/sys/class/net", link).exists()
    assert not short_path.is_symlink()
    second.down()


def test_the_command_line_starts_shows_and_ends_a_cluster(tmp_path: Path) -> None:
    require_slurm()

    def command(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tests.slurm_cluster", verb, "--root", str(tmp_path), *words]
        return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)

    try:
        up = command("up", "--nodes", "1", "--no-accounting", "--users", "alex")
        assert f"export SLURM_CONF={tmp_path}/etc/slurm.conf" in up.stdout, up.stderr
        assert "already holds a cluster" in command("up").stderr
        status = command("status").stdout
        assert "node1  IDLE" in status
        for told in (up.stdout, status):
            assert f"slurm_cluster shell --root {tmp_path} alex" in told
        assert command("shell", "alex", "srun", "id", "-un").stdout == "alex\n"
        assert "no user 'sam'" in command("shell", "sam").stderr
    finally:
        assert command("down").returncode == 0
    assert command("status").returncode == 1
