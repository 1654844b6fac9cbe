"""`fsdpkit track`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run

if TYPE_CHECKING:
    from fsdpkit.config.track import Tracker
    from fsdpkit.scheduling.run import Run


@dataclass(frozen=True)
class Sent:
    """What one tracker got."""

    run: str
    task: int | None
    tracker: str
    id: str
    place: str
    lines: int


@answer("fsdpkit.tracked/1")
def _tracked(sent: Sequence[Sent]) -> None:
    """What `track` sent."""


@click.command("track")
@on_run(copied=False)
@click.option(
    "--to",
    multiple=True,
    type=click.Choice(["tensorboard", "mlflow", "wandb"]),
    help="Tracker, instead of the job's track.to; may be repeated.",
)
@click.option("--project", help="MLflow's experiment, W&B's project (default: the job's).")
@click.option("--uri", help="MLflow's server, sqlite:///FILE, or a directory.")
@click.option("--offline", is_flag=True, help="Let W&B write into the run's directory.")
@click.option("--task", type=click.IntRange(0), help="One task of an array (default: all).")
@json_option(_tracked)
def command(
    run: Run,
    to: tuple[Tracker, ...],
    project: str | None,
    uri: str | None,
    offline: bool,
    task: int | None,
    as_json: bool,
) -> int:
    """Send the metrics of RUN (default: your newest) to the job's trackers, from this machine.

    \b
      fsdpkit track 3f2a
      fsdpkit track 3f2a --to mlflow --uri http://mlflow.example.org:5000
      fsdpkit track 3f2a --to wandb --offline

    Compute nodes need no internet: the job writes metrics.jsonl, and this command sends it. A
    run stays one run in the tracker across requeues, and a repeated call sends no point twice.
    What a run names that others can change (track.uri, track.entity) is not followed: your own
    MLFLOW_TRACKING_URI, --uri or defaults.toml says where it goes.

    Exit status: 65 if the tracker's package is missing, 69 if the tracker refused or did not
    answer.
    """
    from fsdpkit.config.track import Track
    from fsdpkit.errors import UsageError
    from fsdpkit.tracking.sending import send, sending_of, track_of

    asked = Track(to=list(to), project=project, uri=uri, offline=offline)
    trackers = asked.to or track_of(run).to
    if not trackers:
        raise UsageError(
            f"the job of {run.id} names no tracker: set track.to in the job, or give --to"
        )
    told: list[Sent] = []
    for number in run.record.tasks_of(task):
        sending = sending_of(run, number, asked)
        for tracker in dict.fromkeys(trackers):
            sent = send(sending, tracker)
            told.append(Sent(run.id, number, tracker, sent.mark.id, sent.place, sent.lines))
            if not as_json:
                click.echo(f"{tracker}: {sent.lines:,} new lines of {sending.name}: {sent.place}")
    if as_json:
        _tracked(told)
    elif sending.offline and "wandb" in trackers:
        click.echo("  wandb sync DIRECTORY/offline-run-* sends them", err=True)
    if (why := sending.destination.not_followed) is not None:
        click.echo(f"fsdpkit: {why}: it went by your own settings", err=True)
    return 0
