"""The account of an attempt that has ended, within the batch shell's last seconds."""

from __future__ import annotations

import signal
import sys
import time

from fsdpkit.errors import FsdpkitError
from fsdpkit.launching.job_log import say
from fsdpkit.runs.account import Account
from fsdpkit.runs.accounting import keep
from fsdpkit.runs.history import history_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import load
from fsdpkit.runs.uses import Uses

_LONGEST_S, _LATE_S = 30.0, 5.0
"""How long it may take, and where Slurm is ending the job; else readers make it."""


class _TooLate(BaseException):
    """Nothing below catches it for an error of a file."""


def keep_account(run: RunPaths, task: int | None, attempt: int, *, ending: bool) -> Account | None:
    """Write the accounts of this training, for a later attempt shows what the earlier were worth,
    and tell the newest's in the log. None: it could not be made, or not in time. ending: whether
    Slurm is ending the job."""

    def stop(number: int, frame: object) -> None:
        raise _TooLate

    began_s, before = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, _LATE_S if ending else _LONGEST_S)
    try:
        record = load(run.dir)
        found = {one.attempt: one for one in keep(history_of(run, record, task), record)}
    except (_TooLate, ArithmeticError, LookupError, OSError, TypeError, ValueError, FsdpkitError):
        return None
    finally:
        rest_s = max(1.0, left_s - (time.monotonic() - began_s)) if left_s else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, rest_s)
    account = found.get(attempt)
    if account is not None and account.granted_s and not record.holds:
        say(Uses([account]).words, sys.stderr)
    return account
