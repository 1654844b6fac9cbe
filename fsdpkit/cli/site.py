"""`fsdpkit site`: what an administrator does with the profile of a cluster."""

from __future__ import annotations

import click

from fsdpkit.cli.groups import Verbs

VERBS: dict[str, str] = {
    "build": "Build pages of clusters, templates and jobs, with a form that writes scripts.",
}


@click.group("site", cls=Verbs, module="site", verbs=VERBS)
def command() -> None:
    """Draft a cluster's profile, hold it to the live cluster, and publish its pages."""
