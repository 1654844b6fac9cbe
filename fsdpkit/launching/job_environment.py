"""submitit's view of a job from the inside: which job and task this is.

The agent hands it to submitit; other code in the job finds it as submitit's plugin
`job_environment`, where fsdpkit is installed, by the script's SUBMITIT_EXECUTOR=fsdpkit.
"""

from __future__ import annotations

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmJobEnvironment

from fsdpkit.runs.layout import name_submission


class FsdpkitJobEnvironment(SlurmJobEnvironment):
    """Slurm's variables, without submitit's signal handling: the agent and torchrun have their own,
    and the warning before the end goes to the batch shell."""

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        pass

    def _requeue(self, countdown: int) -> None:
        raise RuntimeError("fsdpkit requeues from the batch shell, not from submitit")

    def prepare_results(self) -> None:
        """Make the folder ready for this attempt of this task.

        A result that an earlier attempt left would make submitit call a running job done, and a
        half-written one makes its next save fail. The submission's pickle gets its name here, too,
        so that a job runs whose submitter died right after sbatch had accepted it.
        """
        paths = self.paths
        for stale in (paths.result_pickle, paths.result_pickle.with_suffix(".pkl.save_tmp")):
            stale.unlink(missing_ok=True)
        name_submission(paths.submitted_pickle)
