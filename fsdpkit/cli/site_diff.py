"""`fsdpkit site diff`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete, json_option


@click.command("diff")
@click.argument("name", shell_complete=complete("site"))
@json_option
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
    from fsdpkit.scheduling.slurm_answers import SlurmAnswers

    site = load_site(name)
    if site.profile.kind == "local":
        raise UsageError(f"{site.id} is this machine, not a cluster of Slurm's")
    live = SlurmAnswers(site.profile.slurm_clusters).live()
    found = drift(site.profile, live)
    if as_json:
        from fsdpkit.cli.json_output import print_answer
        from fsdpkit.cli.site_answers import SiteDiff

        print_answer(
            SiteDiff(
                name=site.id,
                same=not found.differ,
                differ=found.differ,
                missing=found.missing,
                not_compared=found.not_compared,
                unread=live.not_read,
            )
        )
        return 1 if found.differ else 0
    for why in live.not_read:
        click.echo(f"fsdpkit: not read: {why}", err=True)
    for line in lines(found):
        click.echo(line)
    if not found.differ:
        click.echo(f"{site.id} agrees with the cluster in all that both say.")
    return 1 if found.differ else 0
