"""The announcements of a user's centres, each shown once; a file of the user's own state remembers
which. A state that cannot be written has them shown again, and keeps nobody from working."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fsdpkit.config import assets
from fsdpkit.config.published import memory
from fsdpkit.config.published.centre import open_centre
from fsdpkit.errors import FsdpkitError

MOST_AT_ONCE = 5
"""Of each centre; the next command shows the next ones."""


def new_lines(partitions: Sequence[str] | None, *, once: bool) -> list[str]:
    """Those of today that this user was not shown yet, the newest first. partitions: of the job;
    None: any. once: note that they were shown."""
    lines: dict[str, None] = {}
    with contextlib.suppress(FsdpkitError, OSError):  # whoever uses that centre is told
        for layer in reversed(assets.centre_layers()):
            centre = open_centre(layer.dir)
            if centre is None or not (all_of := centre.index.announcements):
                continue
            seen = memory.recall(layer.dir)
            shown = seen.shown if seen else []
            waiting = [a for a in reversed(all_of) if a.holds() and a.id not in shown]
            new = [a for a in waiting if partitions is None or a.partition in (None, *partitions)]
            new = new[:MOST_AT_ONCE]
            lines |= dict.fromkeys(a.told for a in new)
            if once and new:
                known = {a.id for a in all_of}
                shown = [*(one for one in shown if one in known), *(a.id for a in new)]
                with contextlib.suppress(OSError):
                    memory.remember_shown(layer.dir, shown)
    return [*lines]
