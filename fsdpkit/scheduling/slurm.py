"""The Slurm client: runs sbatch, squeue, sacct, scontrol and scancel, reads their plain text.

Every command is an argument list (no shell), has a time limit, and gets an environment without
what a surrounding allocation left in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.exclusions import SINFO_FORMAT
from fsdpkit.runs.job_ids import ONE, job_of
from fsdpkit.scheduling.answers import call
from fsdpkit.scheduling.refusals import refusal
from fsdpkit.scheduling.states import (
    JobState,
    decided,
    job_fields,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_steps,
)

if TYPE_CHECKING:
    from fsdpkit.config.job import Resources
    from fsdpkit.scheduling.job_mark import JobMark

SQUEUE_FORMAT = "%i|%T|%r|%N|%V|%S|%e"
SACCT_FORMAT = "JobID,State,ExitCode,DerivedExitCode,Reason,NodeList,Submit,Start,End"
_QUERY_TIMEOUT_S = 20.0
_CONTROLLER_TIMEOUT_S = 12.0
"""Of a round of questions; Slurm's commands themselves try for twice MessageTimeout."""
_SINGLY = 5
"""More jobs than this are not asked for one by one where a command takes only one."""


@dataclass(frozen=True)
class SbatchAnswer:
    """sbatch's answer."""

    job_id: str
    cluster: str | None


def parse_sbatch(text: str) -> SbatchAnswer | None:
    """The job in sbatch's output: a line of `--parsable`, else a wrapper's usual sentence.

    Lines that a site prints around it ("this job 2 nodes charged…") are not mistaken for it. None
    if there is no such line, or if several differ: one of them may count something else.
    """
    lines = [line.strip() for line in text.splitlines()]
    for form in (_PARSABLE, _SENTENCE):
        found = {SbatchAnswer(m[1], m[2]) for line in lines if (m := form.fullmatch(line))}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


_PARSABLE = re.compile(r"(\d+)(?:;(\S+))?", re.ASCII)
_SENTENCE = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?", re.ASCII)


class Round:
    """One round of questions: they share a time limit, and what was silent once is not asked again.

    `unread` says of each source that gave no answer why, for a person.
    """

    def __init__(self, limit_s: float = _QUERY_TIMEOUT_S) -> None:
        self._deadline = time.monotonic() + limit_s
        self.silent: set[str] = set()
        """Daemons that did not answer: `slurmctld`, `slurmdbd`."""
        self.answered = True
        """False: a source was silent that may know more (accounting that is off does not)."""
        self.unread: list[str] = []

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
                f"sbatch has not answered within {self.submit_timeout_s:.0f} s{_last_words(error)}"
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
            done = call(argv, self.submit_timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"sbatch --test-only has not answered within {self.submit_timeout_s:.0f} s"
            ) from error
        if done.returncode != 0:
            raise SchedulerError(refusal("sbatch --test-only", done))
        return (done.stderr.strip() or done.stdout.strip()).removeprefix("sbatch: ")

    def states(
        self, job_ids: Iterable[str], asked: Round | None = None, user: str | None = None
    ) -> dict[str, JobState]:
        """The state of each job (array tasks as `12_3`): squeue, then sacct, then scontrol.

        user: whose jobs they are, name or number. For several jobs slurmctld sends squeue the table
        of all users' jobs unless it asks for those of one user.
        A job that no source knows is absent. Never raises: a source that does not answer is
        passed over (`asked` then says which), and what nobody answered for stays unknown.
        """
        wanted = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
        if not wanted:
            return {}
        asked = asked or Round()
        parents = _parents(wanted)
        flags = ["-h", "-r", "-o", SQUEUE_FORMAT, "-t", "all", "-j", parents]
        flags += ["-u", user] if user is not None and "," in parents else []
        queue = self._ask(["squeue", *self._cluster_flag(), *flags], asked)
        found = parse_squeue(queue or "")
        # squeue knows a job sooner; of its end only the others know the exit code.
        ended = [j for j in wanted if j not in found or found[j].phase in ("ended", "unknown")]
        if ended:
            flags = ["-n", "-P", "-X", "-o", SACCT_FORMAT, "-j", _parents(ended)]
            answer = self._ask(["sacct", *self._cluster_flag(), *flags], asked)
            accounted = parse_sacct(answer or "")
            for job_id, state in self._without_stale_codes(accounted, asked).items():
                found[job_id] = decided(found.get(job_id), _by_name(state))
        # Where squeue answered, slurmctld knows no job but those.
        lacking = [j for j in wanted if _lacks_exit_code(found.get(j), unknown=queue is None)]
        for job_id, state in self._from_controller(lacking, asked).items():
            found[job_id] = decided(found.get(job_id), state)
        return {j: found[j] for j in wanted if j in found}

    def _without_stale_codes(
        self, states: dict[str, JobState], asked: Round
    ) -> dict[str, JobState]:
        """Slurm's derived exit code is the highest of all attempts: a step that preemption ended
        still counts after an attempt that went well. The last attempt's is read from its steps."""
        doubtful = [i for i, state in states.items() if state.phase == "ended" and state.derived]
        if not doubtful:
            return states
        flags = ["-n", "-P", "-o", "JobID,ExitCode,JobName", "-j", _parents(doubtful)]
        steps = parse_steps(self._ask(["sacct", *self._cluster_flag(), *flags], asked) or "")
        fresh = {
            job_id: replace(states[job_id], derived_exit_code=code, derived_exit_signal=signal)
            for job_id, (code, signal) in steps.items()
            if job_id in doubtful
        }
        return states | fresh

    def _from_controller(self, job_ids: Sequence[str], asked: Round) -> dict[str, JobState]:
        """`scontrol show job` takes one job, or shows all."""
        parents = [parent for parent in _parents(job_ids).split(",") if parent]
        found: dict[str, JobState] = {}
        for words in [[]] if len(parents) > _SINGLY else [[parent] for parent in parents]:
            argv = ["scontrol", *self._cluster_flag(), "show", "job", "-o", *words]
            found |= parse_scontrol(self._ask(argv, asked) or "")
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def details(self, job_id: str, asked: Round) -> dict[str, str]:
        """What slurmctld has of a job or array task, by Slurm's names; empty if it does not say."""
        argv = ["scontrol", *self._cluster_flag(), "show", "job", "-o", _job(job_id)]
        lines = (self._ask(argv, asked) or "").splitlines()
        return job_fields(lines[0]) if lines else {}

    def config_text(self, asked: Round) -> str | None:
        """How slurmctld is configured, in its own words; None if it does not say."""
        return self._ask(["scontrol", *self._cluster_flag(), "show", "config"], asked)

    def nodes_text(self, partition: str | None, asked: Round) -> str | None:
        """What `exclusions.nodes_of` reads, of one partition or all; None if it does not say."""
        where = [] if partition is None else ["-p", partition]
        return self._ask(["sinfo", *self._cluster_flag(), "-hNo", SINFO_FORMAT, *where], asked)

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

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Let a queued job exclude these nodes and no others. Raises SchedulerError."""
        if not _QUEUED.fullmatch(job_id):
            raise SchedulerError(f"{job_id[:80]!r} is not a job id")
        words = ["update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"]
        try:
            done = call(["scontrol", *self._cluster_flag(), *words], _QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError("scontrol update has not answered") from error
        if done.returncode != 0:
            raise SchedulerError(refusal("scontrol update", done))

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

    def find_by_comment(self, comment: str) -> str | None:
        """The id of the newest job with this comment; for a submission cut short."""
        return self.find_by_comments([comment], Round()).get(comment)

    def forgot(self, job_id: str) -> bool:
        """Whether Slurm's queue answers and knows no such job; False if it does not answer."""
        argv = ["squeue", *self._cluster_flag(), "-h", "-t", "all", "-j", _parents([job_id])]
        try:
            done = call(argv, _QUERY_TIMEOUT_S)
        except (SchedulerError, subprocess.TimeoutExpired):
            return False
        if done.returncode != 0:
            return "Invalid job id" in done.stderr
        return not done.stdout.strip()

    def confirm(self, job_id: str, mark: JobMark) -> None:
        """Raise SchedulerError unless squeue knows the job, or its array, by this mark."""
        argv = ["squeue", *self._cluster_flag(), "-h", "-t", "all", "-o", "%U|%k"]
        try:
            done = call([*argv, "-j", _parents([job_id])], _QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(f"squeue has not said whose job {job_id} is") from error
        if done.returncode != 0:
            raise SchedulerError(refusal("squeue", done))
        found = {
            (comment.strip(), int(owner))
            for owner, bar, comment in (line.partition("|") for line in done.stdout.splitlines())
            if bar and owner.strip().isdecimal()
        }
        if not found:
            raise SchedulerError(f"squeue knows no job {job_id}: it is over")
        for comment, owner in found:
            mark.refuse_another(job_id, comment, owner)

    def release(self, job_id: str, mark: JobMark) -> None:
        """Let a job go that is held. Raises SchedulerError, as for one that only an administrator
        may release."""
        self.confirm(job_id, mark)
        try:
            argv = ["scontrol", *self._cluster_flag(), "release", _job(job_id)]
            done = call(argv, _QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(f"scontrol release {job_id} has not answered") from error
        if done.returncode != 0:
            raise SchedulerError(refusal("scontrol release", done))

    def cancel(self, job_id: str, mark: JobMark) -> None:
        """scancel; no error if the job is over already. Raises SchedulerError."""
        self.confirm(job_id, mark)
        try:
            done = call(["scancel", *self._cluster_flag(), _job(job_id)], _QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(f"scancel {job_id} has not answered") from error
        if done.returncode != 0 and "already completing or completed" not in done.stderr:
            raise SchedulerError(refusal("scancel", done))

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


# A word that begins with a dash would be an option to Slurm's commands.
_JOB_ID = re.compile(ONE)
_QUEUED = re.compile(r"[0-9]+(_([0-9]+|\[[0-9,:-]+\]))?", re.ASCII)
_CLUSTERS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", re.ASCII)


def _job(job_id: str) -> str:
    """The id as an argument. Raises SchedulerError for what is none."""
    if not _JOB_ID.fullmatch(job_id):
        raise SchedulerError(f"{job_id[:80]!r} is not a job id")
    return job_id


def _parents(job_ids: Iterable[str]) -> str:
    """The jobs that these are, or are tasks of."""
    return ",".join(dict.fromkeys(job_of(_job(job_id)) for job_id in job_ids))


def _lacks_exit_code(state: JobState | None, *, unknown: bool) -> bool:
    return unknown if state is None else state.phase == "ended" and state.exit_code is None


def _by_name(state: JobState) -> JobState:
    """With what accounting lacks: the name of who cancelled the job."""
    import pwd  # only Unix has it

    if state.cancelled_by is not None and state.cancelled_by.isdecimal():
        with contextlib.suppress(KeyError, OverflowError):
            state = replace(state, cancelled_by=pwd.getpwuid(int(state.cancelled_by)).pw_name)
    return state


def _last_words(error: subprocess.TimeoutExpired) -> str:
    """What a command that was ended had said: sbatch says so before it sleeps at a full queue."""
    text = error.stderr or b""  # bytes also in text mode, up to now
    said = (text if isinstance(text, str) else text.decode(errors="replace")).strip().splitlines()
    return f" ({said[-1].removeprefix('sbatch: error: ')})" if said else ""
