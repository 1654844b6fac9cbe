"""A run as an object: the same verbs as the command line, from any process, at any time.

What looks at a run knows no more than opened.py; each verb that changes one is imported when it is
called. Nothing that a verb needs knows this file: it would be a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import SchedulerError, StorageError, UsageError
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import write_atomically
from fsdpkit.scheduling.opened import OpenRun

if TYPE_CHECKING:
    from fsdpkit.scheduling.saving import Request


@dataclass(frozen=True)
class Run(OpenRun):
    """One submission and all its attempts, with everything that can be done to it."""

    def resume(
        self,
        *,
        nodes: int | None = None,
        gpus: int | None = None,
        time: str | None = None,
        partition: str | None = None,
        account: str | None = None,
        spare: int | None = None,
        sets: Sequence[str] = (),
        chained: bool = False,
        tasks: Sequence[int] | None = None,
    ) -> Run:
        """Continue the run in a new job, as `fsdpkit resume` does. Raises FsdpkitError.

        chained: while the run goes on; the new job starts if the run ends short of its goal.
        tasks: of an array, those to go on; None: those short of their goal.
        """
        from fsdpkit.scheduling.resuming import Changes, plan_resume, submit_resume

        changes = Changes(
            nodes=nodes,
            gpus=gpus,
            time=time,
            partition=partition,
            account=account,
            spare=spare,
            sets=sets,
            chained=chained,
            tasks=tasks,
        )
        newest = Run.open(self.dir)
        return submit_resume(newest, plan_resume(newest, changes))

    def cancel(self, *, save: bool = False) -> list[str]:
        """End the run: its jobs, all array tasks, and what is chained behind them.

        save: what runs is asked to save a checkpoint and to stop by itself; the answer names those
        jobs. Raises SchedulerError, StorageError.
        """
        if self.job_id is None:
            raise SchedulerError(f"run {self.id} was never confirmed as submitted")
        if save and self.record.kind == "local" and self.record.array is not None:
            raise UsageError("the local cluster can only end an array as a whole: leave out --save")
        client, states = self.client(), self.job_states()
        asked = []
        # The newest first, lest the end of one lets the next start.
        for job in reversed([job for job in self.record.jobs if job.ended is None]):
            states_here = {job_id: states.get(job_id) for job_id in job.job_ids}
            left = {j: s for j, s in states_here.items() if s is None or not s.over}
            if save:
                running = [j for j, s in left.items() if s is not None and s.phase == "running"]
                asked += [j for j in running if self._ask_to_stop(j)]
                for job_id in left.keys() - asked:
                    client.cancel(job_id)
            elif left and job.job_id is not None:
                client.cancel(job.job_id)
        return asked

    def save_checkpoint(self, *, array_task: int | None = None) -> list[Request]:
        """Ask what runs, or one task of the array, to save a checkpoint and to go on, as `fsdpkit
        checkpoint save` does; `wait()` of a request gives its path. Raises FsdpkitError.
        """
        from fsdpkit.scheduling.saving import request_checkpoints

        return request_checkpoints(self, array_task)

    def _ask_to_stop(self, job_id: str) -> bool:
        """Tell a running job to save and stop; False if it went back to the queue meanwhile."""
        path = self.paths.task(task_of(job_id)).stop_requested
        try:
            write_atomically(path, "cancel\n")
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        state = self.client().states([job_id]).get(job_id)
        return state is None or state.phase != "pending"

    def jobs(self) -> list[Any]:
        """submitit's Job for each array task (one without an array): `results()` and the rest."""
        from fsdpkit.scheduling.executor import job_class

        kind = job_class(self.client())
        ids = list(self.states()) if self.record.earlier else self.record.job_ids
        nodes = {job.job_id: job.nodes for job in self.record.jobs}
        return [kind(self.paths.submitit, one, list(range(nodes[job_of(one)]))) for one in ids]

    def results(self) -> list[Any]:
        """What each node returned, in order; waits for the end, raises submitit's errors."""
        return [result for job in self.jobs() for result in job.results()]

    def returned(self) -> list[Any]:
        """What each rank of a run of `fsdpkit.run` returned, by rank; waits for the end. Raises
        FunctionError for the first rank that raised, and FsdpkitError."""
        from fsdpkit.scheduling.returned import returned

        return returned(self)
