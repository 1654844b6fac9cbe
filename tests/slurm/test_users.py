"""The cluster's ordinary users are what they are on any: two people, neither of them root."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import USERS_LANE
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.users import CHECKOUT, first_closed

pytestmark = [pytest.mark.slurm, USERS_LANE]

WHO = """
import os, pwd
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
powers = {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh")}
name = pwd.getpwuid(os.getuid()).pw_name
print(name, os.getgroups(), *powers.values(), os.getcwd() == os.environ["HOME"])
"""


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
