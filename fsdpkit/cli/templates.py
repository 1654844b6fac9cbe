"""`fsdpkit templates`."""

from __future__ import annotations

import click

from fsdpkit.cli.options import complete, say_what_is_not_read, table


@click.command("templates")
@click.argument("name", required=False, shell_complete=complete("template"))
def command(name: str | None) -> int:
    """List the templates and where each was found, or show one and its parameters.

    \b
      fsdpkit templates
      fsdpkit templates torchrun
    """
    from fsdpkit.config import assets
    from fsdpkit.config.template import load_template

    say_what_is_not_read()
    if name is not None:
        template = load_template(name)
        manifest = template.manifest
        click.echo(f"{manifest.name} {manifest.version}: {manifest.description}")
        click.echo(f"{template.layer}: {template.dir}\nsha256 {template.sha256}\n")
        rows = [
            [key, p.type, "unset" if p.default is None else str(p.default), p.help]
            for key, p in manifest.parameters.items()
        ]
        table(["PARAMETER", "TYPE", "DEFAULT", "MEANING"], rows)
        return 0
    rows = []
    for known, places in assets.available("template").items():
        manifest = load_template(known).manifest
        found = ", ".join(layer.name for layer, _ in places)
        rows.append([known, manifest.version, found, manifest.description])
    table(["TEMPLATE", "VERSION", "FOUND IN", "WHAT IT MAKES"], rows)
    return 0
