"""The process that runs once on each node, with `-- torchrun …` as its arguments.

It forks the node's fork server as soon as it has imported torch and nothing else. It then runs
submitit's own job runner, so that submitit's `Job` finds a result for each node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fsdpkit.launching import kernel, python_path, warm
from fsdpkit.launching.allocator import set_allocator
from fsdpkit.launching.destructors import leave
from fsdpkit.launching.job_log import say
from fsdpkit.launching.signing import take_secret

if TYPE_CHECKING:
    from fsdpkit.launching.fork_server import LoadedTorch


def main(loaded: LoadedTorch | None = None) -> NoReturn:
    """Exits with the status of this node's task: 0, or that of the first failure on this node.
    loaded: what this process was forked with. In a forked rank, which returns here later from a
    copy of this process: with the script's own."""
    if loaded is None and "FSDPKIT_HOLD" in os.environ:
        from fsdpkit.launching import held

        held.hand_over(os.environ)
    python_path.restore(os.environ)
    take_secret(os.environ)
    set_allocator(os.environ)  # before anything imports torch
    if program := warm.start(os.environ, loaded):
        program.run()
    leave(run_agent())


def run_agent() -> int:
    """Everything but the ranks. What they leave behind, in whichever session, ends with it."""
    from fsdpkit.launching.node import end_descendants
    from fsdpkit.launching.node_failure import TrainingEnded
    from fsdpkit.launching.task import LaunchNode

    with contextlib.suppress(OSError):
        kernel.adopt_orphans()
    try:
        try:
            from submitit.core import plugins
            from submitit.core.submission import process_job
            from submitit.core.utils import DelayedSubmission
        except ImportError:  # submitted without it: nothing reads the results
            LaunchNode()()
        else:
            from fsdpkit.launching.job_environment import FsdpkitJobEnvironment

            over = False

            def launch() -> dict[str, Any]:
                nonlocal over
                summary = LaunchNode()()
                over = True
                return summary

            # The pickle in the run's directory is not loaded: that would run whatever somebody had
            # put there, and it says no more than this.
            own = staticmethod(lambda _: DelayedSubmission(launch))
            setattr(DelayedSubmission, "load", own)  # noqa: B010
            # submitit looks for plugins in the records of all installed packages; this one it
            # would not find where fsdpkit is on PYTHONPATH only.
            setattr(plugins, "get_job_environment", FsdpkitJobEnvironment)  # noqa: B010
            # We report what submitit would say, with the cause.
            logging.getLogger("submitit").setLevel(logging.CRITICAL)
            FsdpkitJobEnvironment().prepare_results()
            try:
                process_job(os.environ["SUBMITIT_FOLDER"])
            except OSError as error:  # of its result, which says nothing about the training
                if not over:
                    raise
                say(f"submitit's result cannot be written: {error.strerror}", sys.stderr)
    except TrainingEnded as error:
        say(str(error), sys.stderr)
        return error.exit_code
    finally:
        end_descendants()
    return 0
