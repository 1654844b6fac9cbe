"""What runs used, gathered for `usage`: from their directories, or from what a group's runs share.

Each is read by itself, and what cannot be read or believed is counted by the reason. Jobs that are
nobody's run are known to Slurm's accounting alone, which has no more of them than their hours.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fsdpkit.bounded import LISTED_BYTES, LISTED_TASKS, NOTE_BYTES
from fsdpkit.config.ownership import name_of
from fsdpkit.errors import FsdpkitError, NotFoundError, storage_errors
from fsdpkit.runs import outcomes
from fsdpkit.runs.accounting import read_or_make
from fsdpkit.runs.job_ids import id_of, job_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.shared_record import read_all, spent_of
from fsdpkit.runs.store import looked_at, names_in
from fsdpkit.runs.tally import Spent, week_of, wrong_in
from fsdpkit.scheduling.run_states import Standing, seen_jobs, standings
from fsdpkit.scheduling.slurm import Round, SlurmClient


class _Resources(msgspec.Struct, frozen=True):
    account: str | None = None
    partition: str | None = None


class _Job(msgspec.Struct, frozen=True):
    """The little of `job.json` that is counted by."""

    resources: _Resources = _Resources()


@dataclass(frozen=True)
class OtherJobs:
    """Jobs that are no run that is known here."""

    by: dict[str, str | None]
    """Only their `week` and `project` are known."""
    gpu_hours: float
    starts: int
    """Of jobs; one that was queued again has several."""
    of_fsdpkit: bool
    """Whether they are of runs whose directories are elsewhere, or gone."""


@dataclass
class Gathered:
    """What is known once all has been gathered."""

    since_s: float = 0.0
    """Attempts that began before do not count."""
    now_s: float = 0.0
    lacking: list[str] = field(default_factory=list)
    """For each run, record or attempt that does not count, why."""
    jobs: set[str] = field(default_factory=set)
    """Slurm's numbers of all runs, also of earlier ones."""

    def below(self, top: Path) -> Iterator[Spent]:
        """Of all runs in a directory of runs. Raises StorageError if it cannot be read."""
        open_: list[tuple[RunPaths, RunRecord]] = []
        for seen in looked_at(lambda name: self._look(top / name), names_in(top)):
            if isinstance(seen, tuple):
                open_.append(seen)
            else:
                yield from seen or ()
        for (paths, _), standing in zip(open_, standings(open_), strict=True):
            yield from self.of_run(paths, standing)

    def _look(self, directory: Path) -> list[Spent] | tuple[RunPaths, RunRecord] | None:
        """Of a run that has ended; any other itself, to be asked for."""
        paths = RunPaths(directory)
        try:
            record = load(directory, most=LISTED_BYTES)
        except NotFoundError:
            return None
        except FsdpkitError:
            if os.path.lexists(paths.record):
                self.lacking.append("a run whose record cannot be read")
            return None
        self.jobs |= {job.job_id for job in record.jobs if job.job_id is not None}
        if sum(len(job.array or []) for job in record.jobs) > LISTED_TASKS:
            self.lacking.append(f"an array of more than {LISTED_TASKS:,} tasks: name it")
            return None
        if record.resuming or any(job.ended is None for job in record.jobs):
            return paths, record
        ends = (state.get("end_s") for job in record.jobs for state in (job.ended or {}).values())
        known = [end_s if isinstance(end_s, int | float) else self.now_s for end_s in ends]
        if max(known, default=self.now_s) < self.since_s:
            return None
        return list(self.of_run(paths, *standings([(paths, record)])))

    def of_run(self, paths: RunPaths, standing: Standing) -> Iterator[Spent]:
        """Of all attempts of a run, whatever is in its directory."""
        try:
            yield from self._of_run(paths, standing)
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError, FsdpkitError):
            self.lacking.append("a run whose files cannot be read")

    def _of_run(self, paths: RunPaths, standing: Standing) -> Iterator[Spent]:
        record, states = standing.record, standing.states
        asked = (record_in(paths.job, _Job) or _Job()).resources
        user = os.stat(paths.dir).st_uid
        words = {
            "project": asked.account,
            "name": record.name,
            "run": record.id,
            "user": name_of(user),
            "partition": asked.partition,
            "fsdpkit": record.version,
            "version": record.template,
            "site": record.site,
        }
        seen = seen_jobs(states)
        for task in [None] if record.array is None else paths.array_tasks():
            accounts = read_or_make(paths, record, task, seen, self.now_s)
            newest = states.get(id_of(record.job_id, task)) if record.job_id else None
            for account in accounts:
                attempt = paths.task(task).attempt(account.attempt)
                ending = outcomes.read(attempt.ending, outcomes.Ending, NOTE_BYTES)
                cause = ending.cause if ending else None
                if cause is None and account is accounts[-1] and newest and newest.over:
                    cause = "done" if newest.succeeded else newest.word.lower()
                held = (record.on, record.holds)
                if (why := wrong_in(account, self.now_s)) is not None:
                    self.lacking.append(f"an attempt: {why}")
                elif account.began_s >= self.since_s:
                    yield Spent(account, record.id, user, task, words, cause, *held)

    def shared_in(self, folder: Path) -> Iterator[Spent]:
        """Of the records in a folder that runs share theirs with. Raises StorageError."""
        with storage_errors(folder, "read"):
            for owner, record in read_all(folder):
                if isinstance(record, str):
                    self.lacking.append(f"a record: {record}")
                    continue
                for one in spent_of(owner, record, self.now_s):
                    if isinstance(one, str):
                        self.lacking.append(one)
                    elif one.account.began_s >= self.since_s:
                        yield one

    def unknown_jobs(self, by: Sequence[str], asked: Round) -> list[OtherJobs]:
        """This user's jobs that are none of these runs'. `asked` says if accounting does not."""
        sums: defaultdict[tuple[bool, tuple[str | None, ...]], list[float]] = defaultdict(list)
        for job in SlurmClient().granted(self.since_s, asked):
            if job_of(job.job_id) not in self.jobs:
                known = {"week": week_of(job.began_s), "project": job.account}
                key = job.comment.startswith("fsdpkit:"), tuple(map(known.get, by))
                sums[key].append(job.gpu_hours)
        return [
            OtherJobs(dict(zip(by, words, strict=True)), sum(hours), len(hours), own)
            for (own, words), hours in sorted(sums.items(), key=lambda item: str(item[0]))
        ]
