"""`fsdpkit _remote`: what a laptop's fsdpkit calls on the login node. Nobody types it."""

from __future__ import annotations

import click


@click.command("_remote", hidden=True)
@click.argument("request")
def command(request: str) -> int:
    """Do what the fsdpkit of another machine asks for."""
    from fsdpkit.cli.main import main
    from fsdpkit.remote.serving import serve

    return serve(request, main)
