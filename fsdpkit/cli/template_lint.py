"""`fsdpkit template lint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging

if TYPE_CHECKING:
    from fsdpkit.publishing.template_checklist import ChecklistPoint

PROBLEM = 65


@answer("fsdpkit.template-lint/1")
def _linted(ok: bool, findings: Sequence[ChecklistPoint]) -> None:
    """The checklist of a template."""


@click.command("lint")
@click.argument("template", metavar="TEMPLATE", shell_complete=complete("template"))
@json_option(_linted)
def command(template: str, as_json: bool) -> int:
    """Go through the checklist of TEMPLATE: a folder, or a template's name.

    \b
      fsdpkit template lint ours/

    Each point is ok, a problem with its place and remedy, or was not looked at and why. Nothing of
    the template is run. Exit status 0, or 65 if there is a problem.
    """
    from fsdpkit.publishing.template_checklist import checklist, passed

    findings = []
    for finding in checklist(template):
        findings.append(finding)
        if not as_json:
            _print(finding)
    ok = passed(findings)
    if as_json:
        _linted(ok, findings)
    return 0 if ok else PROBLEM


def _print(finding: ChecklistPoint) -> None:
    first = f"{finding.outcome:<13} {finding.check:<22} "
    indent = " " * len(first)
    where = f"{finding.where}: " if finding.where else ""
    lines = hanging(f"{where}{finding.told}", first, indent)
    if finding.remedy:
        lines += hanging(finding.remedy, f"{indent}→ ", f"{indent}  ")
    click.echo("\n".join(lines))
