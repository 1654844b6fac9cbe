"""How a training script is told its settings: `--job RUN/job.json` and `--set KEY=VALUE`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fsdpkit.config.training.settings import TrainingSettings, load_settings
from fsdpkit.errors import ConfigError, NotFoundError


def read_settings(description: str, argv: Sequence[str] | None = None) -> TrainingSettings:
    """The settings that a script's command line asks for; `description` opens its `--help`.

    Raises NotFoundError without the job file, ConfigError naming file and key for a wrong setting.
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
            table = dict(json.loads(arguments.job.read_text(encoding="utf-8"))["training"])
        except FileNotFoundError:
            raise NotFoundError(f"{arguments.job}: no such file (--job).") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{arguments.job}: not a JSON object with a key "training": {error!r}.'
            ) from None
    return load_settings(table, arguments.sets, origin=str(arguments.job or "[training]"))
