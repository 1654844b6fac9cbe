"""Whether this process stands where the cluster takes jobs from (`fsdpkit.config.submit_place`)."""

from __future__ import annotations

import os
import platform
from pathlib import Path, PurePosixPath

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import NodeType
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.submit_place import Here, reasons_against
from fsdpkit.errors import UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.cluster import cluster_of


def not_from_here(job: LoadedJob, site: LoadedSite, node: NodeType, work_dir: Path) -> list[str]:
    """Why the job is not to be submitted from here; empty if nothing known speaks against it."""
    profile = site.profile
    if not cluster_of(profile.kind, profile.slurm_clusters).elsewhere:
        return []
    names = [os.uname().nodename]
    if profile.login.hosts:
        import socket  # only here: the full name may need an answer from the name service

        names.append(socket.getfqdn())
    here = Here(PurePosixPath(work_dir.resolve()), os.environ, tuple(names), platform.machine())
    environment = job.spec.environment
    own = not (environment.conda or environment.venv or environment.container)
    return list(reasons_against(profile, node, here, own_python=own))


def refuse_from_here(plan: Plan) -> None:
    """Raises UsageError."""
    if why := not_from_here(plan.job, plan.site, plan.placement.node_type, plan.work_dir):
        raise UsageError("; ".join(why))
