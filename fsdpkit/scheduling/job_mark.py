"""What tells a run's job from another that has, or is said to have, its number.

Whoever can write to a directory of runs can write a record, with any number in it; so nothing is
done to a job by its number alone. `Cluster.cancel` and its like take the mark, too, and compare.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import SchedulerError


@dataclass(frozen=True)
class JobMark:
    """The comment that the job was submitted with, and the user number of its owner."""

    comment: str
    owner: int

    @classmethod
    def of(cls, directory: Path, comment: str) -> JobMark:
        """Of a job whose records lie in `directory`, which is its owner's. Raises SchedulerError.

        An administrator acts on another's job so, too; whether they may is Slurm's to say. A link
        that somebody made to another's directory stands for neither's job.
        """
        try:
            owner, link = os.stat(directory).st_uid, os.lstat(directory).st_uid
        except OSError as error:
            raise SchedulerError(f"{directory}: {error.strerror}") from error
        if owner != link:
            raise SchedulerError(f"{directory} is a link of user {link} to what user {owner} owns")
        return cls(comment, owner)

    def refuse_another(self, job_id: str, comment: str, owner: int) -> None:
        """Raise SchedulerError for a job with this comment and owner that is not the marked one."""
        if (comment, owner) != (self.comment, self.owner):
            raise SchedulerError(
                f"job {job_id} is not the one that the record means: its comment is "
                f"{comment[:200]!r} and its owner user {owner}, instead of {self.comment!r} and "
                f"user {self.owner}; nothing was done to it"
            )
