"""What `--json` prints: the shapes and their fields, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdpkit.cli.json_answers import Error
from fsdpkit.cli.json_schemas import ANSWERS, file_of, name_of
from fsdpkit.reference import markdown


def page() -> str:
    head = [
        "With `--json` standard output is one object whose `schema` names its shape; of `watch`,",
        "`status --watch` and `logs` one a line. Fields are only added to a shape; where one",
        "changes its meaning or goes, the number changes. Paths are whole, times are Unix time in",
        "seconds, `null` means not known. An error is an object, too, and the exit status is the",
        "same as without `--json`. Every shape has a",
        "[JSON Schema](../../site/schema/output/README.md):",
    ]
    return markdown.page("JSON", head, markdown.table(("command", "schema", "what it is"), _rows()))


def _rows() -> Iterator[tuple[str, str, str]]:
    for command, answers in {**ANSWERS, "any": (Error,)}.items():
        for answer in answers:
            shown = "any command" if answer is Error else f"`fsdpkit {command}`"
            yield shown, link(answer), _sentence(answer)


def link(answer: Any) -> str:
    """To its JSON Schema, from a page of the reference."""
    return f"[{name_of(answer)}](../../site/schema/output/{file_of(answer)})"


def _sentence(answer: Any) -> str:
    return markdown.escaped((answer.__doc__ or "").split("\n\n")[0])
