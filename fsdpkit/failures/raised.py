"""The exception that a rank recorded itself, as the one that it would have printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fsdpkit.failures.stacks import Frame
from fsdpkit.failures.tracebacks import PrintedException, without_controls
from fsdpkit.runs.raised import RaisedException, RaisedRecord

_EXIT = "SystemExit"


def exception_of(record: RaisedRecord | None) -> PrintedException | None:
    """What ended the process; None if it left by a number, while it handled no exception."""
    chain = list(_with_members(record.chain)) if record is not None else []
    while chain and chain[0].type == _EXIT and not chain[0].message:
        del chain[0]
    found: PrintedException | None = None
    for raised in reversed(chain):
        found = _printed(raised, found)
    return found


def left_at(record: RaisedRecord | None) -> str:
    """Where the script called sys.exit with a number, as a clause."""
    if record is None or record.chain[0].type != _EXIT or record.chain[0].own is None:
        return ""
    file, line, function = record.chain[0].own
    return f", left by {without_controls(str(Frame(file, line, function)))}"


def _with_members(chain: Sequence[RaisedException]) -> Iterator[RaisedException]:
    """The members of a group led to it."""
    for raised in chain:
        meant = raised.meant or bool(raised.members)
        yield msgspec.structs.replace(raised, meant=meant)
        for member in raised.members:
            yield from _with_members(member)


def _printed(raised: RaisedException, before: PrintedException | None) -> PrintedException:
    return PrintedException(
        type="" if raised.type == _EXIT else without_controls(raised.type),
        message=without_controls(raised.message).strip(),
        frames=tuple(
            Frame(without_controls(file), line, without_controls(function))
            for file, line, function in raised.frames
        ),
        before=before,
        meant=raised.meant,
        errno=raised.errno,
        source=without_controls(raised.source).strip(),
    )
