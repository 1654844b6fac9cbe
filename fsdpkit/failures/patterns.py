"""A line in a log that shows a cause: how it is found, fast, in the ends of many long logs."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Literal, NamedTuple


class Level(IntEnum):
    """How much a finding explains; of an attempt's findings those of the highest level count."""

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


Speaker = Literal["rank", "agent", "batch"]
EVERYBODY: tuple[Speaker, ...] = ("rank", "agent", "batch")


class Place(NamedTuple):
    """Where in a text a sign stands: the whole line, or lines, from `begin` to `end`."""

    begin: int
    end: int
    node: str | None = None


class Sign(NamedTuple):
    """Words that show a cause, and who writes them."""

    words: tuple[str, ...]
    """Any of them, spelt like this: searching for plain words is a hundred times faster than for
    most regular expressions."""
    why: str
    """Who writes it, and when."""
    level: Level = Level.OWN
    by: tuple[Speaker, ...] = EVERYBODY
    line: re.Pattern[str] | None = None
    """What the line must look like besides, where the words alone say too little. A named group
    `node` in it says which node it is about."""
    action: str | None = None
    """What to do, where it is something else than for the cause in general."""

    def found_in(self, text: str) -> Place | None:
        """The first line of the text that shows it."""
        places = (self._first(words, text) for words in self.words)
        return min((place for place in places if place is not None), default=None)

    def _first(self, words: str, text: str) -> Place | None:
        at = text.find(words)
        while at >= 0:
            begin = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at + len(words))
            end = len(text) if end < 0 else end
            if self.line is None:
                return Place(begin, end)
            if match := self.line.search(text[begin:end]):
                return Place(begin, end, match.groupdict().get("node"))
            at = text.find(words, end)
        return None


def sign(
    words: str | tuple[str, ...],
    why: str,
    level: Level = Level.OWN,
    *,
    by: tuple[Speaker, ...] = EVERYBODY,
    line: str | None = None,
    action: str | None = None,
) -> Sign:
    """A sign; `line` is a regular expression."""
    several = (words,) if isinstance(words, str) else words
    return Sign(several, why, level, by, re.compile(line) if line else None, action)
