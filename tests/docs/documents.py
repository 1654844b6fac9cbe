"""What is in the documents: commands, files and program text in code blocks, links, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.packaging.installation import ROOT
from tests.packaging.test_documentation import tracked

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4,}(?:\$ )?(fsdpkit .*(?:\\\n.*)*)$", re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a id=\"([^\"]+)\"")
_MADE = re.compile(r"<!-- made by [^>]*-->.*?<!-- end of [^>]*-->", re.DOTALL)
_CRON = re.compile(r"^(?:[*\d/,-]+ +){5}")
_GOES_ON = re.compile(r"(\\|\|) *\n\s*")
_ENDS = frozenset({"&&", "||", "|", ";", ">", ">>", "<"})


class Block(NamedTuple):
    """A code block, with the language that it names."""

    language: str
    text: str


@cache
def documents() -> tuple[str, ...]:
    """For a person who uses the program, and those that they lead to."""
    return tuple(
        name
        for name in tracked()
        if name.endswith(".md")
        and (
            name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")
            or name.startswith(("docs/", "skills/", "templates/"))
            or re.fullmatch(r"examples/[^/]+/README\.md", name)
        )
    )


@cache
def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    return blocks_in(read(document))


def blocks_in(text: str) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(text)]


def prose(document: str) -> str:
    return _FENCE.sub("", read(document))


def commands(document: str) -> list[str]:
    return commands_in(read(document))


def commands_in(document: str) -> list[str]:
    """Every `fsdpkit …` of the document's code blocks as one line; of what a terminal shows
    (`text`, `console`) what was typed behind the prompt."""
    outside = _FENCE.sub("", document)
    found = [line.replace("\\\n", " ") for line in _INDENTED.findall(outside)]
    for language, text in blocks_in(document):
        for line in text.replace("\\\n", " ").splitlines():
            shown = line.strip()
            if language in ("", "bash", "sh") or shown.startswith("$ "):
                shown = shown.removeprefix("$ ")
                if re.match(r"fsdpkit(?= |$)", shown) or "&& fsdpkit" in shown:
                    found.append(shown)
    return found


def typed(document: str) -> list[list[str]]:
    """What the page has its reader type into a shell, by block, a command a line; without what a
    generator put there, which runs it."""
    text = _MADE.sub("", read(document))
    found = [[line.replace("\\\n", " ")] for line in _INDENTED.findall(_FENCE.sub("", text))]
    for language, shown in blocks_in(text):
        lines = [
            line.strip() for line in _GOES_ON.sub(r"\1 ", shown).replace("\\ ", "").splitlines()
        ]
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if language in ("", "bash", "sh") and not prompted:
            prompted = [line for line in lines if line and not line.startswith("#")]
        found.append([_CRON.sub("", line) for line in prompted])
    return [lines for lines in found if lines]


def words_of(line: str) -> Iterator[list[str]]:
    """Behind `fsdpkit`, for each command that a shell would start of the line."""
    words = shlex.split(line, comments=True)
    start = 0
    for at, word in enumerate([*words, ";"]):
        if word in _ENDS:
            if words[start : start + 1] == ["fsdpkit"]:
                yield words[start + 1 : at]
            start = at + 1


def links(document: str) -> list[str]:
    return [link for link in _LINK.findall(prose(document)) if not re.match(r"[a-z]+:", link)]


@cache
def anchors(document: str) -> frozenset[str]:
    """Where a link into the document can lead, by GitHub's rule for headings."""
    found: dict[str, int] = {}
    text = prose(document)
    for heading in _HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    numbered = (f"{slug}-{n}" for slug, most in found.items() for n in range(1, most + 1))
    return frozenset({*found, *numbered, *_ANCHOR.findall(text)})
