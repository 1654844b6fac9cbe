"""`fsdpkit template context`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging

_SITE = "generic"
_WIDE = 60


@dataclass(frozen=True)
class ContextName:
    """A name that a template can use; `directives[].name` of an entry of a list, in a loop."""

    name: str
    type: str
    meaning: str
    example: Any


@answer("fsdpkit.template-context/1")
def _context(template: str, example_of: str, names: Sequence[ContextName]) -> None:
    """Every name that a template can use. example_of: the job that the examples are of."""


@click.command("context")
@click.argument("template", default="torchrun", shell_complete=complete("template"))
@click.option(
    "--site",
    default=_SITE,
    show_default=True,
    help="Profile of the examples.",
    shell_complete=complete("site"),
)
@json_option(_context)
def command(template: str, site: str, as_json: bool) -> int:
    """List every name that a template can use, with its type, an example and what it means.

    \b
      fsdpkit template context
      fsdpkit template context ours/ --site osc-cardinal

    The examples are those of a job of two nodes. `directives[].name` is an entry of a list, which
    a loop gives: {% for d in directives %} … d.name.
    """
    from fsdpkit.errors import UsageError
    from fsdpkit.publishing.template_cases import RUN_DIR, SHAPES, Case, fitting, plan_of, sites
    from fsdpkit.publishing.template_named import open_template
    from fsdpkit.rendering.context import names, value_at
    from fsdpkit.rendering.script import context_of

    found = open_template(template)
    (profile,), _ = sites([site])
    case = fitting(profile, SHAPES[0])
    if not isinstance(case, Case):
        raise UsageError(f"{site} takes no job of two nodes: {case}")
    context = context_of(plan_of(case, found), RUN_DIR)
    listed = [
        ContextName(each.name, each.type, each.meaning, value_at(context, each.name))
        for each in names(found.manifest)
    ]
    if as_json:
        return _context(found.manifest.name, str(case), listed)
    for each in listed:
        click.echo(f"{each.name}: {each.type}{_example(each.example)}")
        click.echo("\n".join(hanging(each.meaning, "    ", "    ")))
    return 0


def _example(value: Any) -> str:
    """`, such as 2`; nothing for a table, whose entries follow, and for what is unset here."""
    if value is None or isinstance(value, dict) or (isinstance(value, list) and not value):
        return ""
    if isinstance(value, list) and isinstance(value[0], dict):
        return f", of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return f", such as {text if len(text) <= _WIDE else text[:_WIDE] + '…'}"
