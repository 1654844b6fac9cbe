"""How a training script is told its settings: `--job RUN/job.json` and `--set KEY=VALUE`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsdpkit
from fsdpkit.config.key_changes import other_release, without_unknown
from fsdpkit.config.training.settings import TrainingSettings, load_settings
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.runs.job_file import bytes_of_job, written_by
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.staged import local_path


def read_settings(description: str, argv: Sequence[str] | None = None) -> TrainingSettings:
    """The settings that a script's command line asks for; `description` opens its `--help`.

    Raises NotFoundError without the job file, ConfigError naming file and key for a wrong setting,
    DamagedError where the run's job is not what was submitted.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--job", type=Path, help='JSON file whose key "training" has the settings')
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, for instance optimizer.lr=1e-3",
    )
    arguments = parser.parse_args(argv)
    table = {}
    if arguments.job:
        try:
            table = dict(_job_in(arguments.job)["training"])
        except FileNotFoundError:
            raise NotFoundError(f"{arguments.job}: no such file (--job).") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{arguments.job}: not a JSON object with a key "training": {error!r}.'
            ) from None
    return load_settings(table, arguments.sets, origin=str(arguments.job or "[training]"))


def on_this_node(settings: TrainingSettings) -> TrainingSettings:
    """`settings` with paths of the node's own copies, to open; never to put on record."""
    from fsdpkit.training.offer import TRAINER

    return TRAINER.moved(settings, local_path)


def _job_in(file: Path) -> dict[str, Any]:
    """The job as it was submitted, of the run that this rank belongs to; else the file as it is.

    Another release may have submitted the run: what this one does not know is not used, and named.
    """
    run = os.environ.get("FSDPKIT_RUN_DIR")
    if run is None or file.absolute() != RunPaths(Path(run).absolute()).job:
        return dict(json.loads(file.read_bytes()))
    job = json.loads(bytes_of_job(Path(run), os.environ))
    table, unknown = without_unknown(TrainingSettings, job["training"], "training")
    if unknown and os.environ.get("RANK", "0") == "0":
        note = other_release(file.name, written_by(Path(run)), fsdpkit.__version__, unknown)
        print(f"fsdpkit: warning: {note}", file=sys.stderr, flush=True)
    return {**job, "training": table}
