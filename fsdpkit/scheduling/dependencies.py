"""What a job is to wait for (`submit --after`): runs, and jobs of Slurm's that are no run.

A run's job is named in the script only once the scheduler knows it as the run's own: what has its
number otherwise is another job, on another cluster or of another time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import NotFoundError, SchedulerError, UsageError
from fsdpkit.rendering.script import Dependency
from fsdpkit.runs.job_ids import ONE
from fsdpkit.scheduling.cluster import Cluster, cluster_of
from fsdpkit.scheduling.opened import OpenRun

KINDS = {
    "afterok": "has succeeded",
    "afterany": "is over, however it ended",
    "afternotok": "has failed",
    "aftercorr": "has succeeded in the same array task",
    "after": "has begun",
    "singleton": "no job of its name runs any more",
}
"""By sbatch's word, when the job may start (sbatch(1), --dependency)."""


def dependencies(
    text: str, site: LoadedSite, runs: str | os.PathLike[str] | None, array: str | None
) -> tuple[Dependency, ...]:
    """Of `RUN`, or of `KIND:RUN` with a run or the number of a job, several with commas between.
    Raises NotFoundError for what is neither, UsageError for what the cluster cannot do."""
    found = tuple(_one(word.strip(), site, runs) for word in text.split(","))
    profile = site.profile
    afterok = len(found) == 1 and found[0].kind == "afterok" and found[0].run_dir is not None
    if not cluster_of(profile.kind, profile.slurm_clusters).chains and not afterok:
        raise UsageError(f"--after {text}: {site.id} knows only one run, that has to succeed")
    if array is None and any(one.kind == "aftercorr" for one in found):
        raise UsageError(f"--after {text}: aftercorr joins array tasks to array tasks: add --array")
    return found


def _one(word: str, site: LoadedSite, runs: str | os.PathLike[str] | None) -> Dependency:
    if word == "singleton":
        return Dependency(word)
    kind, colon, name = word.partition(":")
    if not colon or kind not in KINDS:
        kind, name = "afterok", word
    try:
        run = OpenRun.open(name, runs=runs)
    except NotFoundError:
        if re.fullmatch(ONE, name):
            return Dependency(kind, name)
        if kind not in word and re.match("[a-z]+:", word):
            raise UsageError(f"--after {word}: {', '.join(KINDS)} are the kinds") from None
        raise
    if run.record.job_id is None:
        raise UsageError(f"--after {word}: that run was never confirmed as submitted")
    if (run.record.kind, run.record.site) != (site.profile.kind, site.id):
        raise UsageError(
            f"--after {word}: that run is on {run.record.site}, this one goes to {site.id}; a job "
            "can depend only on one of the same cluster"
        )
    return Dependency(kind, run.record.job_id, run.dir)


def confirm(waits: Sequence[Dependency], client: Cluster) -> None:
    """Raise SchedulerError for a run whose job the scheduler does not have as the run's own, and
    UsageError if that is because it is over, or for a number that no job has: Slurm takes it, and
    what it then makes of it differs from one release to the next."""
    for one in waits:
        if one.job_id is None:
            continue
        if one.run_dir is None:
            if not client.has_any(one.job_id):
                raise UsageError(
                    f"--after {one.job_id}: the scheduler knows no such job (any more), and there "
                    "is no such run"
                )
            continue
        run = OpenRun.open(one.run_dir)
        try:
            run.client().confirm(run.marked(one.job_id))
        except SchedulerError as error:
            state = run.state()
            if state is None or not state.over:
                raise
            raise UsageError(
                f"--after {run.id}: that run is over ({state.describe()}), and the scheduler has "
                "forgotten its job: submit without --after"
            ) from error
