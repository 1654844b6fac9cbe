"""A job's script handed to an allocation in place of sbatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config.allocation import Allocation
from fsdpkit.config.units import parse_time_s
from fsdpkit.errors import SchedulerError, StorageError, UsageError
from fsdpkit.rendering.directives import read_directives
from fsdpkit.runs.layout import RunPaths, make_directory, write_atomically
from fsdpkit.runs.reading import read_bytes
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.here.commands import SCRIPT_STEP, steps_of
from fsdpkit.scheduling.job_mark import MarkedJob
from fsdpkit.scheduling.local.store import LocalJob
from fsdpkit.scheduling.sbatch_answer import SbatchAnswer
from fsdpkit.scheduling.slurm import SlurmClient

_START_S = 120.0
"""How long Slurm may take to start a step in nodes that are there."""


@dataclass(frozen=True)
class AllocationClient(SlurmClient):
    """Slurm, which already gave the nodes."""

    allocation: Allocation | None = None

    def submit(self, script: Path, extra: Sequence[str] = ()) -> SbatchAnswer:
        """Start the script as a step on the first node, and wait until it has begun.

        Raises UsageError if another run is in the allocation, SchedulerError or StorageError.
        """
        assert self.allocation is not None
        job_id, paths = self.allocation.job_id, RunPaths(script.parent)
        steps = steps_of(job_id, self.cluster)
        if steps is None:
            raise SchedulerError(f"squeue does not say what runs in the allocation {job_id}")
        others = [step.run for step in steps if step.name.startswith(SCRIPT_STEP)]
        if others and not self.allocation.hold:
            raise UsageError(
                f"run {others[0]} is in the allocation {job_id} already: wait for its end, or end "
                f"it with fsdpkit cancel {others[0]}"
            )
        earlier, state = LocalJob(paths.here), paths.here / "state.json"
        before = read_bytes(state) if earlier.saved_state() else None
        try:
            make_directory(paths.here)
            for file in (state, earlier.cancel_requested):
                file.unlink(missing_ok=True)
            text = script.read_text(encoding="utf-8")
            write_atomically(paths.here / "script.sh", text)
            description = self._description(dict(read_directives(text)))
            write_atomically(paths.here / "job.json", json.dumps(description), private=True)
            self._start(paths)
        except SchedulerError:
            if before is not None:
                state.write_bytes(before)
            raise
        except OSError as error:
            raise StorageError(f"{paths.here} cannot be written: {error.strerror}") from error
        return SbatchAnswer(job_id, self.cluster)

    def _description(self, options: dict[str, str | None]) -> dict[str, object]:
        """What the step is to know: the script's options, its variables, when it must end."""
        assert self.allocation is not None
        nodes = int(options["nodes"] or "1")
        own = {
            "SLURM_JOB_ID": self.allocation.job_id,
            "SLURM_JOB_NODELIST": ",".join(self.allocation.nodes[:nodes]),
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_PARTITION": self.allocation.partition,
            "SLURM_JOB_CPUS_PER_NODE": str(self.allocation.cpus),
            "SLURM_CPUS_PER_TASK": str(self.allocation.cpus),
            "SLURM_SUBMIT_DIR": options["chdir"],
            "FSDPKIT_HERE": "1",
        }
        limit_s = min(parse_time_s(options["time"] or "0"), self.allocation.left_s)
        return {"options": options, "environment": own, "limit_s": limit_s}

    def _start(self, paths: RunPaths) -> None:
        assert self.allocation is not None
        where = [f"--clusters={self.cluster}"] if self.cluster else []
        argv = [
            *("srun", *where, f"--jobid={self.allocation.job_id}", "--overlap", "--mem=0"),
            *("--nodes=1", "--ntasks=1", f"--nodelist={self.allocation.nodes[0]}"),
            *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--chdir=/", "--unbuffered"),
            f"--job-name={SCRIPT_STEP}{paths.dir.name}",
            *(sys.executable, "-m", "fsdpkit.scheduling.here.step", str(paths.here)),
        ]
        log = paths.here / "step.log"
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            step = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in this terminal is for who waits, not for srun
                env=scrubbed(os.environ)[0],
                cwd="/",
            )
        job, deadline = LocalJob(paths.here), time.monotonic() + _START_S
        while job.saved_state() is None:
            if step.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            step.terminate()
            words = log.read_text(errors="replace").strip().splitlines()[-3:]
            why = "; ".join(words) or f"srun has not started it within {_START_S:.0f} s"
            raise SchedulerError(f"the allocation {self.allocation.job_id}: {why}")

    def receipt(self, job: MarkedJob) -> tuple[str | None, float | None]:
        """By which the allocation is known again: its cluster, and when it was submitted."""
        assert self.allocation is not None
        return self.allocation.cluster, self.allocation.submit_s
