"""Where a rank's threads are: how it writes that on request, and which ranks were asked, on record.

On `SIGNAL` a rank that can be asked has faulthandler write the stacks of all threads, even from
within a call that never returns or that holds the interpreter's lock. The file is in the node's
memory, because a rank that hangs may be hanging on the run's directory. Nothing else sends that
signal; Slurm's warnings use others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
from pathlib import Path
from typing import Any, Literal

import msgspec

from fsdpkit.listing import first_of

SIGNAL = signal.SIGRTMAX - 5
"""A real-time signal: a script has its own uses for the others."""
EVENT = "stacks-taken"
_HIGH = 512
"""A program that closes and opens files by small numbers does not meet ours."""

Why = Literal["hang", "time-out", "aborted"]


class _Left:
    path: Path | None = None


def leave_when_asked(path: Path) -> None:
    """From now on, on `SIGNAL`, write all threads' stacks to `path`; an empty file until then. A
    second call for the same path does nothing. Raises OSError."""
    if _Left.path == path:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    number = os.open(path, flags, 0o600)
    with contextlib.suppress(OSError):  # the limit of open files is lower
        high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(number)
        number = high
    # Opened now: a signal handler must not open files.
    faulthandler.register(SIGNAL, file=number, all_threads=True)
    _Left.path = path


class StacksTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A line `stacks-taken` of `node-<i>.events.jsonl`: whose stacks this node's agent took."""

    launch: int
    why: Why
    """`hang`: no progress for hang_s. `time-out`: another rank ended because it had waited too long
    for the others. `aborted`: a rank of another node was ended by SIGABRT, as NCCL's watchdog
    does."""
    taken: dict[int, Literal["signal", "py-spy"]] = {}
    """By rank, how its stacks came into `rank-<r>.stacks`."""
    missing: dict[int, str] = {}
    """By rank, why there are none."""


def event_of(taken: StacksTaken) -> dict[str, Any]:
    """The line's fields."""
    return {"event": EVENT, **msgspec.to_builtins(taken, str_keys=True)}


def in_words(taken: StacksTaken) -> str:
    """What was done, and for which ranks it was not possible."""
    because = {
        "hang": "no step was made any longer",
        "time-out": "a rank had waited for the others until its timeout",
        "aborted": "a rank of another node was aborted",
    }[taken.why]
    said = f"stacks of {len(taken.taken)} ranks were taken because {because}"
    if taken.missing:
        reason = taken.missing[min(taken.missing)]
        said += f"; none of rank {first_of(sorted(taken.missing), 1)}: {reason}"
    return said
