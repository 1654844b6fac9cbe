"""`fsdpkit report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import print_answer
from fsdpkit.cli.options import json_option, on_run

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run


@click.command("report")
@on_run()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write, or `-` to print (default: RUN.html in the current directory).",
)
@click.option("--task", type=click.IntRange(0), help="Show one array task in full.")
@json_option
def command(run: Run, output: str | None, task: int | None, as_json: bool) -> int:
    """Write a self-contained HTML report on RUN (default: your newest).

    \b
      fsdpkit report fsdp-t5-20261121-101500-3f2a
      fsdpkit report fsdp-t5-20261121-101500-3f2a -o report.html

    It shows what ran, where and with which settings; why it failed; loss, speed, slow ranks and
    nodes; a timeline; and where the GPU-hours went. An active run is shown as of now.
    """
    from fsdpkit.errors import StorageError
    from fsdpkit.reporting.report.page import page
    from fsdpkit.runs.layout import write_atomically

    if output == "-" and as_json:
        raise click.UsageError("-o - prints the report, --json where it is: choose one.")
    html = page(run, task)
    if output == "-":
        click.echo(html, nl=False)
        return 0
    suffix = "" if task is None else f"-task-{task}"
    path = Path(output or f"{run.id}{suffix}.html")
    try:
        write_atomically(path, html, by_umask=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    if as_json:
        from fsdpkit.cli.json_reports import Written
        from fsdpkit.reporting.report.predicted import predictions

        found = predictions(run, task)
        print_answer(Written(run=run.id, path=str(path.absolute()), predictions=found))
    else:
        click.echo(path)
    return 0
