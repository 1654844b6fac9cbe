"""`fsdpkit template test`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging
from fsdpkit.cli.submitting import failure_lines
from fsdpkit.cli.trusting import consent, trust_option

if TYPE_CHECKING:
    from fsdpkit.config.template import Template
    from fsdpkit.publishing.template_trials import TrialStep

FAILED = 65


@answer("fsdpkit.template-test/1")
def _tried(ok: bool, name: str, version: str, sha256: str, steps: Sequence[TrialStep]) -> None:
    """A template as it was tested."""


@click.command("test")
@click.argument("template", metavar="TEMPLATE", shell_complete=complete("template"))
@click.option(
    "--site",
    "asked",
    multiple=True,
    shell_complete=complete("site"),
    help="Only for this profile; may be given several times.",
)
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
def command(
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
    minutes at most; the result is kept in the template's tested.toml.

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
            _print(step)

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


def _print(step: TrialStep) -> None:
    outcome = "failed" if step.failures else "not looked at" if step.skipped else "ok"
    first = f"{outcome:<13} {step.name:<22} "
    click.echo("\n".join(hanging(step.told, first, " " * len(first))))
    for failure in step.failures:
        click.echo("\n".join(f"    {line}" for line in failure.splitlines()))
