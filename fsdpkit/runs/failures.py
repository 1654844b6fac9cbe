"""`failures/`: one file for each failure, written by whoever saw it.

An agent writes one line of JSON, a `FailureRecord`; the shells of the batch script, which may have
no Python, write `CAUSE STATUS NODE WORDS`. Everybody else reads fields: no decision depends on
words, and what a rank prints never becomes the record of an agent or a shell.
"""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

_MOST_WORDS = 1 << 14
"""Characters of the words that are kept."""


class Level(IntEnum):
    """How much a failure explains; of an attempt's failures those of the highest level count."""

    LOST_PEER = 1
    """Says only that another process is gone."""
    WAITED = 2
    """Waited in vain for another process, and says for how long."""
    KILLED = 3
    """Ended by a signal that nobody explains."""
    SUMMED_UP = 4
    """What the batch shell made of it without Slurm's word."""
    OWN = 5
    """A failure of the process that tells of it: the first by the clock counts."""
    OUTSIDE = 6
    """Slurm, a person or a broken node ended the training: all that ranks say follows from it."""


HUNG, CHECK, HEAD_SILENT, REFUSED = "hung", "check", "head-silent", "refused"
HOLD_GONE = "hold-gone"
"""Rules by which agents and the batch shell judge: a rank made no progress; a node failed its check
before training; the head's agent does not answer; Slurm did not create the step; the hold that the
run is on has ended."""

PORTS_BLOCKED = "ports-blocked"
"""The cause where nodes are there and do not reach each other's ports: no node is to blame."""


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How something ended: a rank's process, an agent's own work, or a shell's."""

    by: str
    """`agent` or `shell`; `rank`: its own words, which its agent has only read."""
    rule: str = ""
    """By which rule an agent or a shell judged, where readers tell them apart."""
    name: str = ""
    """The node's. The batch script looks for it behind `rule`."""
    rank: int | None = None
    """Whom it is about, if it is a rank."""
    status: int
    """Exit status; 128 + signal."""
    cause: str = ""
    """One of failures/causes.py; empty where nothing went wrong."""
    level: int = Level.OWN
    sure: bool = True
    """Whether it is known to be how the process ended, and not only what was said last."""
    words: str = ""
    exception: str = ""
    """The type of what was raised."""
    place: str = ""
    """`train.py:88`: the line of the script's own code."""
    launch: int | None = None
    step: int | None = None
    """Steps done by then, where ranks tell; -1 before the first was tried."""
    time_ns: int = 0
    """Unix time by the node's clock."""

    @property
    def who(self) -> str:
        return self.name if self.rank is None else f"rank {self.rank} on {self.name}"

    @property
    def message(self) -> str:
        """For a person: `rank 3 on node2: RuntimeError: …`."""
        return f"{self.who}: {self.words}"


def bounded(words: str) -> str:
    """Of long words the beginning, which any encoder takes."""
    return words[:_MOST_WORDS].encode(errors="replace").decode()


def in_a_line(record: FailureRecord) -> str:
    """As it is written."""
    return msgspec.json.encode(record).decode() + "\n"


SHELLS_MARK = "fsdpkit: failed: "
"""With which a shell begins the record in its log; what it says to people stands in front."""
SHELLS_LINE = re.compile(
    r"(?P<cause>[a-z]+(?:-[a-z]+)*) (?P<status>\d{1,3}) (?P<name>[\w.-]+)(?: (?P<words>.*))?", re.A
)


def read_record(text: str) -> FailureRecord | None:
    """The record that stands in a file; None where it is cut off, or an older release's."""
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text, type=FailureRecord)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors, too
            return None
    match = SHELLS_LINE.fullmatch(text.partition("\n")[0])
    if match is None:
        return _in_words(text)
    return FailureRecord(
        by="shell",
        name=match["name"],
        status=int(match["status"]),
        cause=match["cause"],
        level=Level.LOST_PEER if match["cause"] == "connection-reset" else Level.OWN,
        words=match["words"] or "",
    )


_IN_WORDS = re.compile(
    r"(?P<status>\d{1,3}) (?:rank (?P<rank>\d{1,9}) on )?(?P<name>[\w.-]+): (?P<words>.*)",
    re.A | re.S,
)


def _in_words(text: str) -> FailureRecord | None:
    """`1 rank 3 on node2: words`, as it was written before agents put causes on record."""
    match = _IN_WORDS.fullmatch(text)
    if match is None:
        return None
    return FailureRecord(
        by="rank" if match["rank"] else "agent",
        name=match["name"],
        rank=int(match["rank"]) if match["rank"] else None,
        status=int(match["status"]),
        words=match["words"],
    )
