"""On what something was measured, as its result says it."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.slurm_cluster import SlurmCluster


def measured(*packages: str, **other: Any) -> dict[str, Any]:
    """Now, here, with the versions of these packages, and what else is to be known."""
    about = {"date": time.strftime("%Y-%m-%d"), "cpus": os.cpu_count()}
    versions = {name: version(name) for name in packages}
    return {**about, "python": platform.python_version(), **versions, **other}


def slurm_version(cluster: SlurmCluster) -> str:
    return cluster.run(["scontrol", "--version"], check=True).stdout.split()[-1]
