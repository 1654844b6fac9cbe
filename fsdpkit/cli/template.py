"""`fsdpkit template`: what an administrator does with a template before users see it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.groups import Verbs
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging
from fsdpkit.cli.submitting import failure_lines
from fsdpkit.cli.template_export import command as export
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.errors import UsageError

if TYPE_CHECKING:
    from fsdpkit.config.template import Template
    from fsdpkit.publishing.template_checklist import ChecklistPoint
    from fsdpkit.publishing.template_diff import ScriptDifference
    from fsdpkit.publishing.template_trials import TrialStep

FAILED = 65
_only_sites = click.option(
    "--site",
    "asked",
    multiple=True,
    shell_complete=complete("site"),
    help="Only for this profile; may be given several times.",
)


@click.group("template", cls=Verbs)
def command() -> None:
    """Write a template, check it, and see what a change to it does.

    \b
      fsdpkit template new ours && cd ours
      fsdpkit template lint .
      fsdpkit template test .
    """


@answer("fsdpkit.template-new/1")
def _made(name: str, dir: Path) -> None:
    """A template's folder that was made."""


@command.command("new", short_help="Make a folder with a template of your own to edit.")
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
def new(name: str, source: str, as_json: bool) -> int:
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


@command.command("context", short_help="List the names that a template can use.")
@click.argument("template", default="torchrun", shell_complete=complete("template"))
@click.option(
    "--site",
    default="generic",
    show_default=True,
    help="Profile of the examples.",
    shell_complete=complete("site"),
)
@json_option(_context)
def context(template: str, site: str, as_json: bool) -> int:
    """List every name that a template can use, with its type, an example and what it means.

    \b
      fsdpkit template context
      fsdpkit template context ours/ --site osc-cardinal

    The examples are those of a job of two nodes. `directives[].name` is an entry of a list, which
    a loop gives: {% for d in directives %} … d.name.
    """
    from fsdpkit.publishing.template_cases import RUN_DIR, SHAPES, Case, fitting, plan_of, sites
    from fsdpkit.publishing.template_named import open_template
    from fsdpkit.rendering.context import names, value_at
    from fsdpkit.rendering.script import context_of

    found = open_template(template)
    (profile,), _ = sites([site])
    case = fitting(profile, SHAPES[0])
    if not isinstance(case, Case):
        raise UsageError(f"{site} takes no job of two nodes: {case}")
    values = context_of(plan_of(case, found), RUN_DIR)
    listed = [
        ContextName(each.name, each.type, each.meaning, value_at(values, each.name))
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


@answer("fsdpkit.template-lint/1")
def _linted(ok: bool, findings: Sequence[ChecklistPoint]) -> None:
    """The checklist of a template."""


@command.command("lint", short_help="Go through the checklist of a template.")
@click.argument("template", metavar="TEMPLATE", shell_complete=complete("template"))
@json_option(_linted)
def lint(template: str, as_json: bool) -> int:
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
            _print_point(finding)
    ok = passed(findings)
    if as_json:
        _linted(ok, findings)
    return 0 if ok else FAILED


def _print_point(finding: ChecklistPoint) -> None:
    first = f"{finding.outcome:<13} {finding.check:<22} "
    indent = " " * len(first)
    where = f"{finding.where}: " if finding.where else ""
    lines = hanging(f"{where}{finding.told}", first, indent)
    if finding.remedy:
        lines += hanging(finding.remedy, f"{indent}→ ", f"{indent}  ")
    click.echo("\n".join(lines))


@answer("fsdpkit.template-test/1")
def _tried(ok: bool, name: str, version: str, sha256: str, steps: Sequence[TrialStep]) -> None:
    """A template as it was tested."""


@command.command(
    "test", short_help="Render it for every profile, run it, and compare its golden scripts."
)
@click.argument("template", metavar="TEMPLATE", shell_complete=complete("template"))
@_only_sites
@click.option("--update", is_flag=True, help="Write the golden scripts anew, and those of --site.")
@click.option("--no-run", is_flag=True, help="Start no job on this machine, and do not ask Slurm.")
@click.option(
    "--canary", is_flag=True, help="Run a job of two nodes on this cluster, and keep how it went."
)
@click.option("--cluster", shell_complete=complete("site"), help="Profile of the canary's cluster.")
@click.option("--account", help="Account of the canary.")
@click.option("--partition", help="Partition of the canary.")
@click.option("--runs", metavar="DIR", help="Directory of the canary's run, which nodes must see.")
@trust_option
@json_option(_tried)
def test(
    template: str,
    asked: tuple[str, ...],
    update: bool,
    no_run: bool,
    canary: bool,
    cluster: str | None,
    account: str | None,
    partition: str | None,
    runs: str | None,
    trust: tuple[str, ...],
    as_json: bool,
) -> int:
    """Try all that TEMPLATE (a folder, or a name) can make.

    \b
      fsdpkit template test ours/
      fsdpkit template test ours/ --canary --account PAS2136

    It is rendered with every profile, for jobs of many shapes, with every edge of its parameters
    and every pair of edges; bash and shellcheck read the scripts, and golden scripts are compared.
    Then a small job runs on this machine. Where Slurm is, each partition is asked whether it would
    take the job (sbatch --test-only). With --canary two nodes really meet there, which takes three
    minutes at most; the result is kept in the template's tested.txt.

    Exit status 0, or 65 if anything failed.
    """
    if no_run and canary:
        raise click.UsageError("--no-run and --canary: choose one.")
    from fsdpkit.publishing.template_named import open_template
    from fsdpkit.publishing.template_trials import TrialStep

    found = open_template(template)
    steps: list[TrialStep] = []

    def add(step: TrialStep) -> None:
        steps.append(step)
        if not as_json:
            _print_step(step)

    for step in _without_jobs(found, asked, update):
        add(step)
    if no_run:
        add(TrialStep("local job", "--no-run", skipped=True))
    elif any(step.failures for step in steps):
        add(TrialStep("local job", "what failed above comes first", skipped=True))
    else:
        from fsdpkit.publishing.template_jobs import JobTrials

        jobs = JobTrials(found, consent(trust), failure_lines, _tell)
        add(jobs.on_this_machine())
        wanted = jobs.request(cluster, account, runs)
        for step in jobs.on_slurm(wanted, partition, canary=canary):
            add(step)
    ok = not any(step.failures for step in steps)
    if as_json:
        _tried(ok, found.manifest.name, found.manifest.version, found.sha256, steps)
    return 0 if ok else FAILED


def _without_jobs(template: Template, asked: tuple[str, ...], update: bool) -> Iterator[TrialStep]:
    """What can be told from the scripts alone: each profile, each shape, the golden scripts."""
    from fsdpkit.publishing import template_goldens as goldens
    from fsdpkit.publishing.template_cases import sites
    from fsdpkit.publishing.template_trials import TrialStep, try_goldens, try_scripts

    profiles, broken = sites(asked)
    for why in broken:
        yield TrialStep("profiles", why, (why,))
    yield from try_scripts(template, profiles, _tell)
    if update:
        names = [*goldens.present(template), *asked]
        changed = goldens.update(template, list(dict.fromkeys(names)) or list(goldens.FIRST))
        written = f"written: {', '.join(changed)}" if changed else "all are as they were"
        yield TrialStep("golden", written)
    else:
        yield try_goldens(template)


def _tell(text: str) -> None:
    click.echo(f"fsdpkit: {text}", err=True)


def _print_step(step: TrialStep) -> None:
    outcome = "failed" if step.failures else "not looked at" if step.skipped else "ok"
    first = f"{outcome:<13} {step.name:<22} "
    click.echo("\n".join(hanging(step.told, first, " " * len(first))))
    for failure in step.failures:
        click.echo("\n".join(f"    {line}" for line in failure.splitlines()))


@answer("fsdpkit.template-diff/1")
def _compared(
    equal: bool, old: str, new: str, compared: int, differences: Sequence[ScriptDifference]
) -> None:
    """How the scripts of two templates differ. compared: how many of each."""


@command.command("diff", short_help="Show what a change to a template does to the scripts.")
@click.argument("old", shell_complete=complete("template"))
@click.argument("new", shell_complete=complete("template"))
@_only_sites
@json_option(_compared)
def diff(old: str, new: str, asked: tuple[str, ...], as_json: bool) -> int:
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
        return 1 if compared.differences else 0
    for difference in compared.differences:
        all_of_them = len(difference.cases) == compared.cases > 1
        where = f"all {compared.cases} scripts" if all_of_them else "; ".join(difference.cases)
        click.echo("\n".join(hanging(where, "", "  ")))
        click.echo("\n".join(f"    {line}" for line in difference.diff) + "\n")
    same = compared.cases - sum(len(each.cases) for each in compared.differences)
    click.echo(f"{names[0]} → {names[1]}: {same} of {compared.cases} scripts are equal", err=True)
    return 1 if compared.differences else 0


def _named(template: Template) -> str:
    return f"{template.manifest.name} {template.manifest.version}"


command.add_command(export)
