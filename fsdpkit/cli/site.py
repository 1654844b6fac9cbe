"""`fsdpkit site`: what an administrator does with the profile of a cluster."""

from __future__ import annotations

import click

from fsdpkit.cli.groups import Verbs

VERBS: dict[str, str] = {
    "draft": "Draft a profile of the cluster that this login node belongs to.",
    "diff": "Compare a profile with the live cluster.",
    "build": "Build pages of clusters, templates and jobs, with a form that writes scripts.",
}


@click.group("site", cls=Verbs, module="site", verbs=VERBS)
def command() -> None:
    """Draft a cluster profile, compare it with the live cluster, and build its pages.

    \b
      fsdpkit site draft --output ours.toml
      fsdpkit site diff osc-ascend
    """
