"""Which exception ended a rank, as it wrote it down itself (launching/at_start/caught.py).

The last whole line of `rank-<r>.raised.json`. A rank that was ended by a signal or by os._exit, or
that ran another program than Python, has none.
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
    meant: bool = False
    """The next one in the chain is its cause (`raise … from`), not only what was being handled."""
    frames: tuple[_Call, ...] = ()
    """The innermost last; some in the middle of a long traceback are left out."""
    own: _Call | None = None
    """The innermost that is the user's own and no library's."""
    source: str = ""
    """Its line of code."""
    members: tuple[tuple[RaisedException, ...], ...] = ()
    """Of a group: the chain of each."""


class RaisedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file."""

    chain: Annotated[tuple[RaisedException, ...], Meta(min_length=1)]
    """The exception and those that led to it, the newest first."""
    ended: bool = True
    """False: of a thread, which older releases recorded as well."""
    status: _Number | None = None
    """Exit status; 128 + signal."""
    time_ns: _Number = 0
    """By the node's clock."""


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
