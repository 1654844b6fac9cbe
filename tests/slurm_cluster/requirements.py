"""What a machine must have before a cluster can run on it, and the sentence saying what lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .machines import SYSTEM_ENVIRONMENT

PACKAGE_OF = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "sacctmgr": "slurm-client",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}


def unavailable_reason() -> str | None:
    """Why no cluster can run on this machine, in one sentence; None when one can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root (namespaces and slurmd), and this is not root"
    path = SYSTEM_ENVIRONMENT["PATH"]
    missing = {pkg for cmd, pkg in PACKAGE_OF.items() if not shutil.which(cmd, path=path)}
    if missing:
        return f"a Slurm cluster needs packages not installed here: {' '.join(sorted(missing))}"
    if not system_tables_sql().exists():
        return f"a Slurm cluster needs MariaDB's own tables, and {system_tables_sql()} is not there"
    if not _namespaces_work():
        return "a Slurm cluster needs namespaces, a bridge and veth links, which are refused here"
    return None


def system_tables_sql() -> Path:
    """What MariaDB's server package holds to make the tables it keeps about itself."""
    return Path("/usr/share/mysql/mysql_system_tables.sql")


def _namespaces_work() -> bool:
    """Try everything a machine is made of, inside namespaces that end with the trial."""
    trial = "mount -t proc proc /proc && ip link add type veth && ip link add type bridge"
    argv = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-c", trial]
    done = subprocess.run(argv, env=SYSTEM_ENVIRONMENT, capture_output=True)
    return done.returncode == 0
