"""Messages of agents and the batch shell's helper to the person who reads the log."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def say(text: str, file: TextIO | None = None) -> None:
    """Write a line to the log. A text of several lines, such as an exception's, becomes one: its
    second line would read as the words of whoever quotes it. If the disk is full it is lost: a log
    must not decide how a job ends.
    """
    with contextlib.suppress(OSError):
        print(f"fsdpkit: {_CONTROL.sub(' ', text).strip()}", file=file or sys.stdout, flush=True)


def warn(text: str) -> None:
    """Say what looks wrong but does not keep the job from running."""
    say(f"warning: {text}")


def exclude_this_node(environ: Mapping[str, str]) -> str:
    """The remedy for a node that cannot be used."""
    node = environ.get("SLURMD_NODENAME", "…")
    return f"exclude this node with --set resources.exclude={node}"
