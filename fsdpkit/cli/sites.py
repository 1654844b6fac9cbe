"""`fsdpkit sites`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete, say_what_is_not_read, table


@click.command("sites")
@click.argument("name", required=False, shell_complete=complete("site"))
def command(name: str | None) -> int:
    """List the cluster profiles and where each was found, or show one.

    \b
      fsdpkit sites
      fsdpkit sites osc-ascend
    """
    from fsdpkit.config import assets
    from fsdpkit.config.site import load_site

    say_what_is_not_read()
    if name is not None:
        for layer, path in assets.find("site", name):
            click.echo(f"# {layer.name}: {path}")
            click.echo(path.read_text(encoding="utf-8"))
        load_site(name)
        return 0
    rows = []
    for known, places in assets.available("site").items():
        profile = load_site(known).profile
        kinds = [f"{n} ({k.gpus or '?'} GPUs)" for n, k in profile.node_types.items() if k.gpus]
        found = ", ".join(layer.name for layer, _ in places)
        rows.append([known, found, profile.verified or "-", ", ".join(kinds) or profile.title])
    table(["SITE", "FOUND IN", "VERIFIED", "NODES"], rows)
    return 0
