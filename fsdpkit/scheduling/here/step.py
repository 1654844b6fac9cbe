"""The step of an allocation that a run's script is, on the first node, from start to end."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.here.commands import end_steps, steps_of
from fsdpkit.scheduling.local.store import LocalJob
from fsdpkit.scheduling.local.supervisor import adopt_orphans, run_script
from fsdpkit.scheduling.states import JobState


def main() -> int:
    """Run the script in sys.argv[1]; its state is written beside it."""
    adopt_orphans()
    job = LocalJob(Path(sys.argv[1]))
    description = job.description

    def cancel(number: int, frame: FrameType | None) -> None:
        job.cancel_requested.touch(mode=0o600)

    signal.signal(signal.SIGTERM, cancel)
    environment = {
        **scrubbed(os.environ)[0],
        **description["environment"],
        "SLURMD_NODENAME": os.environ["SLURMD_NODENAME"],
        "SLURM_NODEID": "0",
    }
    job_id, start_s, limit_s = environment["SLURM_JOB_ID"], time.time(), description["limit_s"]
    nodes = environment["SLURM_JOB_NODELIST"]
    running = JobState("RUNNING", "here", node_list=nodes, start_s=start_s, end_s=start_s + limit_s)
    job.save_state(running)
    names = {"j": job_id, "%": "%"}
    state = run_script(job, description["options"], environment, names, limit_s)
    _end_the_rest(job_id, job.dir.parent.name)
    job.save_state(
        replace(state, source="here", node_list=nodes, start_s=start_s, end_s=time.time())
    )
    return 0


def _end_the_rest(job_id: str, run_id: str) -> None:
    """Steps of the run that outlived their srun, as where that was killed."""
    try:
        end_steps([step.id for step in steps_of(job_id) or [] if step.name == run_id])
    except SchedulerError as error:
        print(f"fsdpkit: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
