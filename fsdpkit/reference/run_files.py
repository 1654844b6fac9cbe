"""Every file of a run, from the only module that spells their names (runs/layout.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fsdpkit.reference import markdown
from fsdpkit.runs import layout

_LINE = re.compile(r"(?P<margin> +)(?P<name>\S.*?)(?:  +(?P<sentence>\S.*))?")
_SENTENCES_AT = 32
"""The column at which the docstring's sentences begin."""


class RunFile(NamedTuple):
    """A file or directory, by its path below the directory of runs."""

    path: str
    sentence: str


def files() -> Iterator[RunFile]:
    above: list[tuple[int, str]] = []
    path, sentence = "", ""
    for line in _tree():
        match = _LINE.fullmatch(line)
        assert match is not None, line
        margin = len(match["margin"])
        if margin >= _SENTENCES_AT:
            sentence += f" {line.strip()}"
            continue
        if path and sentence:
            yield RunFile(path, sentence)
        name, sentence = match["name"], match["sentence"] or ""
        above = [(column, directory) for column, directory in above if column < margin]
        path = "".join(directory for _, directory in above) + name
        if name.endswith("/") and " " not in name:
            above.append((margin, name))
    yield RunFile(path, sentence)


def _tree() -> Iterator[str]:
    """The indented lines of the docstring."""
    for line in (layout.__doc__ or "").splitlines():
        if line.startswith("    "):
            yield line


def page() -> str:
    head = [
        "A run is a directory; only the list of nodes to avoid lies beside it.",
        "Every file has one writer, who appends whole lines or replaces the file by renaming.",
    ]
    rows = [(markdown.code(file.path), markdown.escaped(file.sentence)) for file in files()]
    return markdown.page("Files of a run", head, markdown.table(("file", "what it is"), rows))
