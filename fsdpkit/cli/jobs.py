"""`fsdpkit jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.checking import check_option, files_checked, listed, report_check
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, say_what_is_not_read, table
from fsdpkit.config import assets
from fsdpkit.reporting.printable import printable

if TYPE_CHECKING:
    from fsdpkit.config.job import JobSpec
    from fsdpkit.config.job_loading import LoadedJob


@dataclass(frozen=True)
class ListedJob:
    """A job that has a name. gpus: per node. found_in: the places, the strongest last."""

    name: str
    nodes: int
    gpus: int
    found_in: list[str]
    description: str


@answer("fsdpkit.jobs/1")
def _jobs(jobs: Sequence[ListedJob]) -> None:
    """All jobs that have a name."""


@dataclass(frozen=True)
class PrintedSetting:
    """One key of a job, such as `resources.nodes`, and where its value is from."""

    key: str
    value: Any
    origin: str


@answer("fsdpkit.jobs-show/1")
def _one_job(
    name: str, files: Sequence[Path], entry: str, settings: Sequence[PrintedSetting]
) -> None:
    """A job with every value that is set, and its origin."""


@click.command("jobs")
@click.argument("name", required=False, shell_complete=complete("job"))
@click.option("--all", "everything", is_flag=True, help="All keys, as TOML to save and submit.")
@check_option("job")
@json_option(_jobs, _one_job, files_checked)
def command(name: str | None, everything: bool, check: bool, as_json: bool) -> int:
    """List the jobs and where each was found, or show one: its values and where each is set.

    \b
      fsdpkit jobs
      fsdpkit jobs t5
      fsdpkit jobs t5 --all > mine.toml
      fsdpkit jobs --check
    """
    from fsdpkit.config.job_loading import load_job

    say_what_is_not_read()
    if check:
        return report_check("job", as_json)
    if everything and as_json:
        raise click.UsageError("--all prints TOML: leave out --json, or --all.")
    if everything:
        if name is None:
            raise click.UsageError("--all prints one job: name it, such as t5.")
        from fsdpkit.config.as_toml import as_toml

        click.echo(as_toml(_for_elsewhere(load_job(name))), nl=False)
        return 0
    if name is not None:
        _show(name, as_json)
        return 0
    jobs = []
    for known, job, found_in in listed("job", load_job):
        shape, about = job.spec.resources, job.spec.description
        jobs.append(ListedJob(known, shape.nodes, shape.gpus, found_in, about))
    if as_json:
        return _jobs(jobs)
    rows = [
        [one.name, f"{one.nodes} x {one.gpus}", ", ".join(one.found_in), one.description]
        for one in jobs
    ]
    table(["JOB", "NODES x GPUS", "FOUND IN", "WHAT IT DOES"], rows)
    return 0


def _for_elsewhere(job: LoadedJob) -> JobSpec:
    """The job as a file in another directory would say it."""
    from msgspec.structs import replace

    packaged = (assets.packaged_dir() / job.spec.entry).is_file()
    return job.spec if packaged else replace(job.spec, entry=str(job.entry))


def _show(name: str, as_json: bool) -> None:
    import msgspec

    from fsdpkit.config.as_toml import inline
    from fsdpkit.config.job_loading import load_job
    from fsdpkit.config.loading import dotted

    job = load_job(name)
    settings = [
        PrintedSetting(key, value, job.origin(key))
        for key, value in dotted(msgspec.to_builtins(job.spec))
        if value is not None
    ]
    if as_json:
        _one_job(name, job.files, str(job.entry), settings)
        return
    for path in job.files:
        click.echo(f"# {path}")
    click.echo(f"# entry: {job.entry}\n")
    for one in settings:
        note = "" if one.origin == "default" else f"  # {one.origin}"
        click.echo(printable(f"{one.key} = {inline(one.value)}{note}"))
