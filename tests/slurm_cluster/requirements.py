"""What a machine must have before a cluster can run on it, and the sentence saying what lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .machines import SYSTEM_ENVIRONMENT, ClusterError
from .releases import choice, chosen, make

PACKAGE_OF_SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "sacctmgr": "slurm-client",
    "munged": "munge",
}
PACKAGE_OF = {
    "mariadbd": "mariadb-server",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}


def unavailable_reason(release: str | None = None) -> str | None:
    """Why no cluster can run on this machine, in one sentence; None when one can.

    `release`: what the environment chooses, if not given. Its root is made where it lacks.
    """
    if os.geteuid() != 0:
        return "a Slurm cluster needs root (namespaces and slurmd), and this is not root"
    try:
        other = chosen(choice() if release is None else release)
    except ClusterError as error:
        return str(error)
    path = SYSTEM_ENVIRONMENT["PATH"]
    wanted = PACKAGE_OF if other else PACKAGE_OF | PACKAGE_OF_SLURM
    missing = {pkg for cmd, pkg in wanted.items() if not shutil.which(cmd, path=path)}
    if missing:
        return f"a Slurm cluster needs packages not installed here: {' '.join(sorted(missing))}"
    if not system_tables_sql().exists():
        return f"a Slurm cluster needs MariaDB's own tables, and {system_tables_sql()} is not there"
    if not _namespaces_work():
        return "a Slurm cluster needs namespaces, a bridge and veth links, which are refused here"
    if other is None:
        return None
    try:
        make(other)
    except ClusterError as error:
        return str(error)
    return other.reason_against()


def system_tables_sql() -> Path:
    """What MariaDB's server package holds to make the tables it keeps about itself, under the name
    that this release of it gives them."""
    names = ("mysql/mysql_system_tables.sql", "mysql/mariadb_system_tables.sql")
    places = [Path("/usr/share", name) for name in (*names, "mariadb/mariadb_system_tables.sql")]
    return next((place for place in places if place.exists()), places[0])


def _namespaces_work() -> bool:
    """Try everything a machine is made of, inside namespaces that end with the trial."""
    trial = "mount -t proc proc /proc && ip link add type veth && ip link add type bridge"
    argv = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-c", trial]
    done = subprocess.run(argv, env=SYSTEM_ENVIRONMENT, capture_output=True)
    return done.returncode == 0
