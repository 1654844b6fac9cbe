"""Runs the job's own notification command, with the arguments WHAT STATUS.

The batch shell calls it once per attempt, after the fact: WHAT is `requeued` once Slurm has
requeued the job, else `end`. So a requeued job loses none of its grace period; the command gets
what is left of it (KillWait, 30 s by default), and Slurm then kills it. A failing command is
reported on standard error and changes nothing: the status is 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from fsdpkit.config.notify import Event, Notify
from fsdpkit.errors import StorageError
from fsdpkit.launching.ending import this_job
from fsdpkit.launching.job_log import say
from fsdpkit.runs.account import Account
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.outcomes import IDLE, Ending
from fsdpkit.runs.reading import read_text, record_in
from fsdpkit.runs.uses import Uses

_LONGEST_VARIABLE = 4096
"""Characters of a variable's value; the JSON has the whole text."""
_KILLED_S = 2.0
"""How long a killed command is waited for, which a dead file server may keep."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the command gets: JSON on standard input, and FSDPKIT_EVENT, …, where None is empty."""

    event: Event
    run_id: str
    run_dir: str
    job_id: str
    """Slurm's, of an array task as `12_3`."""
    job_name: str
    attempt: int
    status: int
    """The attempt's exit status."""
    cause: str
    """`done`, `crash`, `time-limit`, … as in ending.json; `unknown` if nobody could say."""
    why: str
    step: int | None
    """Of the newest whole checkpoint."""
    used: str | None = None
    """A sentence: of the attempt's grant, and for what; None: it has no account."""


def main() -> int:
    what, status = sys.argv[1], int(sys.argv[2])
    run = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"]))
    attempt = AttemptPaths(Path(os.environ["FSDPKIT_ATTEMPT_DIR"]))
    try:
        notify = table_of_job(run.dir, "notify", Notify)
        told = facts(what, status, run, attempt, table_of_job(run.dir, "name", str))
    except (OSError, ValueError, StorageError) as error:
        _complain(f"was not called: {run.job}: {error}")
        return 0
    if notify.command and told.event in notify.on:
        call(notify, told)
    return 0


def tell_idle(run: RunPaths, attempt: AttemptPaths, why: str) -> None:
    """Call the command while the attempt runs: its GPUs do nothing, or only wait."""
    with contextlib.suppress(OSError, ValueError, StorageError):
        notify = table_of_job(run.dir, "notify", Notify)
        told = facts("idle", 0, run, attempt, table_of_job(run.dir, "name", str))
        if notify.command and "idle" in notify.on:
            call(notify, msgspec.structs.replace(told, event="idle", cause=IDLE, why=why))


def facts(what: str, status: int, run: RunPaths, attempt: AttemptPaths, job_name: str) -> Told:
    """What happened, from what the batch shell did and wrote down before. `requeued`, but also
    `end` where Slurm had queued the job again itself, is a requeue."""
    ending = record_in(attempt.ending, Ending)
    account = record_in(attempt.account, Account)
    job_id = this_job()
    why, cause = (ending.why, ending.cause) if ending else ("", "unknown")
    event: Event = "requeue" if what == "requeued" else "failure" if status else "end"
    if event != "requeue" and ending and ending.action == "requeue":
        why += "; but the job could not be queued again"
    if ending is None and status:
        why = _last_complaint(run.dir / f"slurm-{job_id}.log") or "nothing on record says why"
    return Told(
        event=event,
        run_id=run.dir.name,
        run_dir=str(run.dir),
        job_id=job_id,
        job_name=job_name,
        attempt=int(attempt.dir.name.removeprefix("attempt-")),
        status=status,
        cause=cause,
        why=why,
        step=ending.step if ending else None,
        used=Uses([account]).words if account else None,
    )


def variables(told: Told) -> dict[str, str]:
    """The same as environment variables, none too long to pass."""
    texts = {n: "" if v is None else str(v) for n, v in msgspec.structs.asdict(told).items()}
    return {
        f"FSDPKIT_{name.upper()}": text.replace("\0", " ")[:_LONGEST_VARIABLE]
        for name, text in texts.items()
    }


def call(notify: Notify, told: Told) -> None:
    """Start the command, wait at most `limit_s`, then kill it and everything it started."""
    text = json.dumps(msgspec.structs.asdict(told)) + "\n"
    try:
        process = subprocess.Popen(
            notify.command,
            stdin=subprocess.PIPE,
            env={**os.environ, **variables(told)},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        _complain(f"could not be started: {error}")
        return
    try:
        process.communicate(text.encode(), timeout=notify.limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
        _complain(f"was killed after {notify.limit_s} s (notify.limit_s)")
        return
    if process.returncode < 0:
        _complain(f"was ended by signal {-process.returncode}")
    elif process.returncode:
        _complain(f"ended with status {process.returncode}")


def _complain(what: str) -> None:
    say(f"the command of [notify] {what}", sys.stderr)


def _last_complaint(log: Path) -> str | None:
    """Why a script ended before any rank started: its own last message."""
    with contextlib.suppress(OSError):
        said = re.findall(r"^fsdpkit: (.*)$", read_text(log), re.MULTILINE)
        return said[-1] if said else None
    return None
