"""torchrun as a submitit job that requeues itself: `python -m benchmarks.fault_parts.requeued`.

submitit requeues a job when it is warned (by Slurm, of its end or preemption) and its function has
a `checkpoint` method. It does nothing about a function that fails, so this one passes a failed
torchrun on as that warning. It runs by name on the node, which is to find this package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from submitit.helpers import DelayedSubmission
from submitit.slurm.slurm import SlurmExecutor


@dataclass(frozen=True)
class Requeued:
    """Runs `command`; when it fails, the job is queued again and runs it again."""

    command: tuple[str, ...]

    def __call__(self) -> int:
        status = subprocess.run(self.command, check=False).returncode
        if status:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(600)  # submitit's handler exits, and Slurm ends what is left
        return status

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)


def main() -> int:
    """`FOLDER ACCOUNT RANKS COMMAND …`: submit from the working directory, print the job's id."""
    folder, account, ranks, *command = sys.argv[1:]
    executor = SlurmExecutor(Path(folder))
    executor.update_parameters(
        time=10,
        nodes=1,
        ntasks_per_node=1,
        cpus_per_task=int(ranks),
        additional_parameters={"account": account, "gpus-per-node": ranks, "requeue": True},
    )
    print(executor.submit(Requeued(tuple(command))).job_id)
    return 0


if __name__ == "__main__":
    # Pickled by the name under which a node can import it.
    from benchmarks.fault_parts.requeued import main as main_by_name

    sys.exit(main_by_name())
