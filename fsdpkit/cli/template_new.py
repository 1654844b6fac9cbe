"""`fsdpkit template new`."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete


@answer("fsdpkit.template-new/1")
def _made(name: str, dir: Path) -> None:
    """A template's folder that was made."""


@click.command("new")
@click.argument("name")
@click.option(
    "--from",
    "source",
    default="torchrun",
    show_default=True,
    metavar="TEMPLATE",
    shell_complete=complete("template"),
    help="Template to begin with: a name or a folder.",
)
@json_option(_made)
def command(name: str, source: str, as_json: bool) -> int:
    """Make the folder NAME here, with a template to edit.

    \b
      fsdpkit template new ours

    The folder holds the manifest, the commented script, a README and golden scripts, and passes
    `lint` and `test` as it is. Nothing is ever overwritten.
    """
    from fsdpkit.publishing.template_named import open_template
    from fsdpkit.publishing.template_new import new_template

    made = new_template(name, open_template(source), Path.cwd())
    if as_json:
        return _made(name, made)
    click.echo(str(made))
    click.echo(f"  fsdpkit template lint {name}\n  fsdpkit template test {name}", err=True)
    return 0
