"""The Slurm client: runs sbatch, squeue, sacct, scontrol and scancel, reads their plain text.

Every command is an argument list (no shell), has a time limit, and gets an environment without
what a surrounding allocation left in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.job_ids import ONE, job_of
from fsdpkit.scheduling.answers import call, checked_id, parents_of
from fsdpkit.scheduling.job_mark import (
    SACCT_TRAITS,
    TRAITS_FORMAT,
    JobTraits,
    MarkedJob,
    sacct_traits,
    scontrol_traits,
    squeue_traits,
    traits_in,
)
from fsdpkit.scheduling.refusals import refusal, remedy_for
from fsdpkit.scheduling.sbatch_answer import SbatchAnswer, last_words, parse_sbatch
from fsdpkit.scheduling.slurm_answers import answers_of
from fsdpkit.scheduling.states import (
    GRANTED_FORMAT,
    GrantedJob,
    JobState,
    by_name,
    decided,
    job_fields,
    parse_granted,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_steps,
)

if TYPE_CHECKING:
    from fsdpkit.config.job import Resources

SQUEUE_FORMAT = f"%i|%T|%r|%N|%V|%S|%e|{TRAITS_FORMAT}"
SACCT_FORMAT = (
    f"JobID,State,ExitCode,DerivedExitCode,Reason,NodeList,Submit,Start,End,{SACCT_TRAITS}"
)
_QUERY_TIMEOUT_S = 20.0
_CONTROLLER_TIMEOUT_S = 12.0
"""Of a round of questions; Slurm's commands themselves try for twice MessageTimeout."""
_RECEIPT_S = 5.0
_SINGLY = 5
"""More jobs than this are not asked for one by one where a command takes only one."""


class Round:
    """One round of questions: they share a time limit, and what was silent once is not asked again.
    `unread` says of each source that gave no answer why, for a person."""

    def __init__(self, limit_s: float = _QUERY_TIMEOUT_S) -> None:
        self._deadline = time.monotonic() + limit_s
        self.silent: set[str] = set()
        """Daemons that did not answer: `slurmctld`, `slurmdbd`."""
        self.answered = True
        """False: a source was silent that may know more (accounting that is off does not)."""
        self.unread: list[str] = []
        self.strangers: dict[MarkedJob, JobTraits] = {}
        """What has the number of a job that was asked for, and is another."""

    def left_s(self, daemon: str) -> float:
        """Seconds for the next question, so that slurmctld leaves some to slurmdbd."""
        left_s = max(0.1, self._deadline - time.monotonic())
        return min(left_s, _CONTROLLER_TIMEOUT_S) if daemon == "slurmctld" else left_s

    def missed(self, daemon: str, why: str, *, silent: bool = True) -> None:
        if silent:
            self.silent.add(daemon)
        self.answered = self.answered and "accounting storage is disabled" in why
        if why not in self.unread:
            self.unread.append(why)


@dataclass(frozen=True)
class SlurmClient:
    """Asks one cluster (`sbatch -M cluster` where it has a name)."""

    cluster: str | None = None
    submit_timeout_s: float = 120.0
    elsewhere: ClassVar[bool] = True
    chains: ClassVar[bool] = True
    ends_tasks: ClassVar[bool] = True
    gpus: ClassVar[bool] = True
    notice: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if self.cluster is not None and not _CLUSTERS.fullmatch(self.cluster):
            raise SchedulerError(f"{self.cluster[:80]!r} is not a cluster name")

    def check(self, resources: Resources, *, here: bool) -> None:
        """Nothing: the profile's limits are checked for every site, and sbatch knows the rest."""

    def submit(self, script: Path, extra: Sequence[str] = ()) -> SbatchAnswer:
        """Hand `script` to sbatch. Raises SchedulerError with sbatch's words and the remedy.

        Raises SubmissionUnconfirmed where nobody knows whether Slurm took the job: sbatch did not
        answer in time, lost slurmctld after it had asked, or names no job although it took one.
        """
        # As an option: a job that inherits the variable asks accounting where its own cluster is.
        clusters = os.environ.get("SLURM_CLUSTERS")
        where = self._cluster_flag() or ([f"--clusters={clusters}"] if clusters else [])
        argv = ["sbatch", "--parsable", *where, *extra, os.path.abspath(script)]
        try:
            done = call(argv, self.submit_timeout_s, {"SLURM_CLUSTERS": None})
        except subprocess.TimeoutExpired as error:
            raise SubmissionUnconfirmed(
                f"sbatch has not answered within {self.submit_timeout_s:.0f} s{last_words(error)}"
            ) from error
        submitted = parse_sbatch(done.stdout)
        if done.returncode != 0:
            if submitted is not None or _LOST_AFTER_ASKING.search(done.stderr):
                told = (done.stderr.strip() or done.stdout.strip()).removeprefix("sbatch: error: ")
                raise SubmissionUnconfirmed(f"sbatch exited with status {done.returncode}: {told}")
            raise SchedulerError(refusal("sbatch", done))
        if submitted is None:
            raise SubmissionUnconfirmed(
                f"sbatch answered without one job id: {done.stdout.strip()!r}"
            )
        return SbatchAnswer(submitted.job_id, submitted.cluster or self.cluster)

    def test(self, script: Path) -> str:
        """`sbatch --test-only`: Slurm's estimate in its own words. Raises SchedulerError."""
        argv = ["sbatch", "--test-only", *self._cluster_flag(), os.path.abspath(script)]
        try:
            done = call(argv, self.submit_timeout_s, {"SLURM_TIME_FORMAT": "standard"})
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"sbatch --test-only has not answered within {self.submit_timeout_s:.0f} s"
            ) from error
        if done.returncode != 0:
            raise SchedulerError(refusal("sbatch --test-only", done))
        return (done.stderr.strip() or done.stdout.strip()).removeprefix("sbatch: ")

    def states(
        self, jobs: Iterable[MarkedJob], asked: Round | None = None
    ) -> dict[MarkedJob, JobState]:
        """The state of each job, or array task: squeue, then sacct, then scontrol.

        A job that no source knows by its mark is absent; `asked` then says if another has its
        number. Never raises: a source that does not answer is passed over (`asked` says which), and
        what nobody answered for stays unknown.
        """
        asked = asked or Round()
        wanted = [job for job in dict.fromkeys(jobs) if re.fullmatch(ONE, job.id)]
        found: dict[MarkedJob, JobState] = {}
        for owner in dict.fromkeys(job.mark.owner for job in wanted):
            self._states([job for job in wanted if job.mark.owner == owner], owner, found, asked)
        for job in [job for job in wanted if job.mark.here is not None]:
            from fsdpkit.scheduling.here.state import state_here

            if (state := state_here(job, found.pop(job, None), self.cluster)) is not None:
                found[job] = state
        return found

    def _states(
        self,
        wanted: Sequence[MarkedJob],
        owner: int | None,
        found: dict[MarkedJob, JobState],
        asked: Round,
    ) -> None:
        """One user's: for several jobs slurmctld else sends squeue the table of all users' jobs."""
        parents = parents_of(job.id for job in wanted)
        flags = ["-h", "-r", "-o", SQUEUE_FORMAT, "-t", "all", "-j", parents]
        flags += ["-u", str(owner)] if owner is not None and "," in parents else []
        queue = self._ask(["squeue", *self._cluster_flag(), *flags], asked)
        self._take(wanted, parse_squeue(queue or ""), squeue_traits(queue or ""), found, asked)
        # squeue knows a job sooner; of its end only the others know the exit code.
        ended = [j for j in wanted if j not in found or found[j].phase in ("ended", "unknown")]
        if ended:
            flags = ["-n", "-P", "-X", "-o", SACCT_FORMAT, "-j", parents_of(j.id for j in ended)]
            answer = self._ask(["sacct", *self._cluster_flag(), *flags], asked) or ""
            accounted = self._without_stale_codes(parse_sacct(answer), asked)
            named = {job_id: by_name(state) for job_id, state in accounted.items()}
            self._take(ended, named, sacct_traits(answer), found, asked)
        # Where squeue answered, slurmctld knows no job but those.
        lacking = [j for j in wanted if _lacks_exit_code(found.get(j), unknown=queue is None)]
        self._from_controller(lacking, found, asked)
        for job in found.keys() & asked.strangers.keys():
            del asked.strangers[job]

    def _take(
        self,
        wanted: Iterable[MarkedJob],
        states: Mapping[str, JobState],
        traits: Mapping[str, JobTraits],
        found: dict[MarkedJob, JobState],
        asked: Round,
    ) -> None:
        """Add what one source says of the jobs that it means by these numbers."""
        for job in wanted:
            if job.id not in states:
                continue
            if self._means(job, seen := traits.get(job.id, JobTraits()), asked):
                found[job] = decided(found.get(job), states[job.id])
            else:
                asked.strangers.setdefault(job, seen)

    def _means(self, job: MarkedJob, traits: JobTraits, asked: Round) -> bool:
        return job.mark.fits(self._placed(job, traits, asked))

    def _placed(self, job: MarkedJob, traits: JobTraits, asked: Round) -> JobTraits:
        """With the cluster's name, where it may decide."""
        if traits.cluster is None and job.mark.cluster and job.mark.submitted_then(traits):
            return replace(traits, cluster=self.name(asked))
        return traits

    def _without_stale_codes(
        self, states: dict[str, JobState], asked: Round
    ) -> dict[str, JobState]:
        """Slurm's derived exit code is the highest of all attempts: a step that preemption ended
        still counts after an attempt that went well. The last attempt's is read from its steps."""
        doubtful = [i for i, state in states.items() if state.phase == "ended" and state.derived]
        if not doubtful:
            return states
        flags = ["-n", "-P", "-o", "JobID,ExitCode,JobName", "-j", parents_of(doubtful)]
        steps = parse_steps(self._ask(["sacct", *self._cluster_flag(), *flags], asked) or "")
        fresh = {
            job_id: replace(states[job_id], derived_exit_code=code, derived_exit_signal=signal)
            for job_id, (code, signal) in steps.items()
            if job_id in doubtful
        }
        return states | fresh

    def _from_controller(
        self, jobs: Sequence[MarkedJob], found: dict[MarkedJob, JobState], asked: Round
    ) -> None:
        """`scontrol show job` takes one job, or shows all."""
        parents = [parent for parent in parents_of(job.id for job in jobs).split(",") if parent]
        for words in [[]] if len(parents) > _SINGLY else [[parent] for parent in parents]:
            argv = ["scontrol", *self._cluster_flag(), "show", "job", "-o", *words]
            text = self._ask(argv, asked) or ""
            self._take(jobs, parse_scontrol(text), scontrol_traits(text), found, asked)

    def details(self, job: MarkedJob, asked: Round) -> dict[str, str]:
        """What slurmctld has of a job or array task, by Slurm's names; empty if it does not say,
        or if another has its number."""
        argv = ["scontrol", *self._cluster_flag(), "show", "job", "-o", checked_id(job.id)]
        for line in (self._ask(argv, asked) or "").splitlines()[:1]:
            for seen in scontrol_traits(line).values():
                if self._means(job, seen, asked):
                    return job_fields(line)
                asked.strangers[job] = seen
        return {}

    def name(self, asked: Round) -> str | None:
        """How the cluster calls itself (`ClusterName`); None if it does not say."""
        if self.cluster is not None and "," not in self.cluster:
            return self.cluster
        if "slurmctld" in asked.silent:
            return None
        name = answers_of(self.cluster).settings().get("ClusterName", "")
        return name if re.fullmatch(r"[\w.-]{1,127}", name, re.ASCII) else None

    def receipt(self, job: MarkedJob) -> tuple[str | None, float | None]:
        """What to keep of a job that was just submitted: its cluster's name for itself, and when
        that was, by its clock. None: it does not say."""
        asked = Round(_RECEIPT_S)
        argv = ["squeue", *self._cluster_flag(), "-h", "-t", "all", "-o", TRAITS_FORMAT]
        lines = (self._ask([*argv, "-j", parents_of([job.id])], asked) or "").splitlines()
        seen = [one for one in map(traits_in, lines) if one.comment == job.mark.comment]
        return self.name(asked), seen[0].submit_s if seen else None

    def pending(self, asked: Round) -> list[tuple[str, str, str]]:
        """Id (`12_[0-3]` of waiting tasks), comment and exclusions of this user's queued jobs."""
        argv = ["squeue", *self._cluster_flag(), "-u", str(os.getuid()), "-ht", "PD"]
        lines = (self._ask([*argv, "-o", "%i|%x|%k"], asked) or "").splitlines()
        rows = (line.split("|") for line in lines)
        return [
            (re.sub(r"%\d+", "", row[0].strip()), row[2].strip(), row[1].strip())
            for row in rows
            if len(row) == 3
        ]

    def granted(self, since_s: float, asked: Round) -> list[GrantedJob]:
        """The GPUs of this user's jobs that began since then; `asked` says if nobody answered."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s))
        flags = ["-n", "-P", "-X", "-D", "-u", str(os.getuid()), "-S", since, "-o", GRANTED_FORMAT]
        answer = self._ask(["sacct", *self._cluster_flag(), *flags], asked) or ""
        return [job for job in parse_granted(answer) if job.began_s >= since_s]

    def exclude(self, job: MarkedJob, nodes: Sequence[str]) -> None:
        """Let a queued job exclude these nodes and no others. Raises SchedulerError, as `confirm`.
        Its id may name those of its tasks that wait: `12_[0-3]`."""
        if not _QUEUED.fullmatch(job.id):
            raise SchedulerError(f"{job.id[:80]!r} is not a job id")
        self.confirm(replace(job, id=job_of(job.id)))
        self._do("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={','.join(nodes)}")

    def find_by_comments(self, comments: Iterable[str], asked: Round) -> dict[str, str]:
        """The id of the newest job with each comment; for submissions cut short."""
        own = ["-u", str(os.getuid()), "-h", "-t", "all", "-o", "%F|%k"]
        argv = ["squeue", *self._cluster_flag(), *own]
        wanted, found = set(comments), dict[str, str]()
        for line in (self._ask(argv, asked) or "").splitlines():
            job_id, _, comment = (part.strip() for part in line.partition("|"))
            if comment in wanted and job_id.isdecimal():
                found[comment] = max(job_id, found.get(comment, "0"), key=int)
        return found

    def forgot(self, job: MarkedJob) -> bool:
        """Whether Slurm's queue answers and has no such job; False if it does not answer."""
        checked_id(job.id)
        try:
            seen = self._seen(job.id)
        except SchedulerError:
            return False
        return not any(self._means(job, one, Round()) for one in seen)

    def has_any(self, number: str) -> bool:
        """Whether squeue has a job of this number, whoever's; True if it does not answer."""
        try:
            return bool(self._seen(number))
        except SchedulerError:
            return True

    def confirm(self, job: MarkedJob) -> None:
        """Raise SchedulerError unless squeue knows the job, or its array, by its mark."""
        asked = Round()
        if not (seen := self._seen(job.id)):
            here = self.name(asked) if job.mark.cluster else None
            if here != job.mark.cluster:
                other = f"cluster {here}" if here else "a cluster that does not say its name"
                raise SchedulerError(f"{job.belongs()}, this is {other}; nothing was done to it")
            raise SchedulerError(f"squeue knows no job {job.id}: it is over")
        for one in seen:
            job.refuse_another(self._placed(job, one, asked))

    def _seen(self, number: str) -> set[JobTraits]:
        """What squeue says of the job of this number. Raises SchedulerError where it fails."""
        argv = ["squeue", *self._cluster_flag(), "-h", "-t", "all", "-o", TRAITS_FORMAT]
        asked = Round()
        text = self._ask([*argv, "-j", parents_of([number])], asked) or ""
        if asked.unread:
            why = asked.unread[0]
            raise SchedulerError("\n".join([why, *filter(None, [remedy_for(why)])]))
        return {traits_in(line) for line in text.splitlines() if "|" in line}

    def release(self, job: MarkedJob) -> None:
        """Release a held job. Raises SchedulerError, as where only an administrator may."""
        self.confirm(job)
        self._do("scontrol", "release", checked_id(job.id))

    def cancel(self, job: MarkedJob) -> None:
        """scancel; no error if the job is over already. Raises SchedulerError."""
        if job.mark.here is not None:
            from fsdpkit.scheduling.here.state import end_here, request_end

            request_end(job.mark.here)
            self.confirm(job)
            end_here(job, job.mark.here, self.cluster)
        else:
            self.confirm(job)
            self._do("scancel", checked_id(job.id), fine="already completing or completed")

    def _do(self, command: str, *words: str, fine: str | None = None) -> None:
        """Change a job; `fine`: what may be answered instead. Raises SchedulerError."""
        what = " ".join([command, *words[:1]])
        try:
            done = call([command, *self._cluster_flag(), *words], _QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(f"{what} has not answered") from error
        if done.returncode != 0 and not (fine and fine in done.stderr):
            raise SchedulerError(refusal(what, done))

    def _cluster_flag(self) -> list[str]:
        return ["-M", self.cluster] if self.cluster else []

    def _ask(self, argv: list[str], asked: Round) -> str | None:
        """What the command printed; None if it gave no answer, which `asked` then knows."""
        command, daemon = argv[0], "slurmdbd" if argv[0] == "sacct" else "slurmctld"
        if daemon in asked.silent:
            return None
        limit_s = asked.left_s(daemon)
        try:
            # Seconds since 1970, whatever the person likes to read.
            done = call(argv, limit_s, {"SLURM_TIME_FORMAT": "%s"})
        except subprocess.TimeoutExpired:
            asked.missed(daemon, f"{command} has not answered within {limit_s:.0f} s")
            return None
        except SchedulerError as error:
            asked.missed(daemon, str(error).partition(":")[0])
            return None
        if done.returncode == 0:
            return done.stdout
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if "Invalid job id" not in words:  # that is an answer
            why = f"{command}: {words.removeprefix(f'{command}: ').removeprefix('error: ')}"
            asked.missed(daemon, why, silent=bool(_NO_CONTACT.search(words)))
        return None


class SubmissionUnconfirmed(SchedulerError):
    """sbatch was called, and whether Slurm took the job is not known."""


# Of slurm_errno.c, what a client says when slurmctld may have read the request, but the answer did
# not come: it goes through the request as soon as it can.
_LOST_AFTER_ASKING = re.compile(
    r"Socket timed out|Zero Bytes were transmitted|receive failure|shutdown failure"
    r"|Connection reset|Broken pipe",
    re.IGNORECASE,
)
_NO_CONTACT = re.compile(r"Unable to contact|timed out|Connection refused|connect", re.IGNORECASE)


_QUEUED = re.compile(r"[0-9]+(_([0-9]+|\[[0-9,:-]+\]))?", re.ASCII)
_CLUSTERS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", re.ASCII)


def _lacks_exit_code(state: JobState | None, *, unknown: bool) -> bool:
    return unknown if state is None else state.phase == "ended" and state.exit_code is None
