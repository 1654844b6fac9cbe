"""What is done with a job that depends on where it runs, and the one place that chooses by kind.

Whoever submits, asks or cancels says so to a `Cluster` and does not ask which one it is. What a
cluster cannot do is a fact of it (`chains`), or an empty answer. A further kind of cluster is a
class with this protocol, and a line in `cluster_of`. No operation takes a bare number: a
`MarkedJob` says whose it is, and another job of that number is neither touched nor believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from fsdpkit.config.job import Resources
    from fsdpkit.scheduling.job_mark import MarkedJob
    from fsdpkit.scheduling.sbatch_answer import SbatchAnswer
    from fsdpkit.scheduling.slurm import Round
    from fsdpkit.scheduling.states import JobState


class Cluster(Protocol):
    """Whom to hand jobs to, and to ask about them."""

    elsewhere: ClassVar[bool]
    """Whether jobs run on other machines than this one."""
    chains: ClassVar[bool]
    """Whether a job can be queued to begin when another ends, however that ends."""
    ends_tasks: ClassVar[bool]
    """Whether one task of an array can be cancelled without the others."""
    gpus: ClassVar[bool]
    """Whether ranks have GPUs, so that there is something to plan for and to count."""
    notice: ClassVar[str | None]
    """What a person should know before a job goes there."""

    def check(self, resources: Resources, *, here: bool) -> None:
        """Refuse what cannot start there; here: on the machine that submits. Raises UsageError."""

    def submit(self, script: Path, extra: Sequence[str] = ()) -> SbatchAnswer:
        """Queue the job. Raises SchedulerError or StorageError."""

    def test(self, script: Path) -> str:
        """What it would say to the job, in its own words. Raises SchedulerError."""

    def states(
        self, jobs: Iterable[MarkedJob], asked: Round | None = None
    ) -> dict[MarkedJob, JobState]:
        """The state of each job or array task that it knows by its mark."""

    def details(self, job: MarkedJob, asked: Round) -> dict[str, str]:
        """What it has of a job besides, by Slurm's names; empty if there is nothing to say."""

    def name(self, asked: Round) -> str | None:
        """How it calls itself, where there can be another; None also if it does not say."""

    def receipt(self, job: MarkedJob) -> tuple[str | None, float | None]:
        """Of a job that was just submitted: `name`, and when that was, by its clock."""

    def find_by_comments(self, comments: Iterable[str], asked: Round) -> dict[str, str]:
        """The newest job with each comment, for submissions cut short."""

    def forgot(self, job: MarkedJob) -> bool:
        """Whether it answers that it knows no such job."""

    def has_any(self, number: str) -> bool:
        """Whether it has a job of this number, whoever's. True if it does not answer."""

    def confirm(self, job: MarkedJob) -> None:
        """Raise SchedulerError unless it knows the job, or the array of the task, by its mark."""

    def release(self, job: MarkedJob) -> None:
        """Let a job, or a task of it, go that is held. Raises SchedulerError, as `confirm`."""

    def cancel(self, job: MarkedJob) -> None:
        """End a job, or a task of it where `ends_tasks`. Raises SchedulerError, as `confirm`."""


def cluster_of(kind: str, name: str | None) -> Cluster:
    """The cluster that a profile or a run's record means by its kind and its name in Slurm."""
    if kind == "local":
        from fsdpkit.scheduling.local.client import LocalClient

        return LocalClient()
    from fsdpkit.scheduling.slurm import SlurmClient

    return SlurmClient(name)
