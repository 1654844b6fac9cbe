"""One start of two ranks for all tests of what a training loop calls."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from launch import findings


@functools.cache
def loop_parts() -> dict:
    """What `ranks/loop_parts.py` found."""
    with tempfile.TemporaryDirectory() as folder:
        return findings(2, "loop_parts.py", Path(folder))
