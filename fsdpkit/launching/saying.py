"""What agents and the batch shell's helper say to the person who reads the log."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def say(text: str, file: TextIO | None = None) -> None:
    """A line in the log. On a full disk it is lost: a log must not decide how a job ends."""
    with contextlib.suppress(OSError):
        print(f"fsdpkit: {text}", file=file or sys.stdout, flush=True)
