"""The cluster's ordinary users are what they are on any: two people, neither of them root."""

from __future__ import annotations

import socket
import stat
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import USERS_LANE
from tests.slurm_cluster import ClusterOptions, SlurmCluster
from tests.slurm_cluster.users import CHECKOUT, first_closed, users_of

pytestmark = [pytest.mark.slurm, USERS_LANE]

WHO = """
import os, pwd
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
powers = {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh")}
name = pwd.getpwuid(os.getuid()).pw_name
print(name, os.getgroups(), *powers.values(), os.getcwd() == os.environ["HOME"])
"""


@pytest.mark.parametrize("name", ["root", "al ex", "", "Alex"])
def test_a_name_that_this_machine_has_or_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name, or somebody has it already"):
        users_of([name], Path("/homes"))
    with pytest.raises(ValueError, match="'alex'"):
        users_of(["alex", "alex"], Path("/homes"))


@pytest.mark.parametrize("place", ["login", "node1", "outside", "step"])
def test_a_user_has_a_name_a_home_and_no_power_wherever_their_commands_run(
    shared_cluster: SlurmCluster, place: str
) -> None:
    program = [sys.executable, "-c", WHO]
    if place == "outside":
        with shared_cluster.outsider("sam") as outsider:
            done = outsider.run(program)
    elif place == "step":
        done = shared_cluster.as_user("sam").run(["srun", "--nodelist=node2", *program])
    else:
        on = None if place == "login" else place
        done = shared_cluster.as_user("sam", on=on).run(program)
    assert done.returncode == 0, done.stderr
    bounding = "0" if place != "step" else done.stdout.split()[4]  # slurmd's, which is root's
    assert done.stdout.split() == ["sam", "[61002]", "0", "0", bounding, "0", "True"]


def test_root_in_a_node_logs_a_user_in_as_slurmd_does_for_their_environment(
    shared_cluster: SlurmCluster,
) -> None:
    done = shared_cluster.node_exec("node1", ["su", "-", "sam", "-c", "/usr/bin/env"])
    assert done.returncode == 0, done.stderr
    assert f"HOME={shared_cluster.users['sam'].home}" in done.stdout.splitlines()


def test_what_this_machine_keeps_closed_is_closed_after_all(shared_cluster: SlurmCluster) -> None:
    """Seen are the Python and the checkout, for reading, and nothing else below /root."""
    before = stat.S_IMODE(Path("/root").stat().st_mode)
    alex = shared_cluster.as_user("alex")
    for session in (alex, shared_cluster.as_user("alex", on="node1")):
        for place in (CHECKOUT, sys.prefix, sys.base_prefix, "/root"):
            done = session.run(["touch", f"{place}/trace"])
            assert done.returncode != 0
            assert not Path(place, "trace").exists()
        if first_closed(Path(sys.base_prefix)) is not None:
            program = "import os, sys; sys.exit(not os.statvfs(sys.base_prefix).f_flag & 1)"
            assert session.run([sys.executable, "-c", program]).returncode == 0, "not read-only"
    assert stat.S_IMODE(Path("/root").stat().st_mode) == before
    assert "alex" not in Path("/etc/passwd").read_text()


def test_one_user_does_not_end_the_job_of_another(shared_cluster: SlurmCluster) -> None:
    alex, sam = (shared_cluster.as_user(name) for name in ("alex", "sam"))
    job_id = alex.run(["sbatch", "--parsable", "--wrap", "sleep 3600"]).stdout.strip()
    shared_cluster.wait_job(job_id, states={"RUNNING"})
    assert "alex" in sam.run(["squeue", "--noheader", "--format=%u"]).stdout
    refused = sam.run(["scancel", job_id])
    assert "Access/permission denied" in refused.stderr
    assert shared_cluster.jobs(job_id)[0]["JobState"] == "RUNNING"
    assert alex.run(["scancel", job_id]).returncode == 0
    assert shared_cluster.wait_job(job_id)["JobState"] == "CANCELLED"


def test_an_outsider_reaches_a_node_and_is_reached_from_it(shared_cluster: SlurmCluster) -> None:
    with shared_cluster.outsider("sam") as first, shared_cluster.outsider("alex") as second:
        program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])))"
        node = shared_cluster.places.addresses["node1"]
        slurmd = [sys.executable, "-c", program, node, "6818"]
        for outsider in (first, second):
            assert outsider.run(slurmd, timeout=60).returncode == 0
        addresses = [o.run(["hostname"]).stdout for o in (first, second)]
    assert len({*addresses, socket.gethostname()}) == 3
    names = [name for name in shared_cluster.network.state.machines if "outsider" in name]
    assert names == []


def test_a_cluster_without_users_mounts_nothing_for_them(tmp_path: Path) -> None:
    cluster = SlurmCluster(tmp_path)
    assert ClusterOptions().users == ()
    assert cluster.users == {}
    assert "/etc/passwd" not in cluster._mounts()


def test_a_cluster_below_closed_directories_is_open_to_its_users(tmp_path: Path) -> None:
    """pytest keeps its directories to the person who runs it."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    root = closed / "cluster"
    with SlurmCluster(root, nodes=1, accounting=False, users=("alex",)) as cluster:
        alex = cluster.as_user("alex")
        argv = ["srun", "--chdir", str(alex.user.home), "sh", "-c", "id -un; ls -A ../../.."]
        done = alex.run(argv)
        assert done.stdout.splitlines() == ["alex", "cluster"], done.stderr
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
