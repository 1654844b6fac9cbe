"""`fsdpkit template`: what an administrator does with a template before users see it."""

from __future__ import annotations

import click

from fsdpkit.cli.groups import Verbs

VERBS: dict[str, str] = {
    "new": "Make a folder with a template of your own to edit.",
    "context": "List the names that a template can use.",
    "lint": "Go through the checklist of a template.",
    "test": "Render it for every profile, run it, and compare its golden scripts.",
    "diff": "Show what a change to a template does to the scripts.",
    "export": "Make an app of Open OnDemand or Open Composer from it.",
}


@click.group("template", cls=Verbs, module="template", verbs=VERBS)
def command() -> None:
    """Write a template, check it, and see what a change to it does.

    \b
      fsdpkit template new ours && cd ours
      fsdpkit template lint .
      fsdpkit template test .
    """
