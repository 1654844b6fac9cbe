"""A real Slurm cluster on one machine, for tests and for trying things.

fsdpkit's promises are about what Slurm does, so its tests ask Slurm: slurmctld, slurmd, slurmdbd
and munged from the distribution's packages, every node in namespaces of its own. A test writes

    with SlurmCluster(tmp_path, nodes=2) as cluster:
        cluster.run(["srun", "-N2", "hostname"])

and a person runs ``python -m tests.slurm_cluster up --root DIR``. The modules, from the kernel up:
``machines`` (namespaces, cables, processes), ``releases`` (a Slurm of another Debian),
``requirements`` (can this machine do it), ``configuration`` (the text Slurm reads), ``users``
(who is not root), ``cluster`` (starting, waiting, breaking). Nothing here knows fsdpkit.

Nodes share every directory with the machine, as over a cluster file system that is never late; only
/dev/shm, /etc/hosts, /etc/slurm, /proc and /sys are each node's own. Process numbers are too, so a
name in /tmp made from one is not unique here.
"""

from .cluster import FINISHED, JobInfo, SlurmCluster
from .configuration import ClusterOptions
from .machines import ClusterError
from .releases import (
    CHOICE,
    NEWEST,
    SUITES,
    choice,
    installed_version,
    is_made,
    point_at_roots,
    release_clients,
)
from .requirements import unavailable_reason
from .users import Session

__all__ = [
    "CHOICE",
    "FINISHED",
    "NEWEST",
    "SUITES",
    "ClusterError",
    "ClusterOptions",
    "JobInfo",
    "Session",
    "SlurmCluster",
    "choice",
    "installed_version",
    "is_made",
    "point_at_roots",
    "release_clients",
    "unavailable_reason",
]
