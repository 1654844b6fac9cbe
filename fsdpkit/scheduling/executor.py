"""submitit's executor and job with our script, our sbatch call and our reading of states.

Registered as submitit's plugin `executor` (cluster name "fsdpkit"). What submitit keeps doing: the
folder's layout, pickles in and results out, and the `Job` that any process can make from a folder
and an id: `results()`, `exception()`, `stdout()`, `cancel()`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from submitit.core import utils
from submitit.core.core import InfoWatcher, Job
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from fsdpkit.errors import SchedulerError, StorageError, storage_errors
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.layout import SUBMISSION_PICKLE, make_directory, name_submission, write_atomically
from fsdpkit.runs.reading import open_own
from fsdpkit.scheduling.cluster import Cluster
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.sbatch_answer import SbatchAnswer
from fsdpkit.scheduling.slurm import SlurmClient
from fsdpkit.scheduling.states import JobState


class StateWatcher(InfoWatcher):
    """States of many jobs from one round of questions, asked at most every few seconds."""

    def __init__(self, client: Cluster, delay_s: int = 15) -> None:
        super().__init__(delay_s=delay_s)
        self.client = client
        self._states: dict[str, JobState] = {}
        self._marks: dict[str, JobMark] = {}

    def know(self, job: MarkedJob) -> None:
        """Nothing is asked about a job before this said what it is known by."""
        self._marks[job.id] = job.mark

    def job_state(self, job_id: str, mode: str = "force") -> JobState | None:
        """What is known of the job. mode: force (ask now), standard (if it is time) or cache."""
        if job_id not in self._registered:
            self.register_job(job_id)
        self.update_if_long_enough(mode)
        return self._states.get(job_id)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        state = self.job_state(job_id, mode)
        return state.state if state else "UNKNOWN"

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        state = self.job_state(job_id, mode)
        if state is None:
            return {}
        return {"JobID": job_id, "State": state.state, "NodeList": state.node_list or ""}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        state = self.job_state(job_id, mode)
        return state is not None and state.phase == "ended"

    def update(self) -> None:
        self._num_calls += 1
        waiting = sorted(self._registered - self._finished)
        marks = self._marks
        marked = [MarkedJob(job_id, marks[job_id]) for job_id in waiting if job_id in marks]
        self._states |= {job.id: state for job, state in self.client.states(marked).items()}
        self._last_status_check = time.time()
        for job_id in waiting:
            state = self._states.get(job_id)
            if state is not None and state.phase == "ended" and not state.may_return:
                self._finished.add(job_id)


class FsdpkitJob(SlurmJob[Any]):
    """A job that is done when the cluster says so, with or without accounting."""

    watcher: StateWatcher = StateWatcher(SlurmClient())  # type: ignore[assignment]

    def __init__(self, folder: str | Path, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        with contextlib.suppress(SchedulerError):  # a folder that is gone
            self.watcher.know(self._marked())

    def _marked(self) -> MarkedJob:
        """The run's job. Raises SchedulerError."""
        run = self.paths.folder.parent
        return MarkedJob(self.job_id, JobMark.of(run, f"fsdpkit:{run.name}"))

    def done(self, force_check: bool = False) -> bool:
        """Whether the job ended. A result of an attempt before a requeue does not count: a result
        is believed at once only if the cluster does not know the job any more."""
        if self._sub_jobs:
            return self._sub_jobs[0].done(force_check)
        has_result = self.paths.result_pickle.exists()
        mode = "force" if force_check else "standard"
        state = self.watcher.job_state(self.job_id, mode)
        if state is None or state.phase == "unknown":
            return bool(has_result)
        return state.phase == "ended"

    def submission(self) -> utils.DelayedSubmission:
        """Unpickled only if it is this user's own. Raises StorageError."""
        with open_own(self.paths.folder / SUBMISSION_PICKLE) as file:
            return pickle.load(file)  # type: ignore[no-any-return]

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        """As submitit's, which waits for the file and says why there is none; a file that is there
        is unpickled only if it is this user's own. Raises StorageError."""
        deadline = time.monotonic() + self._results_timeout_s
        while True:
            try:
                with open_own(self.paths.result_pickle) as file:
                    return pickle.load(file)  # type: ignore[no-any-return]
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    self._results_timeout_s = 0
                    return super()._get_outcome_and_result()
            time.sleep(1)

    def cancel(self, check: bool = True) -> None:
        self.watcher.client.cancel(self._marked())


def job_class(client: Cluster) -> type[FsdpkitJob]:
    """The job class whose questions go to `client`."""
    return type("FsdpkitJob", (FsdpkitJob,), {"watcher": StateWatcher(client)})


class FsdpkitExecutor(SlurmExecutor):
    """Submits a script that is already rendered; every task of an array runs the same one. folder:
    `<run>/submitit`. script: the text for sbatch. nodes: tasks of the job, one a node. client: the
    cluster to submit to."""

    job_class = FsdpkitJob

    def __init__(
        self,
        folder: str | Path,
        *,
        script: str | None = None,
        nodes: int = 1,
        client: Cluster | None = None,
        script_path: Path | None = None,
        max_num_timeout: int = 3,
    ) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout)
        self.script = script
        self.script_path = script_path or Path(folder) / "job.sbatch"
        self.nodes = nodes
        self.client = client or SlurmClient()
        if client is not None:
            self.job_class = job_class(client)
        self.submitted: SbatchAnswer | None = None

    @classmethod
    def name(cls) -> str:
        return "fsdpkit"

    @classmethod
    def affinity(cls) -> int:
        return 1  # below submitit's own Slurm executor, which stays its automatic choice

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set()

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        if kwargs:
            raise ValueError(
                "the fsdpkit executor takes its parameters from the job, site and template: "
                "use fsdpkit.submit(), or pass script= and nodes="
            )

    def _num_tasks(self) -> int:
        return self.nodes

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        if self.script is None:
            raise ValueError("the fsdpkit executor needs the rendered script (script=…)")
        return self.script

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[Job[Any]]:
        """One sbatch call. Two or more submissions are the tasks of an array, numbered from 0."""
        tasks = list(range(len(delayed_submissions))) if len(delayed_submissions) > 1 else None
        return self.submit_prepared(delayed_submissions[0], tasks)

    def submit_function(
        self, function: Callable[[], Any], array: Sequence[int] | None = None
    ) -> list[Job[Any]]:
        """Submit once; `array`: the numbers of the array's tasks, as the script asks for them."""
        return self.submit_prepared(utils.DelayedSubmission(function), array)

    def submit_prepared(
        self, submission: utils.DelayedSubmission, array: Sequence[int] | None
    ) -> list[Job[Any]]:
        """Write pickle and script, call sbatch, name the pickle after the job. Before sbatch is
        called everything the job needs lies in the folder, so a submitter that dies at any later
        moment leaves a whole run behind. Raises StorageError, SchedulerError."""
        folder = Path(self.folder)
        with storage_errors(folder, "written"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_directory(folder)
            submission.set_timeout(0, self.max_num_timeout)
            # An earlier job of the run may be reading the pickle that this one replaces.
            write_atomically(folder / SUBMISSION_PICKLE, cloudpickle.dumps(submission))
            write_atomically(self.script_path, self._make_submission_file_text("", ""))
        self.submitted = self.client.submit(self.script_path)
        job_id = self.submitted.job_id
        ids = [job_id] if array is None else [id_of(job_id, task) for task in array]
        nodes = list(range(self.nodes))
        jobs: list[Job[Any]] = [self.job_class(folder, one, nodes) for one in ids]
        submission_file = jobs[0].paths.submission_file
        try:
            submission_file.symlink_to(os.path.relpath(self.script_path, submission_file.parent))
            for job in jobs:
                name_submission(job.paths.submitted_pickle)
        except OSError as error:
            # The job itself makes the names it needs; what is lost is a convenience.
            raise StorageError(
                f"job {job_id} is submitted, but {folder} cannot be written: {error.strerror}"
            ) from error
        return jobs
