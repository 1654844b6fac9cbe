"""What tells a run's job from another that has, or is said to have, its number.

A number is Slurm's only within the life of one controller: two clusters with one home count each by
itself, and so does one that begins anew. And whoever can write to a directory of runs can write a
record, with any number in it. So nothing is done to a job by its number alone, nor is anything
believed of it: each operation of a `Cluster` takes a `MarkedJob` and compares (`JobTraits`).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.job_ids import each_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import JobRecord, RunRecord
from fsdpkit.scheduling.states import id_in, job_fields, parse_time

_SAME_S = 1.0
"""By how much two readings of one time of Slurm's differ: it keeps whole seconds."""


@dataclass(frozen=True)
class JobTraits:
    """What a scheduler says of the job that has a number. None: it did not say."""

    comment: str | None = None
    owner: int | None = None
    script: str | None = None
    """The batch script's path, or the whole command line that submitted it."""
    submit_s: float | None = None
    """Unix time by the cluster's clock; after a requeue that of the requeue."""
    cluster: str | None = None
    """The cluster's own name for itself."""


@dataclass(frozen=True)
class JobMark:
    """What a run's own job is known by. None: not on record."""

    comment: str
    """The comment that it was submitted with, which holds the run's id."""
    owner: int | None
    """The user number of its owner."""
    script: str | None = None
    """The end of its script's path, from the run's id on."""
    cluster: str | None = None
    """The name of the cluster that took it, as the cluster calls itself."""
    submit_s: float | None = None
    """When that was, by the cluster's clock."""
    here: Path | None = None
    """Where the state lies of a script that is a step of the job; the job itself is no run's."""

    @classmethod
    def of(cls, directory: Path, comment: str) -> JobMark:
        """Of a job whose records lie in `directory`, which is its owner's. Raises SchedulerError.
        An administrator acts on another's job so, too; whether they may is Slurm's to say. A link
        that somebody made to another's directory stands for neither's job."""
        try:
            owner, link = os.stat(directory).st_uid, os.lstat(directory).st_uid
        except OSError as error:
            raise SchedulerError(f"{directory}: {error.strerror}") from error
        if owner != link:
            raise SchedulerError(f"{directory} is a link of user {link} to what user {owner} owns")
        return cls(comment, owner)

    def submitted_then(self, traits: JobTraits) -> bool:
        """Whether the job was submitted when this one was; others may have been, elsewhere."""
        if self.submit_s is None or traits.submit_s is None:
            return False
        return abs(self.submit_s - traits.submit_s) <= _SAME_S

    def fits(self, traits: JobTraits) -> bool:
        """Whether the job is the marked one: by comment, or script, or cluster and time."""
        if traits.comment == self.comment:
            return True
        if self.script and traits.script and f"/{self.script}" in traits.script:
            return True
        here = self.cluster is not None and self.cluster == traits.cluster
        return here and self.submitted_then(traits)


@dataclass(frozen=True)
class MarkedJob:
    """A job, or an array task (`12_3`), of a run, with what it is known by."""

    id: str
    mark: JobMark

    def refuse_another(self, traits: JobTraits) -> None:
        """Raise SchedulerError if what has this job's number is, or may be, another job."""
        if self.mark.fits(traits) and traits.owner is not None and traits.owner == self.mark.owner:
            return
        raise SchedulerError(
            f"job {self.id} is not the one that the record means: {self.differences(traits)}; "
            "nothing was done to it"
        )

    def differences(self, traits: JobTraits) -> str:
        """How the job of this number differs from the marked one, for a person."""
        told = []
        if traits.comment != self.mark.comment:
            its = (traits.comment or "")[:200]
            told.append(f"its comment is {its!r}, not {self.mark.comment!r}")
        if traits.owner is not None and traits.owner != self.mark.owner:
            told.append(f"its owner is user {traits.owner}, not user {self.mark.owner}")
        if not told:
            told.append("whose it is was not said")
        return "; ".join([*told, *filter(None, [self.belongs()])])

    def belongs(self) -> str | None:
        """Where and when the marked job was submitted, as far as that is on record."""
        if self.mark.cluster is None:
            return None
        when = ""
        if self.mark.submit_s is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.mark.submit_s))
            when = f" at {at}"
        return f"the run's job {self.id} was submitted to cluster {self.mark.cluster}{when}"


# The marks of a run's jobs


def comment(record: RunRecord) -> str:
    """What marks the run's jobs in Slurm."""
    return f"fsdpkit:{record.id}"


def mark_of_job(directory: Path, record: RunRecord, job: JobRecord) -> JobMark:
    """The mark of one of the run's jobs. Raises SchedulerError, as `JobMark.of`."""
    found = JobMark.of(directory, comment(record))
    paths = RunPaths(directory)
    found = replace(found, cluster=job.slurm_cluster, submit_s=job.slurm_submit_s)
    if job.here:
        return replace(found, here=paths.here)
    return replace(found, script=f"{record.id}/{paths.script.name}")


def marked_jobs(directory: Path, record: RunRecord) -> dict[str, MarkedJob]:
    """The run's jobs and tasks by id, also those to be left alone: to look at, without an owner."""
    found: dict[str, MarkedJob] = {}
    for job in record.jobs:
        try:
            mark = mark_of_job(directory, record, job)
        except SchedulerError:
            here = RunPaths(directory).here if job.here else None
            times = job.slurm_cluster, job.slurm_submit_s
            mark = JobMark(comment(record), None, None, *times, here=here)
        found |= {job_id: MarkedJob(job_id, mark) for job_id in job.job_ids}
    return found


# What Slurm's commands say. Free text comes last, and may hold what separates the columns.

TRAITS_FORMAT = "%U|%V|%o|%k"
"""Columns of squeue: owner, time of submission, script, comment."""
_SQUEUE_COLUMNS, _SACCT_COLUMNS = 7, 9
"""How many precede those of the traits in the formats of slurm.py."""
SACCT_TRAITS = "Cluster,SubmitLine,Comment"


def traits_in(columns: str) -> JobTraits:
    """What `squeue -o TRAITS_FORMAT` printed of a job; empty if it is cut short."""
    owner, submitted, text = [*columns.split("|", 2), "", ""][:3]
    script, bar, its_comment = text.rpartition("|")
    if not bar or not owner.strip().isdecimal():
        return JobTraits()
    return JobTraits(its_comment.strip(), int(owner), script.strip(), parse_time(submitted))


def squeue_traits(text: str) -> dict[str, JobTraits]:
    """By job id, of `squeue -o SQUEUE_FORMAT`, whose last columns they are."""
    rows = (line.split("|", _SQUEUE_COLUMNS) for line in text.splitlines())
    return {row[0].strip(): traits_in(row[-1]) for row in rows if len(row) > _SQUEUE_COLUMNS}


def sacct_traits(text: str) -> dict[str, JobTraits]:
    """By job id, of `sacct -o SACCT_FORMAT`; of duplicates the last line counts."""
    found: dict[str, JobTraits] = {}
    for row in (line.split("|", _SACCT_COLUMNS + 1) for line in text.splitlines()):
        if len(row) < _SACCT_COLUMNS + 2:
            continue
        script, _, its_comment = row[-1].rpartition("|")
        traits = JobTraits(
            its_comment.strip(), None, script.strip(), parse_time(row[6]), row[-2].strip() or None
        )
        found |= dict.fromkeys(each_of(row[0].strip()), traits)
    return found


def scontrol_traits(text: str) -> dict[str, JobTraits]:
    """By job id, of `scontrol show job -o`."""
    found: dict[str, JobTraits] = {}
    for line in text.splitlines():
        fields = job_fields(line)
        _, _, tail = line.partition(" Command=")
        script, _, rest = tail.partition(" WorkDir=")
        its_comment = re.findall(r"(?<!\S)Comment=(\S*)", rest)
        owner = re.fullmatch(r".*\((\d+)\)", fields.get("UserId", ""))
        traits = JobTraits(
            its_comment[-1] if its_comment else None,
            int(owner[1]) if owner else None,
            script or None,
            parse_time(fields.get("SubmitTime", "")),
        )
        found |= dict.fromkeys(each_of(id_in(fields)), traits)
    return found
