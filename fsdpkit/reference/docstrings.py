"""A docstring in Google's style, taken apart: a summary, paragraphs, and sections after them.

The style is that of the Google Python Style Guide, section 3.8. What is not in it is refused, so
that a slip (`Arguments:`, a paragraph behind a section) does not go missing on a page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LISTS = ("Args", "Attributes", "Raises")
"""Sections of entries, `name: words` each."""
SECTIONS = (*LISTS, "Returns", "Yields", "Examples")
_HEADER = re.compile(r"([A-Z][a-z]+):")
_ENTRY = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*): (\S.*)")


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring. Text keeps its lines; a list item begins with `- `.

    Attributes:
        summary: The first line.
        paragraphs: What follows it, before the first section.
        lists: Entries of `Args`, `Attributes` and `Raises`: name to words, on one line.
        texts: `Returns`, `Yields` and `Examples`, as they are indented.
    """

    summary: str
    paragraphs: tuple[str, ...] = ()
    lists: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def entries(self, section: str) -> Mapping[str, str]:
        """The entries of a section; none where it is missing."""
        return self.lists.get(section, {})


def parse(text: str) -> Docstring:
    """Take a docstring apart.

    Args:
        text: As Python has it, indented by its surroundings.

    Raises:
        ValueError: If it is not in the style; says which line.
    """
    lines = inspect.cleandoc(text).splitlines() or [""]
    if len(lines) > 1 and lines[1]:
        raise ValueError(f"no blank line behind the summary: {lines[0]!r}")
    parts = list(_parts(lines[1:]))
    lists = {name: _entries(name, body) for name, body in parts if name in LISTS}
    texts = {name: body for name, body in parts if name and name not in LISTS}
    paragraphs = [each for name, body in parts if not name for each in body.split("\n\n") if each]
    named = [name for name, _ in parts if name]
    if sorted(named) != sorted(set(named)):
        raise ValueError(f"a section occurs twice: {', '.join(named)}")
    if empty := [name for name in named if not (lists.get(name) or texts.get(name))]:
        raise ValueError(f"nothing is in section {empty[0]}")
    return Docstring(lines[0], tuple(paragraphs), lists, texts)


def _parts(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The text before all sections, without a name, then each section with its body."""
    name, body = "", list[str]()
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header:
            if header[1] not in SECTIONS:
                raise ValueError(f"no section is called {line!r}: {', '.join(SECTIONS)}")
            yield name, inspect.cleandoc("\n" + "\n".join(body))
            name, body = header[1], []
        elif name and line and not line.startswith("    "):
            raise ValueError(f"a line behind section {name} is not indented: {line!r}")
        else:
            body.append(line)
    yield name, inspect.cleandoc("\n" + "\n".join(body))


def _entries(section: str, body: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in filter(None, body.splitlines()):
        if line.startswith(" "):
            if not name:
                raise ValueError(f"{section} begins with a line that goes on: {line!r}")
            found[name] += f" {line.strip()}"
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise ValueError(f"an entry of {section} is not `name: words`: {line!r}")
        name = entry[1]
        if name in found:
            raise ValueError(f"{section} has {name} twice")
        found[name] = entry[2]
    return found
