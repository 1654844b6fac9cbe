"""`fsdpkit jobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import complete, say_what_is_not_read, table

if TYPE_CHECKING:
    from fsdpkit.config.job import JobSpec, LoadedJob


@click.command("jobs")
@click.argument("name", required=False, shell_complete=complete("job"))
@click.option("--all", "everything", is_flag=True, help="All keys, as TOML to save and submit.")
def command(name: str | None, everything: bool) -> int:
    """List the jobs and where each was found, or show one with every value and its origin.

    \b
      fsdpkit jobs
      fsdpkit jobs t5
      fsdpkit jobs t5 --all > mine.toml
    """
    from fsdpkit.config import assets
    from fsdpkit.config.job import load_job

    say_what_is_not_read()
    if everything:
        if name is None:
            raise click.UsageError("--all prints one job: name it, such as t5.")
        from fsdpkit.config.as_toml import as_toml

        click.echo(as_toml(_for_elsewhere(load_job(name))), nl=False)
        return 0
    if name is not None:
        _show(name)
        return 0
    rows = []
    for known, places in assets.available("job").items():
        spec = load_job(known).spec
        shape = f"{spec.resources.nodes} x {spec.resources.gpus}"
        found = ", ".join(layer.name for layer, _ in places)
        rows.append([known, shape, found, spec.description])
    table(["JOB", "NODES x GPUS", "FOUND IN", "WHAT IT DOES"], rows)
    return 0


def _for_elsewhere(job: LoadedJob) -> JobSpec:
    """The job as a file in another directory would say it."""
    from msgspec.structs import replace

    from fsdpkit.config import assets

    packaged = (assets.packaged_dir() / job.spec.entry).is_file()
    return job.spec if packaged else replace(job.spec, entry=str(job.entry))


def _show(name: str) -> None:
    import msgspec

    from fsdpkit.config.job import load_job

    job = load_job(name)
    for path in job.files:
        click.echo(f"# {path}")
    click.echo(f"# entry: {job.entry}\n")
    rows = []

    def walk(value: object, key: str) -> None:
        if isinstance(value, dict) and value:
            for name, below in value.items():
                walk(below, f"{key}.{name}" if key else str(name))
        elif value is not None:
            rows.append([key, str(value), job.origin(key)])

    walk(msgspec.to_builtins(job.spec), "")
    table(["KEY", "VALUE", "FROM"], rows)
