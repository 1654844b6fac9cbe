"""Which release of Slurm a cluster runs, and what is asked of it because of that.

An older release refuses an option that it does not know, so whatever newer ones give is asked for
by version. Where the version cannot be read, the cluster counts as an old one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.surroundings import stood_in
from fsdpkit.scheduling.cluster import cluster_of
from fsdpkit.scheduling.slurm import Round

_LIMIT_S = 5.0
"""A submission does not wait for a busy controller only to learn what it could do."""
_EXPEDITES = (25, 11)


def expedites(settings: Mapping[str, str]) -> bool:
    """Whether a cluster with these settings takes `--requeue=expedite`: 25.11 or later, where the
    site has switched it on."""
    number = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    allowed = settings.get("SlurmctldParameters", "").split(",")
    is_new = number is not None and (int(number[1]), int(number[2])) >= _EXPEDITES
    return is_new and "enable_expedited_requeue" in allowed


def wants_expediting(
    job: LoadedJob, profile: SiteProfile, settings: Mapping[str, str] | None = None
) -> bool:
    """Whether the job is to come back at once, and before others, when Slurm loses its head node.

    Slurm otherwise lets it wait for two minutes and then in the queue, like any other job.
    settings: the cluster's, where they are known; else it is asked.
    """
    if profile.policy.requeue is False or not job.may_requeue:
        return False
    if job.spec.retry.on_node_failure == "stop" or profile.slurm.flavour == "psslurm":
        return False
    if (surroundings := stood_in()) is not None:
        return surroundings.expedites
    if settings is None:
        cluster = cluster_of(profile.kind, profile.slurm_clusters)
        text = cluster.config_text(Round(_LIMIT_S)) or ""
        settings = dict(re.findall(r"^(\w+) *= *(.*?) *$", text, re.MULTILINE))
    return expedites(settings)
