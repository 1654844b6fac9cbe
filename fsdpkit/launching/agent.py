"""The process that runs once on each node: `python -m fsdpkit.launching.agent -- torchrun …`.

It goes through submitit's own job runner, so that submitit's `Job` finds a result for each node.
"""

from __future__ import annotations

import logging
import os
import sys

from submitit.core.submission import process_job

from fsdpkit.launching.job_environment import FsdpkitJobEnvironment
from fsdpkit.launching.node import TrainingEnded, end_descendants
from fsdpkit.launching.saying import say


def main() -> int:
    """The exit status of this node's task: 0, or that of the first failure on this node."""
    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # what it says, we say with the cause
    FsdpkitJobEnvironment().prepare_results()
    try:
        process_job(os.environ["SUBMITIT_FOLDER"])
    except TrainingEnded as error:
        say(str(error), sys.stderr)
        return error.exit_code
    finally:
        end_descendants()
    return 0


if __name__ == "__main__":
    sys.exit(main())
