"""Programs that left because of arguments that they do not know. They print no traceback, and most
say by their status what it was.
"""

from __future__ import annotations

import re

from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.failures.tracebacks import lines_of

_REFUSED = re.compile(r"^(?:\S+: error: |Error: |No such|Missing|Invalid|Got unexpected)")
_OF_ARGUMENTS = re.compile(
    r"(?i)\b(?:un(?:recogni[sz]ed|known|expected)|no such|missing|invalid|ambiguous|required|"
    r"not consume)\b.{0,40}"
    r"(?:\b(?:options?|arg(?:ument)?s?|flags?|parameters?|(?:sub)?commands?)\b|\B--?[a-z])|"
    r"\b(?:options?|arg(?:ument)?s?|flags?)\b.{0,40}\b(?:required|not recogni[sz]ed)\b|"
    r"\berror parsing -"
)
"""How parsers of arguments refuse one: absl, Fire, tyro and others have no form in common."""
_BY_CONVENTION = 2
"""The status of a program that does not understand its arguments."""
_NEAR_THE_END, _AT_THE_END = 15, 6
"""Lines in which the refusal must stand, of that status and of 1."""
_PARSER = Pattern((), "argparse, click and their like")


def of_arguments(status: int | None, err: str) -> Shown | None:
    """The line by which a program refuses its arguments: the last one, or one that has a usage
    message, a word about help or a frame near it."""
    if status not in (1, _BY_CONVENTION):
        return None
    lines = [line for line in lines_of(err) if line.text.strip()]
    meant = status == _BY_CONVENTION
    used = meant and any(line.text.lower().startswith("usage: ") for line in lines)
    lines = lines[-(_NEAR_THE_END if meant else _AT_THE_END) :]
    framed = ("--help" in line.text or line.text[:1] in ("╭", "┌") for line in lines)
    if not used and not any(framed):
        lines = lines[-1:] if meant else []
    for line in reversed(lines):
        words = unframed(line.text)
        if (used and _REFUSED.match(words)) or _OF_ARGUMENTS.search(words):
            return Shown("settings", _PARSER, line.begin, line.end, words=words, sure=meant)
    return None


def unframed(text: str) -> str:
    """A line without the frame that rich draws around it."""
    return text.strip(" │|╭╮╰╯─┌┐└┘")
