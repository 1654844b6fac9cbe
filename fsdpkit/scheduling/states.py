"""What a scheduler's words mean. Pure: text in, a `JobState` out.

An unknown word is `unknown`, never done; a job succeeded only if its state is COMPLETED and its
exit code 0:0. Source: Slurm's job_state_codes page and squeue(1), sacct(1).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.job_ids import each_of, without_step

Phase = Literal["pending", "running", "ended", "unknown"]
Outcome = Literal["done", "stopped", "unknown"]
"""All is done, and an agent vouches for it; it stopped on request, its work saved; it ended, and
nobody knows whether anything was done."""

_PENDING = {
    *("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    "EXPEDITING",
}
_RUNNING = {
    *("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"),
    *("STAGE_OUT", "POWER_UP_NODE", "UPDATE_DB"),
}
_ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"),
    *("DEADLINE", "PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
}
ALLOCATION_ENDED = "the allocation ended"
"""Reason of a run's end that was a step of one."""
HELD_STATES = ("REQUEUE_HOLD", "SPECIAL_EXIT")
HELD_AFTER_REQUEUE = re.compile(r"requeued.*\bheld|requeue.*\bhold", re.IGNORECASE)
"""Of a reason with spaces: `launch failed requeued held` and its like."""


@dataclass(frozen=True)
class JobState:
    """The state of one job, or array task, as one source told it. None means: not read.

    Slurm's words are explained in squeue(1) and sacct(1), JOB STATE CODES.

    Attributes:
        exit_signal: Number of the signal that ended the batch script.
        derived_exit_signal: The signal that belongs to `derived_exit_code`.
        reason: Slurm's word for why the job is pending, or ended.
        node_list: Its nodes as Slurm writes them, such as `node[1-4]`.
        restarts: Times that Slurm has queued the job again.
    """

    state: str
    """Slurm's word, upper case, without what it appends (`CANCELLED by 0`)."""
    source: str
    """`squeue`, `sacct`, `scontrol` or `local`."""
    exit_code: int | None = None
    """The batch script's exit status."""
    exit_signal: int | None = None
    derived_exit_code: int | None = None
    """The highest status of the job's steps; as Slurm tells it, of all its attempts."""
    reason: str | None = None
    node_list: str | None = None
    restarts: int | None = None
    derived_exit_signal: int | None = None
    submit_s: float | None = None
    """Unix time, as the next two; after a requeue that of the requeue."""
    start_s: float | None = None
    """When it started, or is expected to, where the scheduler says."""
    end_s: float | None = None
    """When it ended, or will have to."""
    cancelled_by: str | None = None
    """The user who cancelled it: a name, or the number if that has none."""
    outcome: Outcome | None = None
    """What the run's own files say of its end; None: not asked, or nothing to add."""
    account: str | None = None
    """Why the outcome is that, in words."""

    @property
    def phase(self) -> Phase:
        """`pending`, `running`, `ended`, or `unknown` for a word that Slurm may add."""
        if self.state in _PENDING:
            return "pending"
        if self.state in _RUNNING:
            return "running"
        return "ended" if self.state in _ENDED else "unknown"

    @property
    def derived(self) -> bool:
        """Whether a step is said to have failed."""
        return bool(self.derived_exit_code or self.derived_exit_signal)

    @property
    def may_return(self) -> bool:
        """Whether Slurm may be about to queue the job again, although it calls it ended."""
        return self.state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")

    @property
    def never_began(self) -> bool:
        """Whether it was cancelled in the queue."""
        return self.state == "CANCELLED" and not self.node_list

    @property
    def held(self) -> bool:
        """Whether it waits for its owner to release it.

        They held it, or Slurm did after a requeue, as where a node could not start it.
        """
        reason = (self.reason or "").replace("_", " ")
        by_reason = reason in ("JobHeldUser", "JobHoldMaxRequeue") or HELD_AFTER_REQUEUE.search(
            reason
        )
        return self.phase == "pending" and bool(self.state in HELD_STATES or by_reason)

    @property
    def over(self) -> bool:
        """Ended, never to return."""
        return self.phase == "ended" and not self.may_return

    @property
    def final(self) -> bool:
        """Over, and the exit code is known."""
        return self.over and self.exit_code is not None

    @property
    def succeeded(self) -> bool:
        """Whether all is done: COMPLETED with status 0, and the run's own files agree."""
        well = self.state == "COMPLETED" and self.exit_code == 0 and not self.exit_signal
        return well and self.outcome != "unknown"

    @property
    def word(self) -> str:
        """The state in a word: the scheduler's, unless the run's own files know better."""
        words = {"stopped": "STOPPED", "unknown": "UNKNOWN"}
        return words.get(self.outcome or "", self.state)

    @property
    def exit_status(self) -> int:
        """What `--wait` exits with.

        The script's own status, 128 + signal, or 1 if neither is known; 70 if nobody knows whether
        it did anything.
        """
        if self.succeeded:
            return 0
        if self.outcome == "unknown":
            return FsdpkitError.exit_code
        if self.exit_signal:
            return 128 + self.exit_signal
        return self.exit_code or 1

    def describe(self) -> str:
        """The state for a person.

        Returns:
            For example `FAILED, exit status 3`, or `PENDING (Resources)` as squeue prints it.
        """
        if self.outcome == "unknown":
            return f"UNKNOWN: it is {self.state}, but {self.account}"
        if self.outcome == "stopped":
            return f"STOPPED: {self.account}"
        if self.phase == "pending" and self.reason and self.reason != "None":
            return f"{self.state} ({self.reason})"
        words = [f"{self.state} by {self.cancelled_by}" if self.cancelled_by else self.state]
        if self.phase == "ended":
            if self.exit_signal:
                words.append(f"signal {self.exit_signal}")
            elif self.exit_code:
                signal = f" (signal {self.exit_code - 128})" if 128 < self.exit_code <= 192 else ""
                words.append(f"exit status {self.exit_code}{signal}")
            if self.state == "CANCELLED" and self.reason == "DependencyNeverSatisfied":
                words.append("the job that it depends on did not end as required")
            if self.state == "COMPLETED" and self.derived_exit_code:
                words.append(f"finished, but a step failed with {self.derived_exit_code}")
        return ", ".join(words)


def decided(known: JobState | None, told: JobState) -> JobState:
    """Which of two sources' words counts, `known` from the one that was asked first. squeue knows a
    job sooner, and why it waited; of its end only the others know the exit code and who cancelled
    it. An end without an exit code is believed no longer once slurmctld (scontrol) has spoken."""
    if known is None:
        return told
    if known.phase != "ended" or known.exit_code is not None:
        return known
    if told.source == "scontrol":
        return told
    if told.phase != "ended":
        return known
    return told if known.reason in (None, "None") else replace(told, reason=known.reason)


def by_name(state: JobState) -> JobState:
    """With what accounting lacks: the name of who cancelled the job."""
    import pwd  # only Unix has it

    if state.cancelled_by is not None and state.cancelled_by.isdecimal():
        with contextlib.suppress(KeyError, OverflowError):
            state = replace(state, cancelled_by=pwd.getpwuid(int(state.cancelled_by)).pw_name)
    return state


def first_word(text: str) -> str:
    return text.split()[0].rstrip("+").upper() if text.split() else "UNKNOWN"


def parse_exit_code(text: str) -> tuple[int | None, int | None]:
    """Slurm's `status:signal`; (None, None) if it is not that."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def parse_time(text: str) -> float | None:
    """Unix time of what Slurm prints: seconds, or local time; None for N/A, Unknown and such."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _state(
    source: str, state: str, codes: tuple[str, str], reason: str, nodes: str, times: Sequence[str]
) -> JobState:
    """What a source printed. codes: of the job and its steps; times: submission, start, end."""
    (code, signal), (derived_code, derived_signal) = map(parse_exit_code, codes)
    submitted, start, end = (parse_time(text) for text in [*times, "", "", ""][:3])
    return JobState(
        first_word(state),
        source,
        exit_code=code,
        exit_signal=signal,
        derived_exit_code=derived_code,
        derived_exit_signal=derived_signal,
        reason=reason or None,
        node_list=nodes if nodes not in ("", "None assigned", "(null)") else None,
        submit_s=submitted,
        start_s=start,
        end_s=end,
    )


def parse_squeue(text: str) -> dict[str, JobState]:
    """Output of `squeue -h -r -o SQUEUE_FORMAT` by job id (`12` or `12_3`); times may lack."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) >= 4:
            job_id, state, reason, nodes = parts[:4]
            found[job_id] = _state("squeue", state, ("", ""), reason, nodes, parts[4:])
    return found


def parse_sacct(text: str) -> dict[str, JobState]:
    """Of `sacct -n -P -X -o SACCT_FORMAT`, by job id; the last duplicate counts. Times may lack."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) < 6:
            continue
        job_id, state, code, derived, reason, nodes = parts[:6]
        read = _state("sacct", state, (code, derived), reason, nodes, parts[6:])
        if cancelled := re.fullmatch(r"CANCELLED by (\S+)", state):
            read = replace(read, cancelled_by=cancelled[1])
        found |= dict.fromkeys(each_of(job_id), read)
    return found


VISIT_STEP = "fsdpkit-visit"
"""The name of a step by which a person looks inside (scheduling/shell.py): how a command of theirs
ended says nothing about the job."""


def parse_steps(text: str) -> dict[str, tuple[int, int]]:
    """Of each job the highest `(status, signal)` of its steps, not counting the batch script and
    visits, from `sacct -n -P -o JobID,ExitCode,JobName`: the steps of the last attempt."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        name, exit_text, title = [*line.split("|", 2), "", ""][:3]
        job_id, step = without_step(name.strip())
        code, signal = parse_exit_code(exit_text)
        if code is not None and signal is not None:
            highest = found.setdefault(job_id, (0, 0))
            counts = step.isdecimal() and title.strip() != VISIT_STEP
            found[job_id] = max(highest, (code, signal)) if counts else highest
    return found


_FIELD = re.compile(r"(?:^| )(\w[\w/:]*)=(\S*)")


def job_fields(line: str) -> dict[str, str]:
    """One line of `scontrol show job -o` by Slurm's own names: NumNodes, TRES, TimeLimit, …"""
    # What precedes free text (Command, Comment) is enough, and safe from what people write.
    return dict(_FIELD.findall(line.split(" Command=")[0]))


def id_in(fields: Mapping[str, str]) -> str:
    """The id of a job, or of the tasks of an array, by `job_fields`."""
    if "ArrayJobId" in fields:
        return f"{fields['ArrayJobId']}_{fields.get('ArrayTaskId', '')}"
    return fields.get("JobId", "")


def parse_scontrol(text: str) -> dict[str, JobState]:
    """Output of `scontrol show job -o`, one job a line, by job id."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = {**dict.fromkeys(_OF_SCONTROL, ""), **job_fields(line)}
        if not fields.get("JobId") or not fields["JobState"]:
            continue
        state, code, derived, reason, nodes, *times, restarts = (fields[n] for n in _OF_SCONTROL)
        read = _state("scontrol", state, (code, derived), reason, nodes, times)
        read = replace(read, restarts=int(restarts) if restarts.isdecimal() else None)
        found |= dict.fromkeys(each_of(id_in(fields)), read)
    return found


_OF_SCONTROL = (
    *("JobState", "ExitCode", "DerivedExitCode", "Reason", "NodeList"),
    *("SubmitTime", "StartTime", "EndTime", "Restarts"),
)


GRANTED_FORMAT = "JobID,Start,ElapsedRaw,Account,AllocTRES,Comment"
"""Free text comes last, and may hold what separates the columns."""
_GPUS = re.compile(r"gres/gpu(:[^=,]*)?=([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class GrantedJob:
    """One start of a job, or of a task of an array."""

    job_id: str
    began_s: float
    account: str | None
    gpu_hours: float
    comment: str


def parse_granted(text: str) -> Iterator[GrantedJob]:
    """Those with a GPU that have begun."""
    for row in (line.split("|", 5) for line in text.splitlines()):
        if len(row) < 6 or not row[2].isdecimal() or (began_s := parse_time(row[1])) is None:
            continue
        counts = [(kind, int(count)) for kind, count in _GPUS.findall(row[4])]
        # All GPUs, and often those of each kind beside it.
        gpus = next((n for kind, n in counts if not kind), sum(n for kind, n in counts if kind))
        if gpus:
            hours = gpus * int(row[2]) / 3600
            yield GrantedJob(row[0].strip(), began_s, row[3].strip() or None, hours, row[5].strip())
