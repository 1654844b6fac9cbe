"""`fsdpkit report`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from fsdpkit.reporting.predictions import Prediction
    from fsdpkit.reporting.training import Training
    from fsdpkit.scheduling.run import Run


_AGAIN_S = 30
"""Between two looks at a run that is followed, and until a browser reloads its page."""


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
@click.option(
    "--follow", "-f", is_flag=True, help="Write it again until RUN ends; a browser reloads it."
)
@json_option(_written)
def command(run: Run, output: str | None, task: int | None, follow: bool, as_json: bool) -> int:
    """Write a self-contained HTML report on RUN (default: your newest).

    \b
      fsdpkit report fsdp-t5-20261121-101500-3f2a
      fsdpkit report fsdp-t5-20261121-101500-3f2a -o report.html
      fsdpkit report 3f2a --follow

    Its head says how it goes, how far it is and what went wrong; below are curves, slow ranks and
    nodes, a timeline, where the GPU-hours went and the settings. An active run is shown as of now.
    """
    from fsdpkit.reporting.report.page import page_of
    from fsdpkit.reporting.training import trainings_of
    from fsdpkit.scheduling.opened import looks

    if output == "-" and (as_json or follow):
        raise click.UsageError("-o - prints the report once: leave out --json and --follow.")
    suffix = "" if task is None else f"-task-{task}"
    name = output or f"{run.id}{suffix}.html"

    def written(again_s: int | None = None) -> tuple[Path | None, list[Training]]:
        now = run.newer()
        trainings = trainings_of(now, now.record.tasks_of(task), now.job_states())
        return write_page(page_of(trainings, task, again_s=again_s), name), trainings

    end = looks(run)
    if follow:
        click.echo(f"{name}: reload or keep it open; written until the run ends", err=True)
    try:
        while follow and next(end) is None:
            written(_AGAIN_S)
            time.sleep(_AGAIN_S)
    finally:  # by now no browser need load it again, whatever ended this
        path, trainings = written()
    if as_json and path is not None:
        from fsdpkit.reporting.report.predicted import predictions

        return _written(run.id, path.absolute(), predictions(trainings))
    if path is not None:
        click.echo(path)
    return 0
