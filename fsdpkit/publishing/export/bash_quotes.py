"""Where bash expands nothing: the inside of single quotes.

As far as an exported script needs it: quotes that go over several lines, command substitutions
inside double quotes, comments. Text of a here-document is read as code, which it is in templates.
"""

from __future__ import annotations

from collections.abc import Iterator

_BEFORE_A_WORD = " \t\n;&|()"


def in_single_quotes(text: str) -> Iterator[int]:
    """The place of each character that stands in single quotes."""
    inside = [""]  # from the outside in: "" code, '"' double quotes, ")" a command substitution
    at = 0
    while at < len(text):
        char, top = text[at], inside[-1]
        if char == "\\":
            at += 2
            continue
        if char == "'" and top != '"':
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            yield from range(at + 1, end)
            at = end
        elif char == '"':
            inside.pop() if top == '"' else inside.append('"')
        elif text.startswith("$((", at):
            at += 2  # arithmetic, which holds no quotes; its parentheses close nothing
        elif text.startswith("$(", at):
            inside.append(")")
            at += 1
        elif char == ")" and top == ")":
            inside.pop()
        elif char == "#" and top != '"' and (at == 0 or text[at - 1] in _BEFORE_A_WORD):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        at += 1
