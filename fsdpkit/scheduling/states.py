"""What a scheduler's words mean. Pure: text in, a `JobState` out.

An unknown word is `unknown`, never done; a job succeeded only if its state is COMPLETED and its
exit code 0:0. Source: Slurm's job_state_codes page and squeue(1), sacct(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["pending", "running", "ended", "unknown"]

_PENDING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "EXPEDITING",
}
_RUNNING = {
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "STOPPED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "POWER_UP_NODE",
    "UPDATE_DB",
}
_ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
    "REVOKED",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
}
_SHORT = {
    "PD": "PENDING",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "F": "FAILED",
    "CA": "CANCELLED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
}


@dataclass(frozen=True)
class JobState:
    """One job's (or array task's) state as one source told it. None means: not read."""

    state: str
    """Slurm's word, upper case, without what it appends (`CANCELLED by 0`)."""
    source: str
    """`squeue`, `sacct`, `scontrol` or `local`."""
    exit_code: int | None = None
    """The batch script's exit status."""
    exit_signal: int | None = None
    derived_exit_code: int | None = None
    """The highest status of the job's steps."""
    reason: str | None = None
    node_list: str | None = None
    restarts: int | None = None

    @property
    def phase(self) -> Phase:
        if self.state in _PENDING:
            return "pending"
        if self.state in _RUNNING:
            return "running"
        return "ended" if self.state in _ENDED else "unknown"

    @property
    def may_return(self) -> bool:
        """Whether Slurm may be about to queue the job again, although it calls it ended."""
        return self.state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")

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
        return self.state == "COMPLETED" and self.exit_code == 0 and not self.exit_signal

    @property
    def exit_status(self) -> int:
        """What `--wait` exits with: the script's own status, 128 + signal, or 1 if neither says."""
        if self.succeeded:
            return 0
        if self.exit_signal:
            return 128 + self.exit_signal
        return self.exit_code or 1

    def describe(self) -> str:
        """The state for a person, e.g. `FAILED, exit status 3`."""
        words = [self.state]
        if self.phase == "pending" and self.reason and self.reason != "None":
            words.append(f"waiting for {self.reason}")
        if self.phase == "ended":
            if self.exit_signal:
                words.append(f"signal {self.exit_signal}")
            elif self.exit_code:
                words.append(f"exit status {self.exit_code}")
            if self.state == "COMPLETED" and self.derived_exit_code:
                words.append(f"finished, but a step failed with {self.derived_exit_code}")
        return ", ".join(words)


def first_word(text: str) -> str:
    word = text.split()[0].rstrip("+").upper() if text.split() else "UNKNOWN"
    return _SHORT.get(word, word)


def parse_exit_code(text: str) -> tuple[int | None, int | None]:
    """Slurm's `status:signal`; (None, None) if it is not that."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def parse_squeue(text: str) -> dict[str, JobState]:
    """Output of `squeue -h -r -o SQUEUE_FORMAT` by job id (`12` or `12_3`)."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 4:
            job_id, state, reason, nodes = (p.strip() for p in parts)
            found[job_id] = JobState(
                first_word(state), "squeue", reason=reason or None, node_list=nodes or None
            )
    return found


def parse_sacct(text: str) -> dict[str, JobState]:
    """Output of `sacct -n -P -X -o SACCT_FORMAT` by job id; of duplicates the last line counts."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < 6:
            continue
        job_id, state, exit_text, derived, reason, nodes = (p.strip() for p in parts[:6])
        code, signal = parse_exit_code(exit_text)
        for one in expand_array_id(job_id):
            found[one] = JobState(
                first_word(state),
                "sacct",
                exit_code=code,
                exit_signal=signal,
                derived_exit_code=parse_exit_code(derived)[0],
                reason=reason or None,
                node_list=nodes if nodes not in ("", "None assigned") else None,
            )
    return found


_FIELD = re.compile(r"(?:^| )(\w[\w/:]*)=(\S*)")


def parse_scontrol(text: str) -> dict[str, JobState]:
    """Output of `scontrol show job -o`, one job a line, by job id."""
    found = {}
    for line in text.splitlines():
        # What precedes free text (Command, Comment) is enough, and safe from what people write.
        fields = dict(_FIELD.findall(line.split(" Command=")[0]))
        if "JobId" not in fields or "JobState" not in fields:
            continue
        code, signal = parse_exit_code(fields.get("ExitCode", ""))
        job_id = fields["JobId"]
        if "ArrayJobId" in fields:
            job_id = f"{fields['ArrayJobId']}_{fields.get('ArrayTaskId', '')}"
        state = JobState(
            first_word(fields["JobState"]),
            "scontrol",
            exit_code=code,
            exit_signal=signal,
            derived_exit_code=parse_exit_code(fields.get("DerivedExitCode", ""))[0],
            reason=fields.get("Reason"),
            node_list=fields.get("NodeList") if fields.get("NodeList") != "(null)" else None,
            restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else None,
        )
        for one in expand_array_id(job_id):
            found[one] = state
    return found


_ARRAY_ID = re.compile(r"(\d+)_\[?([\d,:-]+)(?:%\d+)?\]?")


def expand_array_id(job_id: str) -> list[str]:
    """`12_[0-2,7%4]` as `12_0 12_1 12_2 12_7`; any other id as itself."""
    match = _ARRAY_ID.fullmatch(job_id)
    if match is None:
        return [job_id]
    ids = []
    for part in match[2].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        ids += [
            f"{match[1]}_{k}" for k in range(int(first), int(last or first) + 1, int(step or 1))
        ]
    return ids
