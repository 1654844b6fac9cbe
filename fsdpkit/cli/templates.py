"""`fsdpkit templates`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fsdpkit.cli.checking import check_option, listed, report_check
from fsdpkit.cli.json_output import print_answer
from fsdpkit.cli.options import complete, hanging, json_option, say_what_is_not_read, table

if TYPE_CHECKING:
    from fsdpkit.cli.template_answers import KeptCanary
    from fsdpkit.config.template import Template


@click.command("templates")
@click.argument("name", required=False, shell_complete=complete("template"))
@check_option("template")
@json_option
def command(name: str | None, check: bool, as_json: bool) -> int:
    """List the templates and where each was found, or show one and its parameters.

    \b
      fsdpkit templates
      fsdpkit templates torchrun
      fsdpkit templates --check
    """
    from fsdpkit.cli.json_answers import ListedTemplate, Templates
    from fsdpkit.config.template import load_template

    say_what_is_not_read()
    if check:
        return report_check("template", as_json)
    if name is not None:
        _show(name, as_json)
        return 0
    found = [
        ListedTemplate(
            name=known,
            version=template.manifest.version,
            found_in=found_in,
            description=template.manifest.description,
        )
        for known, template, found_in in listed("template", load_template)
    ]
    if as_json:
        print_answer(Templates(templates=found))
        return 0
    rows = [[one.name, one.version, ", ".join(one.found_in), one.description] for one in found]
    table(["TEMPLATE", "VERSION", "FOUND IN", "WHAT IT MAKES"], rows)
    return 0


def _show(name: str, as_json: bool) -> None:
    import msgspec

    from fsdpkit.cli.template_answers import OneTemplate
    from fsdpkit.config.as_toml import inline
    from fsdpkit.config.template import load_template

    template = load_template(name)
    manifest = template.manifest
    if as_json:
        kept, unread = _kept(template)
        print_answer(
            OneTemplate(
                name=manifest.name,
                version=manifest.version,
                description=manifest.description,
                found_in=template.layer,
                dir=str(template.dir),
                sha256=template.sha256,
                parameters=msgspec.to_builtins(manifest.parameters),
                canaries=kept,
                canaries_unread=unread,
            )
        )
        return
    told = f"{manifest.name} {manifest.version}: {manifest.description}"
    click.echo("\n".join(hanging(told, "", "  ")))
    click.echo(f"{template.layer}: {template.dir}\nsha256 {template.sha256}")
    if one := template.release:
        click.echo(f"published: sha256 {one.sha256}, {one.channel}, signed by {one.signer}")
    click.echo("\n".join([*_canaries(template), ""]))
    rows = [
        [key, p.type, "unset" if p.default is None else inline(p.default), p.help]
        for key, p in manifest.parameters.items()
    ]
    table(["PARAMETER", "TYPE", "DEFAULT", "MEANING"], rows)


def _canaries(template: Template) -> list[str]:
    """How its canaries went (`fsdpkit template test --canary`), or why that cannot be read."""
    from fsdpkit.errors import ConfigError
    from fsdpkit.publishing.template_tested import lines

    try:
        return lines(template) or ["canary: none on record"]
    except ConfigError as error:
        return [f"canary: {error}"]


def _kept(template: Template) -> tuple[list[KeptCanary], str | None]:
    """The same as data."""
    import msgspec

    from fsdpkit.cli.template_answers import KeptCanary
    from fsdpkit.errors import ConfigError
    from fsdpkit.publishing.template_tested import read_tested

    try:
        found = read_tested(template).canaries
    except ConfigError as error:
        return [], str(error)
    return [
        KeptCanary(
            site=site, current=each.sha256 == template.sha256, **msgspec.structs.asdict(each)
        )
        for site, each in sorted(found.items())
    ], None
