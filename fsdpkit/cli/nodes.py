"""`fsdpkit nodes`."""

from __future__ import annotations

import json
import textwrap
import time

import click

from fsdpkit.cli.options import runs_option


@click.command("nodes")
@click.option("--forgive", metavar="NODE", help="Let jobs use NODE again.")
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(forgive: str | None, runs: str | None, as_json: bool) -> int:
    """Show the nodes that failed a run, which later jobs avoid for some hours.

    \b
      fsdpkit nodes
      fsdpkit nodes --forgive node017
    """
    from dataclasses import asdict

    from fsdpkit.errors import NotFoundError
    from fsdpkit.runs import avoided_nodes
    from fsdpkit.runs.record import now_s
    from fsdpkit.runs.store import runs_dir

    top = runs_dir(runs)
    if forgive is not None:
        if not avoided_nodes.forgive(top, forgive):
            raise NotFoundError(f"{forgive} is not avoided by runs in {top}")
        click.echo(f"{forgive} may be used again")
        return 0
    found = avoided_nodes.avoided(top, now_s())
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
        return 0
    if not found:
        click.echo(f"runs in {top} avoid no node")
    for one in found:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until_s))
        click.echo(f"{one.node}  until {until}")
        why = f"{one.why} ({one.run_id})"
        click.echo(textwrap.fill(why, 80, initial_indent="  ", subsequent_indent="  "))
    return 0
