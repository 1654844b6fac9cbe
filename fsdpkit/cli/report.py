"""`fsdpkit report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import print_answer
from fsdpkit.cli.options import json_option, on_run, write_page

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
    from fsdpkit.reporting.report.page import page_of
    from fsdpkit.reporting.training import trainings_of

    if output == "-" and as_json:
        raise click.UsageError("-o - prints the report, --json where it is: choose one.")
    trainings = trainings_of(run, run.record.tasks_of(task), run.job_states())
    suffix = "" if task is None else f"-task-{task}"
    path = write_page(page_of(trainings, task), output or f"{run.id}{suffix}.html")
    if as_json and path is not None:
        from fsdpkit.cli.json_reports import Written
        from fsdpkit.reporting.report.predicted import predictions

        found = predictions(trainings)
        print_answer(Written(run=run.id, path=str(path.absolute()), predictions=found))
    elif path is not None:
        click.echo(path)
    return 0
