"""`fsdpkit template diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging

if TYPE_CHECKING:
    from fsdpkit.config.template import Template
    from fsdpkit.publishing.template_diff import ScriptDifference

DIFFERENT = 1


@answer("fsdpkit.template-diff/1")
def _compared(
    equal: bool, old: str, new: str, compared: int, differences: Sequence[ScriptDifference]
) -> None:
    """How the scripts of two templates differ. compared: how many of each."""


@click.command("diff")
@click.argument("old", shell_complete=complete("template"))
@click.argument("new", shell_complete=complete("template"))
@click.option(
    "--site",
    "asked",
    multiple=True,
    shell_complete=complete("site"),
    help="Only for this profile; may be given several times.",
)
@json_option(_compared)
def command(old: str, new: str, asked: tuple[str, ...], as_json: bool) -> int:
    """Show how the scripts of the template NEW differ from those of OLD.

    \b
      fsdpkit template diff torchrun ours/
      fsdpkit template diff /opt/fsdpkit/templates/ours ours/ --site osc-cardinal

    Each is a folder or a name. Both are rendered for every profile and for jobs of many shapes, and
    an equal difference is shown once. Exit status 0 if all scripts are equal, 1 if not, 65 if a
    template cannot be read.
    """
    from fsdpkit.publishing.template_cases import sites
    from fsdpkit.publishing.template_diff import compare
    from fsdpkit.publishing.template_named import open_template

    before, after = open_template(old), open_template(new)
    found, broken = sites(asked)
    for why in broken:
        click.echo(f"fsdpkit: left out: {why}", err=True)
    compared = compare(before, after, found)
    names = (_named(before), _named(after))
    if as_json:
        _compared(not compared.differences, *names, compared.cases, compared.differences)
        return DIFFERENT if compared.differences else 0
    for difference in compared.differences:
        all_of_them = len(difference.cases) == compared.cases > 1
        where = f"all {compared.cases} scripts" if all_of_them else "; ".join(difference.cases)
        click.echo("\n".join(hanging(where, "", "  ")))
        click.echo("\n".join(f"    {line}" for line in difference.diff) + "\n")
    same = compared.cases - sum(len(each.cases) for each in compared.differences)
    click.echo(f"{names[0]} → {names[1]}: {same} of {compared.cases} scripts are equal", err=True)
    return DIFFERENT if compared.differences else 0


def _named(template: Template) -> str:
    return f"{template.manifest.name} {template.manifest.version}"
