"""How a training script is told its settings: `--job RUN/job.json` and `--set KEY=VALUE`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fsdpkit.config.training.settings import TrainingSettings, load_settings
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.runs.job_file import bytes_of_job
from fsdpkit.runs.layout import RunPaths


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
            table = dict(json.loads(_bytes_of(arguments.job))["training"])
        except FileNotFoundError:
            raise NotFoundError(f"{arguments.job}: no such file (--job).") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{arguments.job}: not a JSON object with a key "training": {error!r}.'
            ) from None
    return load_settings(table, arguments.sets, origin=str(arguments.job or "[training]"))


def _bytes_of(job: Path) -> bytes:
    """The job as it was submitted, of the run that this rank belongs to; else the file as it is."""
    run = os.environ.get("FSDPKIT_RUN_DIR")
    if run is not None and job.absolute() == RunPaths(Path(run).absolute()).job:
        return bytes_of_job(Path(run), os.environ)
    return job.read_bytes()
