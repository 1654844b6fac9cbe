"""A template that runs a job's script as one process, without agents or torchrun, and vouches for
it as agents do."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path(__file__).parent / "bare"


def write_bare_template(directory: Path) -> None:
    """Add the template `bare` to the configuration in `directory`."""
    shutil.copytree(FOLDER, directory / "templates" / "bare")
