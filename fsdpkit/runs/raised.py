"""Which exception ended a rank, as it wrote it down itself (launching/at_start/caught.py).

`rank-<r>.raised.json` has a line for each exception that nobody caught; those of threads did not
end the process. A rank that was ended by a signal or by os._exit, or that ran another program than
Python, has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fsdpkit.bounded import LINE_BYTES, read_end

_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Call = tuple[str, _Number, str]
"""File, line and function."""


class RaisedException(msgspec.Struct, frozen=True, kw_only=True):
    """One exception of a chain."""

    type: str
    """With its module, as Python prints it."""
    message: str = ""
    """With its notes; empty for SystemExit with a number."""
    errno: int | None = None
    """Of an OSError that counts as the system does."""
    filename: str | None = None
    meant: bool = False
    """The next one in the chain is its cause (`raise … from`), not only what was being handled."""
    frames: tuple[_Call, ...] = ()
    """The innermost last; some in the middle of a long traceback are left out."""
    own: _Call | None = None
    """The innermost that is the user's own and no library's."""
    source: str = ""
    """That line of the source."""
    members: tuple[tuple[RaisedException, ...], ...] = ()
    """Of a group: the chain of each."""


class RaisedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file."""

    ended: bool
    """Whether it ended the process."""
    chain: Annotated[tuple[RaisedException, ...], Meta(min_length=1)]
    """The exception and those that led to it, the newest first."""
    status: _Number | None = None
    """Exit status; 128 + signal."""
    pid: _Number = 0
    time_ns: _Number = 0
    """By the node's clock."""
    thread: str = ""
    steps: _Number | None = None
    """Steps of the optimizer that this node's first rank has counted."""
    heartbeat: tuple[_Number, ...] = ()
    """The rank's own (runs/heartbeat.py), if it has one."""

    @property
    def step(self) -> int | None:
        """How many steps were done, as far as anybody counted."""
        count, step, *_ = (*self.heartbeat, 0, 0)
        return step if count else self.steps


def read_raised(file: Path) -> RaisedRecord | None:
    """The exception that ended the rank; None where none did, or the file cannot be read."""
    try:
        lines = read_end(file, LINE_BYTES).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = msgspec.json.decode(line, type=RaisedRecord)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if record.ended:
            return record
    return None
