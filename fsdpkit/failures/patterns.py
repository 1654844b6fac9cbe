"""A line that shows a cause: how it is found, fast, in the ends of many long logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from fsdpkit.runs.failures import Level as Level

if TYPE_CHECKING:
    from fsdpkit.failures.tracebacks import PrintedException


Speaker = Literal["rank", "agent", "batch"]
EVERYBODY: tuple[Speaker, ...] = ("rank", "agent", "batch")


class TextPlace(NamedTuple):
    """Where in a text a pattern stands: the whole line, or lines, from `begin` to `end`."""

    begin: int
    end: int
    node: str | None = None
    rank: int | None = None


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words that show a cause, and who writes them."""

    words: tuple[str, ...]
    """Any of them, spelt like this, with anything of the same line for `…`: searching for plain
    words is a hundred times faster than for most regular expressions."""
    why: str
    """Who writes it, and when."""
    level: Level = Level.OWN
    by: tuple[Speaker, ...] = EVERYBODY
    line: re.Pattern[str] | None = None
    """What the line must look like besides, where the words alone say too little. Named groups
    `node` and `rank` in it say whom it is about."""
    quoted: bool = False
    """Whether the words may stand in quotation marks, which else hold data."""

    def found_in(self, text: str) -> TextPlace | None:
        """The first line of the text that shows it."""
        places = (self._first(words, text) for words in self.words)
        return min((place for place in places if place is not None), default=None)

    def _first(self, words: str, text: str) -> TextPlace | None:
        first = words.partition("…")[0]
        at = text.find(first)
        while at >= 0:
            begin = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at + len(first))
            end = len(text) if end < 0 else end
            if stands_in(text[at:end], words):
                if self.line is None:
                    return TextPlace(begin, end)
                if match := self.line.search(text[begin:end]):
                    about = match.groupdict()
                    rank = about.get("rank")
                    return TextPlace(begin, end, about.get("node"), int(rank) if rank else None)
            at = text.find(first, end)
        return None


def stands_in(text: str, words: str) -> bool:
    """Whether the parts of the words around `…` follow one another; `^`: from the text's start."""
    if words.startswith("^"):
        return text.startswith(words[1:])
    at = 0
    for part in words.split("…"):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


class Shown(msgspec.Struct, frozen=True):
    """A place in a text that shows a cause."""

    cause: str
    pattern: Pattern
    begin: int
    end: int
    node: str | None = None
    rank: int | None = None
    words: str | None = None
    """What to quote, where it is not the line itself."""
    raised: PrintedException | None = None
    """The exception that shows it."""
    sure: bool = True
    """Whether it is known to be how the process ended; else it is only what was said last."""

    @property
    def level(self) -> Level:
        return self.pattern.level

    def moved(self, by: int) -> Shown:
        return msgspec.structs.replace(self, begin=self.begin + by, end=self.end + by)
