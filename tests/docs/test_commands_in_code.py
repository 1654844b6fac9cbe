"""A command that the program prints, as a remedy or as what comes next, is one that it takes; and
no message names a file of the repository, which an installation from a wheel does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fsdpkit.cli.main import COMMANDS
from tests.docs.documents import commands_in, documents, prose, read
from tests.docs.test_doc_commands import parsed
from tests.packaging.installation import ROOT
from tests.packaging.test_documentation import tracked

SOURCES = [
    *sorted((ROOT / "fsdpkit").rglob("*.py")),
    *sorted((ROOT / "templates").rglob("*.j2")),
    *sorted((ROOT / "jobs").glob("*.toml")),
    *sorted((ROOT / ".github").glob("*/*.yml")),
]
COMMAND = re.compile(r"fsdpkit ((?:--host \S+ )?[a-z]+(?: [^\n`;,()\"|>]*)?)")
VALUE = "1"
"""Stands for what is known only when the message is printed: a name, a number, a path."""


def texts(source: Path) -> Iterator[str]:
    """What the file may print: its strings without docstrings, or all of its text."""
    if source.suffix != ".py":
        yield source.read_text(encoding="utf-8")
        return
    tree = ast.parse(source.read_text(encoding="utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring, of a variable, too
            left_out |= {node.value}
        if isinstance(node, ast.JoinedStr):
            left_out |= {*node.values}
            if node not in left_out:
                parts = (
                    part.value if isinstance(part, ast.Constant) else VALUE for part in node.values
                )
                yield "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out
        ):
            yield re.sub(r"\{[^{}]*\}", VALUE, node.value)


def commands(text: str) -> Iterator[list[str]]:
    """Of each command in the text its words, and those of the sentence behind it."""
    for found in COMMAND.finditer(text):
        words = found[1].replace("…", VALUE).replace("'", "")
        words = re.sub(r"\b[A-Z]\b", VALUE, words).split()
        name = words[2] if words[0] == "--host" else words[0]
        if name in COMMANDS or text[: found.start()].endswith(("`", "\n  ")):
            yield [word.rstrip(".:") for word in words]


def why_not(words: list[str]) -> str | None:
    """Why the program would not take the command: its words go at least to the last option, and
    those behind may be the sentence's. A command may be named without its arguments, an option
    without its value."""
    last = max((at for at, word in enumerate(words) if word.startswith("-")), default=0)
    said = None
    for tried in (
        *(words[:end] for end in range(len(words), last, -1)),
        [*words[: last + 1], VALUE],
    ):
        try:
            list(parsed(tried))
        except click.BadParameter as error:  # or one that is missing
            named_alone = isinstance(error, click.MissingParameter) and not last
            if named_alone or f"'{VALUE}'" in error.message:
                return None
            said = error.format_message()
        except click.UsageError as error:
            said = error.format_message()
        else:
            return None
    return None if words == ["sweep"] else said


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[:2][-1] for path in SOURCES}))
def test_a_command_that_is_printed_is_one_that_the_program_takes(room: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: fsdpkit {' '.join(words)}": why
        for path in SOURCES
        if path.relative_to(ROOT).parts[:2][-1] == room
        for text in texts(path)
        for words in commands(text)
        if (why := why_not(words))
    }
    assert wrong == {}


@pytest.mark.parametrize("document", [name for name in tracked() if name.endswith(".md")])
def test_a_command_in_a_sentence_of_a_document_is_one_that_the_program_takes(document: str) -> None:
    """And those in blocks of documents that test_doc_commands.py does not look at."""
    found = re.findall(r"(?<!`)`(fsdpkit [^`]+)`(?!`)", prose(document))
    if document not in documents():
        found += commands_in(read(document))
    each = (" ".join(re.sub(r"<[^<>]*>|\b[A-Z]+\b(?!=)", VALUE, code).split()) for code in found)
    wrong = {
        " ".join(words): why
        for code in each
        for words in commands(f"`{code}")
        if (why := why_not(words))
    }
    assert wrong == {}


def test_no_message_names_a_file_of_the_repository() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in SOURCES
        if path.suffix == ".py"
        for text in texts(path)
        for found in re.finditer(r"(?<![\w/.])(?:examples|tests)/[\w./-]+", text)
    ]
    assert named == []
