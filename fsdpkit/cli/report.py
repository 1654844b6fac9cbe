"""`fsdpkit report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from fsdpkit.reporting.predictions import Prediction
    from fsdpkit.scheduling.run import Run


@answer("fsdpkit.report/1")
def _written(run: str, path: Path, predictions: dict[str, list[Prediction]] | None) -> None:
    """A run's report, as one HTML file.

    predictions: what `fsdpkit plan` had predicted of each of its jobs, beside what it measured; by
    array task, of a run that is none by "". Empty without a plan; null with --host, which brings
    the page alone.
    """


@click.command("report")
@on_run()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write, or `-` to print (default: RUN.html in the current directory).",
)
@click.option("--task", type=click.IntRange(0), help="Show one array task in full.")
@json_option(_written)
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
        from fsdpkit.reporting.report.predicted import predictions

        return _written(run.id, path.absolute(), predictions(trainings))
    if path is not None:
        click.echo(path)
    return 0
