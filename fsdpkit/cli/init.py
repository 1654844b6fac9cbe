"""`fsdpkit init`: four questions, or a batch script, and then a job file that can be submitted."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from fsdpkit.cli.options import complete, fsdpkit_as_typed, hanging, say_what_is_not_read
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.listing import first_of

if TYPE_CHECKING:
    from fsdpkit.config.job import Environment
    from fsdpkit.config.site import LoadedSite
    from fsdpkit.scheduling.batch_file.lines import BatchFile
    from fsdpkit.scheduling.batch_file.shape import Given
    from fsdpkit.scheduling.first_job import FirstJobFiles

T = TypeVar("T")
_THIS_MACHINE = ("resources.nodes=1", "resources.gpus=1", "resources.memory=1G")
"""A job that was written for a cluster is not refused because this machine is smaller."""
_BESIDE = 36
"""Characters of a batch script's line beside which there is room to say what became of it."""


@click.command("init")
@click.option(
    "--from", "batch_file", type=click.Path(), help="An sbatch script to make a job file of."
)
@click.option("--cluster", help="Site profile, or `local`.", shell_complete=complete("site"))
@click.option("--account", help="Account (project) to charge.")
@click.option("--no-account", is_flag=True, help="No account: Slurm charges your default one.")
@click.option(
    "--environment",
    metavar="ENV",
    help="Directory or name of the job's environment, module:NAME,…, or `current`.",
)
@click.option("--script", type=click.Path(), help="The training script.")
@click.option("--nodes", type=click.IntRange(1, 10_000), help="Nodes (default: 1).")
@click.option("--gpus", type=click.IntRange(1, 64), help="GPUs per node (default: 1).")
@click.option("--time", help="Time limit (default: 01:00:00).")
@click.option(
    "-o", "--output", type=click.Path(), help="The job file (default: named after the script)."
)
def command(
    batch_file: str | None,
    cluster: str | None,
    account: str | None,
    no_account: bool,
    environment: str | None,
    script: str | None,
    nodes: int | None,
    gpus: int | None,
    time: str | None,
    output: str | None,
) -> int:
    """Write a first job file, and your account into your defaults.

    \b
      fsdpkit init
      fsdpkit init --cluster osc-pitzer --account PAS2136 \\
          --environment ~/envs/torch --script train.py
      fsdpkit init --from old.sbatch

    It asks for cluster, account, environment and script, and suggests what it finds; a flag
    answers in advance. Without a terminal all four flags are required. `current` is the
    environment that `fsdpkit submit` is called from.

    --from reads an sbatch script and runs nothing of it: its options, modules, environment,
    variables and the one command that starts the training. It prints line by line what is taken,
    what is not needed any more, and what has no home in a job; it asks nothing, and flags come
    before what the script says.

    Nothing is overwritten, and nothing is left behind that `fsdpkit submit` would refuse.
    """
    from fsdpkit.config.job_loading import name_after
    from fsdpkit.config.new_job import Answers
    from fsdpkit.scheduling import first_job

    say_what_is_not_read()
    if account is not None and no_account:
        raise click.UsageError("--account and --no-account: choose one.")
    cluster = cluster or os.environ.get("FSDPKIT_CLUSTER")
    target = first_job.read_output(output) if output is not None else None
    if batch_file is not None:
        from fsdpkit.scheduling.batch_file.shape import Given

        given = Given(nodes, gpus, time, account, no_account, script is not None)
        return _moved(batch_file, cluster, given, environment, script, target)
    known = {"--cluster": cluster, "--environment": environment, "--script": script}
    known["--account"] = "none" if no_account else account
    _refuse_silence([name for name, word in known.items() if word is None], cluster)
    site = _cluster(cluster)
    charged = None if no_account else _account(account, site)
    where = _environment(environment)
    entry = _script(script)
    target = target or first_job.read_output(f"{name_after(entry)}.toml")
    option = _option_for(site, cluster)
    try:
        answers = Answers(entry, where, charged, nodes or 1, gpus or 1, time or "01:00:00")
        written = first_job.write(answers, site, target, cluster=option)
    except FsdpkitError:
        click.echo("fsdpkit: nothing was written", err=True)
        raise
    _tell(written, charged, option)
    return 0


def _moved(
    batch_file: str,
    cluster: str | None,
    given: Given,
    environment: str | None,
    script: str | None,
    target: Path | None,
) -> int:
    """A job file of a batch script."""
    from fsdpkit.config.job_loading import name_after
    from fsdpkit.config.site import choose_site
    from fsdpkit.rendering.containers import PLUGIN
    from fsdpkit.scheduling import first_job
    from fsdpkit.scheduling.batch_file.moving import answers_of, read_batch_file

    site, _ = choose_site(cluster)
    if given.account is not None:
        first_job.read_account(given.account, site)
    path = Path(batch_file)
    given = replace(given, local=site.profile.storage.local or "")
    found, tables = read_batch_file(path, given)
    by_plugin = site.profile.container.engine == PLUGIN
    if by_plugin and "container" in found.tables.get("environment", {}):
        found, tables = read_batch_file(path, replace(given, local=None))
    target = target or first_job.read_output(f"{name_after(path)}.toml")
    answers, found = answers_of(
        found,
        path,
        site,
        None if script is None else first_job.read_script(script),
        None if environment is None else first_job.read_environment(environment),
        for_this_machine=cluster is not None and site.profile.kind == "local",
    )
    option = _option_for(site, cluster)
    _say_what_became(found, batch_file)
    try:
        written = first_job.write(
            answers,
            site,
            target,
            cluster=option,
            with_defaults=False,
            array=found.array,
            said_in=[tables],
            checked_with=_THIS_MACHINE if site.profile.kind == "local" else (),
        )
    except FsdpkitError:
        click.echo("fsdpkit: nothing was written", err=True)
        raise
    for each in found.unknown:
        click.echo(f"fsdpkit: line {each.line}: {each.text} {each.note}: replace it", err=True)
    _tell(written, answers.account, option, batch_file=found)
    return 0


def _say_what_became(found: BatchFile, name: str) -> None:
    click.echo(f"{name}: {found.kind}, read and not run")
    for fate, heading in (
        ("taken", "taken"),
        ("not needed", "not needed any more"),
        ("no home", "no home in a job, so not done"),
    ):
        rows = [each for each in found.findings if each.fate == fate]
        click.echo(f"{heading}:" if rows else f"{heading}: nothing")
        for each in rows:
            place = f"line {each.line}" if each.line else ""
            beside, below = f"  {place:<9}{each.text:<{_BESIDE}}  ", " " * (_BESIDE + 13)
            if len(each.text) > _BESIDE:
                click.echo(beside.rstrip())
                beside = below
            click.echo("\n".join(hanging(each.note, beside, below)))


def _refuse_silence(missing: list[str], cluster: str | None) -> None:
    """Raises UsageError where there is nobody to ask."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        return
    if cluster is not None and _cluster(cluster).profile.kind == "local":
        missing = [name for name in missing if name != "--account"]
    if missing:
        raise UsageError(
            f"there is no terminal to ask on: also give {', '.join(missing)}"
            + (" (or --no-account)" if "--account" in missing else "")
        )


def _cluster(given: str | None) -> LoadedSite:
    from fsdpkit.config.site import choose_site, load_site

    if given is not None:
        return load_site(given)
    try:
        found, why = choose_site(None)
        known, default = why, found.id
    except UsageError as error:  # it is like several
        known, default = str(error), None
    click.echo("Enter accepts the value in brackets; `fsdpkit sites` lists clusters.", err=True)
    return _asked(f"Cluster ({known})", load_site, default)


def _account(given: str | None, site: LoadedSite) -> str | None:
    from fsdpkit.scheduling.first_job import (
        account_in_defaults,
        propose_accounts,
        read_account,
    )

    if given is not None:
        return read_account(given, site)
    if site.profile.kind == "local":
        return None
    yours, before = propose_accounts(site), account_in_defaults()
    default = before[0] if before is not None else os.environ.get("SBATCH_ACCOUNT")
    default = default or (yours[0] if len(yours) == 1 else None)
    if default is None and not site.profile.account.required:
        known = f"{first_of(yours, 4)}; " if yours else ""
        text = f"Account ({known}empty: Slurm's default)"
        return _asked(text, lambda word: read_account(word, site) if word else None, "")
    known = f" ({first_of(yours, 4)})" if yours else ""
    return _asked(f"Account{known}", lambda word: read_account(word, site), default)


def _environment(given: str | None) -> Environment:
    from fsdpkit.scheduling.first_job import propose_environment, read_environment

    if given is not None:
        return read_environment(given)
    default = propose_environment(os.environ, Path(sys.prefix), Path(sys.base_prefix))
    return _asked("Environment (venv, conda, module:NAME or current)", read_environment, default)


def _script(given: str | None) -> Path:
    from fsdpkit.scheduling.first_job import propose_scripts, read_script

    if given is not None:
        return read_script(given)
    found = [path.name for path in propose_scripts(Path())]
    known = f" ({first_of(found, 4)})" if len(found) > 1 else ""
    return _asked(f"Script{known}", read_script, found[0] if len(found) == 1 else None)


def _asked(question: str, read: Callable[[str], T], default: str | None) -> T:
    """The answer to a question, asked again until it can be read."""

    def value(word: str) -> T:
        try:
            return read(word.strip())
        except FsdpkitError as error:
            raise click.UsageError(str(error)) from error

    answer: T = click.prompt(
        question, default=default, value_proc=value, show_default=bool(default), err=True
    )
    return answer


def _option_for(site: LoadedSite, given: str | None) -> str | None:
    """What --cluster must say when the job is submitted; None: nothing, it is recognised."""
    from fsdpkit.config.site import choose_site

    with suppress(FsdpkitError):
        if choose_site(None)[0].id == site.id:
            return None
    return given or site.id


def _tell(
    written: FirstJobFiles,
    account: str | None,
    cluster: str | None,
    *,
    batch_file: BatchFile | None = None,
) -> None:
    from fsdpkit.cli.submitting import say_where
    from fsdpkit.cli.trusting import consent
    from fsdpkit.config.trust import items_of

    say_where(written.plan)
    plan = written.plan
    consent(submits=False).to(items_of(plan.job, plan.site, plan.template))
    click.echo(f"{written.job}: the job")
    if batch_file is not None and batch_file.each_node:
        click.echo(f"{plan.job.steps['each_node'][-1]}: what every node does before its ranks")
    if written.defaults is not None:
        click.echo(f"{written.defaults}: your account, for every job")
    elif written.account_from is not None:
        click.echo(f"{written.account_from} has your account already")
    elif account is not None and batch_file is None:
        click.echo("the account is in the job file; your defaults stay as they are")
    charged = written.plan.job.spec.resources.account
    if charged != account:
        origin = written.plan.job.origin("resources.account")
        click.echo(f"fsdpkit: {charged} is charged all the same ({origin})", err=True)
    # What is relative would be looked for on the laptop.
    here = written.job.parent == Path.cwd() and "FSDPKIT_VIA" not in os.environ
    name = f"./{written.job.name}" if written.job.name.startswith("-") else written.job.name
    words = [fsdpkit_as_typed(), "submit", shlex.quote(name if here else str(written.job))]
    words += ["--cluster", shlex.quote(cluster)] if cluster is not None else []
    array = batch_file.array if batch_file is not None else None
    words += ["--array", array] if array is not None else []
    click.echo("Next, look at the script, then submit it:")
    click.echo(f"  {' '.join(words)} --dry-run")
    click.echo(f"  {' '.join(words)} --follow")
