"""A profile's tables as the text of a TOML file, with a note beside some of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from fsdpkit.config.as_toml import inline, key_text

_WIDTH = 98


def cut(words: str, most: int) -> str:
    """A stranger's words: nothing in them that a terminal or a reader of TOML would obey."""
    shown = "".join(c if c.isprintable() else "?" for c in words)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def profile_text(tables: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """notes: by dotted key; what none of the tables has is left out."""
    return "\n".join(_tables(tables, notes, ())).strip() + "\n"


def _tables(
    table: Mapping[str, Any], notes: Mapping[str, str], above: tuple[str, ...]
) -> Iterator[str]:
    below: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows = isinstance(value, list) and value and isinstance(value[0], Mapping)
        if rows or (isinstance(value, Mapping) and key != "select"):
            below.append((key, value))
        else:
            yield from _note(notes, (*above, key))
            yield f"{key_text(key)} = {_value(value)}"
    for key, value in below:
        path = (*above, key)
        if isinstance(value, list):
            for one in value:
                yield from ("", f"[[{_dotted(path)}]]")
                yield from _tables(one, {}, path)
        elif value and all(isinstance(one, Mapping) for one in value.values()):
            yield from _tables(value, notes, path)
        else:
            yield ""
            yield from _note(notes, path)
            yield f"[{_dotted(path)}]"
            yield from _tables(value, notes, path)


def _note(notes: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    words = notes.get(".".join(path), "")
    for line in textwrap.wrap(words, _WIDTH - 2, break_on_hyphens=False):
        yield f"# {line}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(map(key_text, path))


def _value(value: Any) -> str:
    """On one line if it is short, else an item a line."""
    one_line = inline(value)
    if not isinstance(value, list) or len(one_line) <= _WIDTH - 12:
        return one_line
    return "[\n" + "".join(f"    {inline(one)},\n" for one in value) + "]"
