"""`fsdpkit template`: what an administrator does with a template before users see it."""

from __future__ import annotations

import click

from fsdpkit.cli.groups import Verbs

VERBS: dict[str, str] = {}


@click.group("template", cls=Verbs, module="template", verbs=VERBS)
def command() -> None:
    """Write a template, check it, and see what a change to it does."""
