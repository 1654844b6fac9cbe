"""Whether ranks ended because they timed out waiting for others, which may still be running.

If so, the ranks that still run are worth inspecting before they are ended, as are the records of
the collectives. The message differs between gloo, NCCL's watchdog, a store and a script's own
barrier, but all of them call it a time-out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fsdpkit.launching.message_log import Order
from fsdpkit.runs.rank_ends import RankEnd
from fsdpkit.runs.reading import open_regular
from fsdpkit.runs.stacks import Why

_TIME_OUT = re.compile(r"tim(?:ed|e)[ -]?out", re.IGNORECASE)
_LAST_BYTES, _WITH_STACKS = 8 << 10, 64 << 10
"""Of what a rank printed: an exception of C++, with its frames, comes after the words; where it
aborts, so do the stacks of all threads."""
_ABORTED = 128 + 6


def local_time_out(ends: Mapping[Path, RankEnd]) -> bool:
    """Whether a rank that ended by itself mentions a time-out at the end of its standard error.
    ends: by the file of its standard error, of ranks that failed."""
    return any(end.status and not end.killed and _says_so(err) for err, end in ends.items())


def why_superseded(order: Order) -> Why | None:
    """Why the ranks' stacks are needed before an order of the head's ends them; None: they are not.
    Such an order says what ended the launch on another node."""
    if order.because == "hang":
        return "hang"
    if order.because and _TIME_OUT.search(order.message):
        return "time-out"
    return "aborted" if order.because == "crash" and order.status == _ABORTED else None


def _says_so(err: Path) -> bool:
    with contextlib.suppress(OSError), open_regular(err) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _WITH_STACKS))
        said = file.read(_WITH_STACKS)
        said = (said.rpartition(b"Fatal Python error: ")[0] or said)[-_LAST_BYTES:]
        return bool(_TIME_OUT.search(said.decode(errors="replace")))
    return False
