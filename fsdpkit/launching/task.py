"""The function that submitit pickles for a job. This module is also imported when submitting, so it
is small: the agent's own code is imported where it runs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LaunchNode:
    """Callable for submitit: runs the torchrun command on this process's command line."""

    def __call__(self) -> dict[str, Any]:
        from fsdpkit.launching.node import run_node, torchrun_arguments

        return run_node(torchrun_arguments(sys.argv[1:]), os.environ)
