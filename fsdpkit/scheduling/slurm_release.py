"""Which release of Slurm a cluster runs, and what is asked of it because of that.

An older release refuses an option that it does not know, so whatever newer ones give is asked for
by version. Where the version cannot be read, the cluster counts as an old one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.surroundings import stood_in
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.slurm import Round

_LIMIT_S = 5.0
"""A submission does not wait for a busy controller only to learn what it could do."""
_EXPEDITES = (25, 11)


@dataclass(frozen=True)
class SlurmConfig:
    """What of `scontrol show config` matters to a submission. None: not read."""

    version: tuple[int, int] | None = None
    """Of slurmctld, e.g. (26, 5)."""
    expedites: bool = False
    """Whether it takes `--requeue=expedite`: 25.11 or later, and the site has switched it on."""


def parse_config(text: str) -> SlurmConfig:
    """Output of `scontrol show config`."""
    return config_of(dict(re.findall(r"^(\w+) *= *(.*?) *$", text, re.MULTILINE)))


def config_of(settings: Mapping[str, str]) -> SlurmConfig:
    """From the settings by name."""
    number = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    version = (int(number[1]), int(number[2])) if number else None
    allowed = "enable_expedited_requeue" in settings.get("SlurmctldParameters", "").split(",")
    return SlurmConfig(
        version,
        version is not None and version >= _EXPEDITES and allowed,
    )


def read_config(client: Cluster) -> SlurmConfig:
    """The cluster's own answer; never raises."""
    return parse_config(client.config_text(Round(_LIMIT_S)) or "")


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
    if settings is not None:
        return config_of(settings).expedites
    return read_config(cluster_of(profile.kind, profile.slurm_clusters)).expedites
