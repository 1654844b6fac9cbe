"""A run as an object: the same verbs as the command line, from any process, at any time.

What looks at a run knows no more than opened.py; each verb that changes one is imported when it is
called. Nothing that a verb needs knows this file: it would be a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import SchedulerError, UsageError, storage_errors
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import write_atomically
from fsdpkit.scheduling.opened import OpenRun

if TYPE_CHECKING:
    from fsdpkit.runs.record import JobRecord
    from fsdpkit.scheduling.run_states import States
    from fsdpkit.scheduling.saving import SaveRequest


@dataclass(frozen=True)
class Run(OpenRun):
    """One submission and all its attempts, with everything that can be done to it.

    `submit` returns one; `Run.open` finds one again, from any process, at any time.

    Attributes:
        dir: The run directory.
        record: What `run.json` says: what was asked, what the scheduler answered.
    """

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
        here: bool = False,
        on: str | None = None,
    ) -> Run:
        """Continue the run in a new job, as `fsdpkit resume` does.

        None leaves a setting as it was. A job that is held is released instead, if nothing is to
        change.

        Args:
            nodes: Nodes, standby nodes not counted.
            gpus: GPUs per node; each gets one rank.
            time: Time limit as in sbatch(1), `--time`: `"30"` is minutes, `"02:00:00"` hours.
            partition: Partition.
            account: Account (project) to charge.
            spare: Extra standby nodes that replace a failed one.
            sets: `KEY=VALUE` each, for any key of the job file.
            chained: While the run is active: the new job starts if the run ends short of its goal.
            tasks: Indices of the array tasks to continue; None: those short of their goal.
            here: Run in the allocation around this process, which has to outlive the run.
            on: Run on the nodes that this run of `fsdpkit hold` has; on Slurm this process has to
                outlive the run.

        Returns:
            The run with the new job on record.

        Raises:
            UsageError: There is nothing to continue, or the run is active and `chained` is False.
            FsdpkitError: What else `submit` raises.
        """
        from fsdpkit.scheduling.resuming import (
            ResumeRequest,
            plan_resume,
            release_held,
            submit_resume,
        )

        changes = ResumeRequest(
            nodes=nodes,
            gpus=gpus,
            time=time,
            partition=partition,
            account=account,
            spare=spare,
            sets=tuple(sets),
            chained=chained,
            tasks=tasks,
            here=here,
            on=on,
        )
        newest = Run.open(self.dir)
        if changes == ResumeRequest() and release_held(newest):
            return newest
        return submit_resume(newest, plan_resume(newest, changes))

    def cancel(self, *, save: bool = False) -> list[str]:
        """End the run: its jobs, all array tasks, and what is chained behind them.

        Args:
            save: Ask what is running to save a checkpoint and stop by itself; only the rest is
                cancelled.

        Returns:
            Ids of the jobs that were asked to save; empty without `save`.

        Raises:
            UsageError: `save`, for another user's run, or for an array on the local cluster, which
                can only end it as a whole.
            SchedulerError: The submission was never confirmed, the scheduler refused, or the job
                of that number is not this run's.
            StorageError: The request to save cannot be written.
        """
        if self.job_id is None:
            raise SchedulerError(f"run {self.id} was never confirmed as submitted")
        if save and self.record.array is not None and not self.client().ends_tasks:
            raise UsageError("the local cluster can only end an array as a whole: leave out --save")
        if save:
            from fsdpkit.scheduling.visiting import refuse_of_others

            refuse_of_others(self)
        client, asked = self.client(), []
        for job, left in self.not_over():
            if save:
                running = [j for j, s in left.items() if s is not None and s.phase == "running"]
                asked += [j for j in running if self._ask_to_stop(j)]
                for job_id in left.keys() - asked:
                    client.cancel(self.marked(job_id))
            elif left and job.job_id is not None:
                client.cancel(self.marked(job.job_id))
        return asked

    def not_over(self) -> list[tuple[JobRecord, States]]:
        """What of it has not ended, or may not have.

        Returns:
            Its jobs, the newest first, lest the end of one lets the next start; each with the
            states of its array tasks.

        Raises:
            SchedulerError: The scheduler could not be asked.
        """
        states = self.job_states()
        jobs = [job for job in reversed(self.record.jobs) if job.ended is None]
        here = [(job, {one: states.get(one) for one in job.job_ids}) for job in jobs]
        return [(job, {i: s for i, s in of.items() if not (s and s.over)}) for job, of in here]

    def save_checkpoint(self, *, array_task: int | None = None) -> list[SaveRequest]:
        """Ask what is running to save a checkpoint and go on, as `fsdpkit checkpoint save` does.

        Args:
            array_task: Index of the one task to ask; None: all that are running.

        Returns:
            A request for each job, or array task; its `wait()` gives the checkpoint's path.

        Raises:
            UsageError: It is pending or has ended.
            SchedulerError: Nobody can say, or nothing in it has opened its checkpoints yet.
            StorageError: The request cannot be written.
        """
        from fsdpkit.scheduling.saving import request_checkpoints

        return request_checkpoints(self, array_task)

    def _ask_to_stop(self, job_id: str) -> bool:
        """Tell a running job to save and stop; False if it went back to the queue meanwhile."""
        path = self.paths.task(task_of(job_id)).stop_requested
        with storage_errors(path, "written"):
            write_atomically(path, "cancel\n")
        (state,) = self.client().states([self.marked(job_id)]).values() or (None,)
        return state is None or state.phase != "pending"

    def jobs(self) -> list[Any]:
        """submitit's Job for each array task; one without an array.

        Returns:
            `submitit.Job` objects, whose `results()`, `stdout()` and the like read the run.
        """
        from fsdpkit.scheduling.executor import job_class

        kind = job_class(self.client())
        ids = list(self.states()) if self.record.earlier else self.record.job_ids
        nodes = {job.job_id: job.nodes for job in self.record.jobs}
        return [kind(self.paths.submitit, one, list(range(nodes[job_of(one)]))) for one in ids]

    def results(self) -> list[Any]:
        """Wait for the end; what each node returned, through submitit.

        Returns:
            A value per node, in order; of an array, task after task.

        Raises:
            Exception: What submitit raises for a job that failed.
        """
        return [result for job in self.jobs() for result in job.results()]

    def returned(self) -> list[Any]:
        """Wait for the end; what each rank of a run of `submit_function` returned.

        Returns:
            A value per rank, in rank order.

        Raises:
            FunctionError: The job did not start, or a rank raised or ended without returning; has
                the traceback of the first one that raised.
            UsageError: The run is not of a function.
            SchedulerError: Nobody has known the job for five minutes.
            StorageError: What a rank returned cannot be read.
        """
        from fsdpkit.scheduling.returned import returned

        return returned(self)
