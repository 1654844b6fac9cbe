"""`fsdpkit site diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete

if TYPE_CHECKING:
    from fsdpkit.publishing.drift import ProfileDifference


@answer("fsdpkit.site-diff/1")
def _compared(
    name: str,
    same: bool,
    differ: Sequence[ProfileDifference],
    missing: Sequence[ProfileDifference],
    not_compared: Sequence[str],
    unread: Sequence[str],
) -> None:
    """A profile held against the live cluster.

    missing: what the profile does not say and the cluster does. unread: what of Slurm gave no
    answer, and why.
    """


@click.command("diff")
@click.argument("name", shell_complete=complete("site"))
@json_option(_compared)
def command(name: str, as_json: bool) -> int:
    """Compare a profile with the live cluster: one line for each fact that differs.

    \b
      fsdpkit site diff osc-ascend
      fsdpkit site diff ./ours.toml --json

    Exit status: 0 if they agree, 1 if a fact differs, 69 if Slurm does not answer. A limit
    that the profile does not have is a difference; what else it does not say is listed separately.
    """
    from fsdpkit.config.site import load_site
    from fsdpkit.errors import UsageError
    from fsdpkit.publishing.drift import drift, lines
    from fsdpkit.scheduling.login_node import host_name
    from fsdpkit.scheduling.slurm_answers import SlurmAnswers

    site = load_site(name)
    if site.profile.kind == "local":
        raise UsageError(f"{site.id} is this machine, not a cluster of Slurm's")
    live = SlurmAnswers(site.profile.slurm_clusters).live()
    found = drift(site.profile, live, host_name())
    if as_json:
        _compared(site.id, not found.differ, **vars(found), unread=live.not_read)
        return 1 if found.differ else 0
    for why in live.not_read:
        click.echo(f"fsdpkit: not read: {why}", err=True)
    for line in lines(found):
        click.echo(line)
    if not found.differ:
        click.echo(f"{site.id} agrees with the cluster in all that both say.")
    return 1 if found.differ else 0
