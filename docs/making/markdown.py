"""Text of the code as Markdown: markup is escaped, but for code in backticks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from fsdpkit.cli.terminal import wrap

COMMAND = "python -m docs.making"
BEGIN = f"<!-- made by {COMMAND}: do not edit -->"
END = f"<!-- end of what {COMMAND} made -->"

_WIDTH = 79
_CODE = re.compile(r"(`[^`]+`)")
_MARKUP = re.compile(r"\*|(?<!\w)_|_(?!\w)|\\")
_TYPED = re.compile(
    r"(?<![\w`/.-])("
    r"--set [\w.]+=(?:[\w…-]|\.(?=\w))+|fsdpkit(?: [a-z]+)+(?: [A-Z]+)?(?: --[a-z]+(?: \d+)?)*"
    r"|--[a-z][a-z-]+"
    r"|(?:training|resources|retry|rendezvous|parameters|environment)(?:\.\w+)+(?:=[\w-]+)?"
    r")(?![\w/])"
)


def escaped(text: str) -> str:
    """One line of plain text, in which only backticks are markup."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(p if p.startswith("`") and len(p) > 2 else _plain(p) for p in parts)


def _plain(text: str) -> str:
    return _MARKUP.sub(lambda found: f"\\{found[0]}", text).replace("<", "&lt;")


def typed(text: str) -> str:
    """The text with commands, options and keys of a job in backticks, for `escaped`."""
    return _TYPED.sub(r"`\1`", text)


def code(text: str) -> str:
    """The text as code, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def folded(text: str, first: str = "", rest: str = "") -> list[str]:
    """Lines of a paragraph for a terminal of 80 columns, which break no code."""
    return wrap(text, _WIDTH, first, rest, _CODE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |".replace("|  |", "| |")


def _cell(text: str) -> str:
    """With bars that end no cell; code with one is HTML, for programs differ about it there."""
    parts = _CODE.split(text)
    return "".join(
        f"<code>{html.escape(part[1:-1]).replace('|', '&#124;')}</code>"
        if part.startswith("`") and "|" in part
        else part.replace("|", "\\|")
        for part in parts
    )


def with_block(text: str, block: str) -> str:
    """The page `text` with `block` in the place of what was made before, or at its end."""
    made = f"{BEGIN}\n\n{block}\n\n{END}"
    place = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if place.search(text):
        return place.sub(lambda _: made, text, count=1)
    return f"{text.rstrip()}\n\n{made}\n" if text.strip() else f"{made}\n"
