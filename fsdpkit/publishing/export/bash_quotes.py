"""Where bash expands nothing: inside single quotes, and in a here-document whose end is quoted.

As far as an exported script needs it: quotes that go over several lines, command substitutions
inside double quotes, comments, here-documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BEFORE_A_WORD = " \t\n;&|()"
_HERE = re.compile(r"<<(?P<tabs>-?)[ \t]*(?P<quote>['\"\\]?)(?P<end>[\w.-]+)")
_ANSI_C = re.compile(r"\$'(?:[^'\\]|\\.)*", re.DOTALL)


def unexpanded(text: str) -> Iterator[int]:
    """The place of each character that bash leaves as it is."""
    inside = [""]  # from the outside in: "" code, '"' double quotes, ")" a command substitution
    waiting: list[re.Match[str]] = []  # here-documents that begin on the next line
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
        elif top != '"' and (quoted := _ANSI_C.match(text, at)):
            yield from range(at + 2, quoted.end())
            at = quoted.end()
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
            at = (len(text) if end < 0 else end) - 1
        elif text.startswith("<<<", at):
            at += 2
        elif top != '"' and (found := _HERE.match(text, at)):
            waiting.append(found)
            at = found.end() - 1
            if found["quote"] in ("'", '"'):
                at += 1
        elif char == "\n" and waiting:
            end = at + 1
            for document in waiting:
                begin, end = end, _end_of(text, document, end)
                if document["quote"]:
                    yield from range(begin, end)
            waiting.clear()
            at = end - 1
        at += 1


def _end_of(text: str, document: re.Match[str], begin: int) -> int:
    """Behind the line that ends a here-document."""
    tabs = r"\t*" if document["tabs"] else ""
    last = re.compile(rf"^{tabs}{re.escape(document['end'])}$\n?", re.MULTILINE)
    found = last.search(text, begin)
    return len(text) if found is None else found.end()
