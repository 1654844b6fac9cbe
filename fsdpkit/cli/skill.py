"""`fsdpkit skill`: how an assistant submits, waits, reads and diagnoses safely."""

from __future__ import annotations

import click


@click.command("skill")
@click.option("--path", "as_path", is_flag=True, help="Print the path of its directory instead.")
def command(as_path: bool) -> int:
    """Print the instructions for an assistant that works with fsdpkit.

    \b
      fsdpkit skill
      cp -r "$(fsdpkit skill --path)" .agents/skills/

    The directory holds SKILL.md, in the form that assistants read skills in.
    """
    from fsdpkit.config import assets

    directory = assets.packaged_dir() / "skills" / "fsdpkit"
    if as_path:
        click.echo(directory)
    else:
        click.echo((directory / "SKILL.md").read_text(encoding="utf-8"), nl=False)
    return 0
