"""On what a part was measured, as its results say it."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from typing import Any


def measured(*packages: str) -> dict[str, Any]:
    """Now, here, with these packages besides torch."""
    versions = {name: version(name) for name in ("torch", *packages)}
    day, cores = time.strftime("%Y-%m-%d"), os.cpu_count()
    return {"date": day, "cpus": cores, "python": platform.python_version(), **versions}
