"""The local cluster's client: the same questions as Slurm's, answered from this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fsdpkit.config.job import Resources
from fsdpkit.config.units import format_gb, parse_array
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.rendering.directives import DirectiveError, read_directives
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import write_atomically
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.job_mark import JobTraits, MarkedJob
from fsdpkit.scheduling.local import store
from fsdpkit.scheduling.sbatch_answer import SbatchAnswer
from fsdpkit.scheduling.slurm import Round
from fsdpkit.scheduling.states import JobState

RANK_MB = 350
"""Resident memory of one rank before its model: Python with torch and gloo, measured on CPU."""
_MOST_NODES = 250
"""Each is a loopback address of one /24."""


def check_fits(resources: Resources) -> None:
    """Refuse what this machine's memory cannot hold. Raises UsageError."""
    import psutil  # only here: a status of this machine's jobs does without

    available_mb = psutil.virtual_memory().available / 2**20
    if resources.memory_mb is not None:
        need_mb, why = resources.nodes * resources.memory_mb, "as resources.memory says"
    else:
        need_mb, why = resources.ranks * RANK_MB, f"at least {RANK_MB} MB a process"
    if need_mb > available_mb:
        raise UsageError(
            f"{resources.nodes} nodes x {resources.gpus} processes need {format_gb(need_mb)} "
            f"({why}), but this machine has {format_gb(available_mb)} free: ask for fewer with "
            "--nodes and --gpus"
        )


@dataclass(frozen=True)
class LocalClient:
    """The cluster that is this machine."""

    nodes: tuple[str, ...] = ()
    """Those that a job gets, of a hold; empty: its own."""
    hold: str | None = None
    """The number of the hold's job."""

    elsewhere: ClassVar[bool] = False
    chains: ClassVar[bool] = False
    ends_tasks: ClassVar[bool] = False
    notice: ClassVar[str | None] = "running on the local cluster, this machine alone"

    def check(self, resources: Resources, *, here: bool) -> None:
        """Whether this machine can hold the job. Raises UsageError."""
        if resources.nodes > _MOST_NODES:
            raise UsageError(f"the local cluster has at most {_MOST_NODES} nodes")
        if here:
            check_fits(resources)

    def submit(self, script: Path, extra: Sequence[str] = ()) -> SbatchAnswer:
        """Start `script` detached from this terminal. Raises SchedulerError or StorageError."""
        try:
            text = script.read_text(encoding="utf-8")
            options = dict(read_directives(text))
        except (OSError, DirectiveError) as error:
            raise SchedulerError(f"the local cluster cannot read {script}: {error}") from error
        tasks = parse_array(array)[0] if (array := options.get("array")) else None
        after = (options.get("dependency") or "").removeprefix("afterok:") or None
        if after and store.find(after) is None:
            raise SchedulerError(f"the local cluster knows no job {after} to wait for")
        job = store.create()
        description: dict[str, Any] = {"options": options, "tasks": tasks, "after": after}
        if self.hold:
            description |= {"hold": self.hold, "nodes": self.nodes}
        # As it is now, whoever may change or exchange the original while the job waits or runs.
        write_atomically(job.dir / "script.sh", text)
        write_atomically(job.dir / "job.json", json.dumps(description))
        each: list[int | None] = [None] if tasks is None else [*tasks]
        for task in each:
            job.save_state(JobState("PENDING", "local", reason="Starting"), task)
        file = job.dir / "supervisor.log"
        with open(file, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "fsdpkit.scheduling.local.supervisor", str(job.dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=scrubbed(os.environ)[0],
                cwd="/",
                umask=0o077,  # of the job's log, too; the script has its own
            )
        job.save_supervisor(supervisor.pid)
        return SbatchAnswer(job.id, None)

    def states(
        self, jobs: Iterable[MarkedJob], asked: Round | None = None
    ) -> dict[MarkedJob, JobState]:
        """The state of each job or array task of this user's that this machine knows."""
        found = {}
        for marked in jobs:
            job = store.find(job_of(marked.id))
            if job is None or not marked.mark.fits(JobTraits(job.comment)):
                continue
            if (state := job.state(task_of(marked.id))) is not None:
                found[marked] = state
        return found

    def details(self, job: MarkedJob, asked: Round) -> dict[str, str]:
        """Nothing: no job waits here for others."""
        return {}

    def name(self, asked: Round) -> str | None:
        """None: each user's jobs are counted where they lie."""
        return None

    def receipt(self, job: MarkedJob) -> tuple[str | None, float | None]:
        """Nothing that its comment does not say."""
        return None, None

    def find_by_comments(self, comments: Iterable[str], asked: Round) -> dict[str, str]:
        """The newest job with each comment."""
        numbers = (int(path.name) for path in store.top().glob("[0-9]*") if path.name.isdecimal())
        wanted, found = set(comments), dict[str, str]()
        for number in sorted(numbers):
            if (comment := store.LocalJob(store.top() / str(number)).comment) in wanted:
                found[str(comment)] = str(number)
        return found

    def forgot(self, job: MarkedJob) -> bool:
        """True: its states lie on this machine, so one that `states` does not have is gone."""
        return True

    def has_any(self, number: str) -> bool:
        """Whether there is a job of this number here."""
        return store.find(job_of(number)) is not None

    def confirm(self, job: MarkedJob) -> None:
        """Raise SchedulerError unless this machine has a job of that mark."""
        self._confirmed(job)

    def _confirmed(self, marked: MarkedJob) -> store.LocalJob:
        job = store.find(job_of(marked.id))
        if job is None or (comment := job.comment) is None:
            raise SchedulerError(f"the local cluster knows no job {marked.id}")
        marked.refuse_another(JobTraits(comment, os.stat(job.dir).st_uid))
        return job

    def release(self, job: MarkedJob) -> None:
        """Raises SchedulerError: no job is ever held here."""
        raise SchedulerError(f"job {job.id} of the local cluster is not held")

    def cancel(self, job: MarkedJob) -> None:
        """Ask the job's supervisor to end it. Raises SchedulerError."""
        self._confirmed(job).cancel_requested.touch(mode=0o600)

    def test(self, script: Path) -> str:
        """A local job needs nobody's leave."""
        read_directives(script.read_text(encoding="utf-8"))
        return "the local cluster would start this job now"
