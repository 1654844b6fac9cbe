"""Where data that can be regenerated is cached for this account."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/fsdpkit`, or that in the home directory. Raises OSError without one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "fsdpkit"
    try:
        return Path.home() / ".cache" / "fsdpkit"
    except RuntimeError as error:  # an account without an entry, and no HOME
        raise FileNotFoundError(str(error)) from error
