"""`fsdpkit templates`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fsdpkit.cli.checking import check_option, files_checked, listed, report_check
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging, say_what_is_not_read, table


@dataclass(frozen=True)
class ListedTemplate:
    """A template. deprecated: what its users are told of its end."""

    name: str
    version: str
    found_in: list[str]
    description: str
    deprecated: str | None


@answer("fsdpkit.templates/1")
def _templates(templates: Sequence[ListedTemplate]) -> None:
    """All templates."""


@answer("fsdpkit.templates-show/1")
def _one_template(
    name: str,
    version: str,
    description: str,
    found_in: str,
    dir: Path,
    sha256: str,
    parameters: dict[str, Any],
    canaries: Sequence[str],
) -> None:
    """A template, its parameters by site/schema/template.schema.json, and how its canaries went."""


@click.command("templates")
@click.argument("name", required=False, shell_complete=complete("template"))
@check_option("template")
@json_option(_templates, _one_template, files_checked)
def command(name: str | None, check: bool, as_json: bool) -> int:
    """List the templates and where each was found, or show one and its parameters.

    \b
      fsdpkit templates
      fsdpkit templates torchrun
      fsdpkit templates --check
    """
    from fsdpkit.config.template import load_template

    say_what_is_not_read()
    if check:
        return report_check("template", as_json)
    if name is not None:
        _show(name, as_json)
        return 0
    found = [
        ListedTemplate(
            known,
            one.manifest.version,
            found_in,
            one.manifest.description,
            one.release.deprecated if one.release else None,
        )
        for known, one, found_in in listed("template", load_template)
    ]
    if as_json:
        return _templates(found)
    rows = [[one.name, one.version, ", ".join(one.found_in), one.description] for one in found]
    table(["TEMPLATE", "VERSION", "FOUND IN", "WHAT IT MAKES"], rows)
    for one in found:
        if one.deprecated:
            click.echo(f"fsdpkit: {one.deprecated}", err=True)
    return 0


def _show(name: str, as_json: bool) -> None:
    import msgspec

    from fsdpkit.config.as_toml import inline
    from fsdpkit.config.template import load_template
    from fsdpkit.publishing.template_tested import kept

    template = load_template(name)
    manifest = template.manifest
    canaries = kept(template)
    if as_json:
        _one_template(
            name=manifest.name,
            version=manifest.version,
            description=manifest.description,
            found_in=template.layer,
            dir=template.dir,
            sha256=template.sha256,
            parameters=msgspec.to_builtins(manifest.parameters),
            canaries=canaries,
        )
        return
    told = f"{manifest.name} {manifest.version}: {manifest.description}"
    click.echo("\n".join(hanging(told, "", "  ")))
    click.echo(f"{template.layer}: {template.dir}\nsha256 {template.sha256}")
    if one := template.release:
        click.echo(f"published: sha256 {one.sha256}, {one.channel}, signed by {one.signer}")
        if one.deprecated:
            click.echo(one.deprecated)
    click.echo("\n".join([*(f"canary on {one}" for one in canaries or ["no cluster"]), ""]))
    rows = [
        [key, p.type, "unset" if p.default is None else inline(p.default), p.help]
        for key, p in manifest.parameters.items()
    ]
    table(["PARAMETER", "TYPE", "DEFAULT", "MEANING"], rows)
