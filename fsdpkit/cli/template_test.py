"""`fsdpkit template test`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging
from fsdpkit.cli.trusting import consent, trust_option

if TYPE_CHECKING:
    from fsdpkit.config.site import LoadedSite
    from fsdpkit.config.template import Template
    from fsdpkit.publishing.template_trials import TrialStep
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.submission import SubmitRequest

FAILED = 65
JOB = "canary"


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
        from fsdpkit.scheduling.submission import SubmitRequest

        add(_on_this_machine(found, SubmitRequest(JOB, cluster="local", sets=_sets(found)), trust))
        wanted = SubmitRequest(JOB, cluster=cluster, account=account, sets=_sets(found))
        for step in _on_slurm(found, wanted, partition, runs, trust, canary):
            add(step)
    ok = not any(step.failures for step in steps)
    if as_json:
        _tried(ok, found.manifest.name, found.manifest.version, found.sha256, steps)
    return 0 if ok else FAILED


def _without_jobs(template: Template, asked: tuple[str, ...], update: bool) -> Iterator[TrialStep]:
    """What can be told from the scripts alone: each profile, each shape, the golden scripts."""
    from fsdpkit.publishing import template_goldens as goldens
    from fsdpkit.publishing.template_cases import sites
    from fsdpkit.publishing.template_trials import TrialStep, try_goldens, try_rendering, try_syntax

    profiles, broken = sites(asked)
    for why in broken:
        yield TrialStep("profiles", why, (why,))
    rendered, made = try_rendering(template, profiles, _tell)
    yield from rendered
    yield from try_syntax(made, _tell)
    if update:
        names = [*goldens.present(template), *asked]
        changed = goldens.update(template, list(dict.fromkeys(names)) or list(goldens.FIRST))
        written = f"written: {', '.join(changed)}" if changed else "all are as they were"
        yield TrialStep("golden", written)
    else:
        yield try_goldens(template)


def _tell(text: str) -> None:
    click.echo(f"fsdpkit: {text}", err=True)


def _sets(template: Template) -> tuple[str, ...]:
    return (f"template={template.dir}",)


def _print(step: TrialStep) -> None:
    outcome = "failed" if step.failures else "not looked at" if step.skipped else "ok"
    first = f"{outcome:<13} {step.name:<12} "
    click.echo("\n".join(hanging(step.told, first, " " * len(first))))
    for failure in step.failures:
        click.echo("\n".join(f"    {line}" for line in failure.splitlines()))


# ---- Jobs


def _on_this_machine(
    template: Template, request: SubmitRequest, trust: tuple[str, ...]
) -> TrialStep:
    """Two nodes of one rank each on the local cluster."""
    from fsdpkit.errors import FsdpkitError
    from fsdpkit.publishing.template_trials import TrialStep

    runs = tempfile.mkdtemp(prefix="fsdpkit-template-")
    try:
        _tell("two ranks meet on this machine")
        state, said, failures = _run(request, runs, trust)
    except FsdpkitError as error:
        shutil.rmtree(runs, ignore_errors=True)
        return TrialStep("local job", "2 nodes x 1 rank", (str(error),))
    except BaseException:
        shutil.rmtree(runs, ignore_errors=True)
        raise
    if failures:
        return TrialStep("local job", f"{state}; its run is in {runs}", failures)
    shutil.rmtree(runs, ignore_errors=True)
    return TrialStep("local job", said or state)


def _run(
    request: SubmitRequest, runs: str | None, trust: tuple[str, ...]
) -> tuple[str, str, tuple[str, ...]]:
    """Submit, wait for the end: the state in words, what rank 0 said, and what failed. The job ends
    with this command. Raises FsdpkitError."""
    from fsdpkit.cli.submit import failure_lines
    from fsdpkit.scheduling import submission

    agreed = consent(trust)
    plan, _ = submission.plan(request, agreed)
    run = submission.submit_plan(plan, runs, agreed)
    try:
        state = run.wait()
    except BaseException:
        run.cancel()
        _tell(f"the job {run.job_id} was cancelled")
        raise
    said = _said(run)
    if state.outcome == "done" and said:
        return state.describe(), said, ()
    lines = failure_lines(run) or ["rank 0 did not say that the ranks had added their numbers"]
    return state.describe(), said, (state.describe(), *lines)


def _said(run: Run) -> str:
    """The canary's own last word, of rank 0."""
    from fsdpkit.errors import FsdpkitError
    from fsdpkit.runs.reading import read_text

    try:
        text = read_text(run.newest_attempt().rank_file(0, "out", 0))
    except (FsdpkitError, OSError):
        return ""
    lines = [line for line in text.splitlines() if line.startswith(f"{JOB}: ")]
    return lines[-1] if lines else ""


def _on_slurm(
    template: Template,
    request: SubmitRequest,
    partition: str | None,
    runs: str | None,
    trust: tuple[str, ...],
    canary: bool,
) -> Iterator[TrialStep]:
    from fsdpkit.config.site import choose_site
    from fsdpkit.errors import UsageError
    from fsdpkit.publishing.template_trials import TrialStep

    if shutil.which("sbatch") is None:
        if canary:
            raise UsageError(
                "--canary: there is no sbatch on this machine, so no cluster to run on"
            )
        yield TrialStep("sbatch", "there is no Slurm on this machine", skipped=True)
        return
    site, _ = choose_site(request.cluster)
    if site.profile.kind != "slurm":
        if canary:
            raise UsageError(f"--canary: {site.id} is no Slurm cluster; choose one with --cluster")
        yield TrialStep("sbatch", f"{site.id} is no Slurm cluster", skipped=True)
        return
    if not canary and (why := _no_answer()):
        yield TrialStep("sbatch", f"Slurm does not answer here: {why}", skipped=True)
        return
    yield from _test_only(site, request)
    if canary:
        yield _canary(template, site, request, partition, runs, trust)


def _no_answer() -> str | None:
    """Why no cluster can be asked, such as on a machine that only has Slurm's commands."""
    from fsdpkit.errors import SchedulerError
    from fsdpkit.scheduling.answers import answer
    from fsdpkit.scheduling.refusals import remedy_for

    try:
        answer("scontrol", "ping")
    except SchedulerError as error:
        refusal = str(error).splitlines()[-1].strip()
        return ". ".join(filter(None, (refusal, remedy_for(str(error)))))
    return None


def _test_only(site: LoadedSite, request: SubmitRequest) -> Iterator[TrialStep]:
    """Slurm's own opinion of the script, for each partition of the profile."""
    from dataclasses import replace

    from fsdpkit.errors import FsdpkitError, UsageError
    from fsdpkit.publishing.template_cases import partitions_of, shortest
    from fsdpkit.publishing.template_trials import TrialStep
    from fsdpkit.scheduling import submission

    for name in partitions_of(site.profile):
        shown = f"{site.id}, {name or 'default partition'}"
        limits = site.profile.partitions.get(name) if name else None
        gpus = max(limits.min_gpus, 1) if limits else 1
        nodes = min(2, limits.max_nodes or 2) if limits else 2
        asked = replace(
            request, partition=name, nodes=nodes, gpus=gpus, time=shortest(site.profile)
        )
        try:
            plan, _ = submission.plan(asked)
        except UsageError as error:
            yield TrialStep("sbatch", f"{shown}: {error}", skipped=True)
            continue
        try:
            yield TrialStep("sbatch", f"{shown}: {submission.check(plan)}")
        except FsdpkitError as error:
            yield TrialStep("sbatch", shown, (str(error),))


def _canary(
    template: Template,
    site: LoadedSite,
    request: SubmitRequest,
    partition: str | None,
    runs: str | None,
    trust: tuple[str, ...],
) -> TrialStep:
    """Two nodes that really meet; how it went is kept with the template."""
    from dataclasses import replace

    import fsdpkit
    from fsdpkit.errors import FsdpkitError
    from fsdpkit.publishing.template_cases import shortest
    from fsdpkit.publishing.template_tested import Canary, keep
    from fsdpkit.publishing.template_trials import TrialStep

    asked = replace(request, partition=partition, nodes=2, time=shortest(site.profile))
    _tell(f"a canary of two nodes on {site.id}")
    ranks = 2
    try:
        state, said, failures = _run(replace(asked, runs=runs), runs, trust)
    except FsdpkitError as error:
        state, said, failures = "not submitted", "", (str(error),)
    result = Canary(
        result="failed" if failures else "ok",
        told=said or ": ".join(dict.fromkeys([state, *failures[:1]])).splitlines()[0],
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        slurm=_slurm_version(site),
        partition=partition or "",
        nodes=2,
        ranks=ranks,
        version=template.manifest.version,
        sha256=template.sha256,
        fsdpkit=fsdpkit.__version__,
    )
    try:
        kept = f"kept in {_shown(keep(template, site.id, result))}"
    except FsdpkitError as error:
        return TrialStep("canary", said or state, (*failures, str(error)))
    return TrialStep("canary", f"{said or state}; {kept}", failures)


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _slurm_version(site: LoadedSite) -> str:
    """Slurm's release, as its client says it."""
    from fsdpkit.errors import SchedulerError
    from fsdpkit.scheduling.answers import answer

    try:
        return (
            answer("sbatch", "--version").strip().removeprefix("slurm-wlm ").removeprefix("slurm ")
        )
    except SchedulerError:
        return "unknown"
