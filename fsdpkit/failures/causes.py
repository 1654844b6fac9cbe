"""The causes that a run can have ended for, and which of them goes first: causes.toml.

An entry (cause.py) has the sentence that a person reads and how the cause is recognised: by a line
that somebody wrote (`patterns`), by an exception's type or number, by an exit status, by Slurm's
state of the job, by how the batch shell summed it up (`endings`). What to do about it: advice/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import Level, Shown, Speaker


def _read() -> Iterator[Cause]:
    def compiled(_: type, told: str | list[str]) -> Any:
        """A regular expression, or the parts of a long one."""
        return re.compile("".join(told))

    table = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    for cause in table["cause"]:
        for pattern in cause.get("patterns", ()):
            pattern["level"] = Level[pattern.get("level", "OWN")]
        yield msgspec.convert(cause, Cause, dec_hook=compiled)


CAUSES = {cause.name: cause for cause in _read()}
"""By name, the more particular first."""


def shown_in(
    text: str, speaker: Speaker, masked: str | None = None, below: int = Level.OUTSIDE + 1
) -> Iterator[Shown]:
    """The causes that a text of this speaker shows, the more particular first: for each the first
    place, by patterns below a level. masked: the text without what it quotes."""
    for cause in CAUSES.values():
        for pattern in cause.patterns:
            if speaker not in pattern.by or pattern.level >= below:
                continue
            searched = text if masked is None or pattern.quoted else masked
            if (place := pattern.found_in(searched)) is not None:
                yield Shown(cause.name, pattern, place.begin, place.end, place.node, place.rank)
                break


_WITHOUT_A_PAGE = ("running", "done")


def page_of(cause: str) -> str | None:
    """The page on a cause, as a path from what is packaged; None where nothing went wrong."""
    return None if cause in _WITHOUT_A_PAGE else f"docs/failures/{cause}.md"
