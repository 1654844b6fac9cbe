"""What the documents say is there, is there: commands, options, make targets, files, tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fsdpkit.cli.main import COMMANDS
from fsdpkit.cli.main import fsdpkit as group
from tests.packaging.installation import ROOT
from tests.programs import ran

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
# A word that stands for something: <centre>, NAME, …, {a,b}, $HOME.
_PLACEHOLDER = re.compile(r"[<>{}$…]|\b[A-Z]{2,}\b")


# What is typed wrong on purpose; tests/docs looks at it.
OTHERWISE = ("docs/messages.md",)


@cache
def tracked() -> tuple[str, ...]:
    """Every file of the project, those not yet committed included."""
    listed = ran(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, status=0
    )
    return tuple(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def documents() -> list[str]:
    return [name for name in tracked() if name.endswith(".md")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every `fsdpkit …` in code blocks and in code within sentences."""
    lines = list(_CODE.findall(_FENCE.sub("", text)))
    for _, block in _FENCE.findall(text):
        lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        shown = line.strip().removeprefix("$ ").strip()
        if shown.startswith("fsdpkit "):
            try:
                yield shlex.split(shown, comments=True)[1:]
            except ValueError:  # an apostrophe in a comment or in prose
                yield shown.split("#")[0].split()[1:]


def wrong_words(words: list[str]) -> Iterator[str]:
    """The command or options in these words that do not exist."""
    if words[:1] == ["--host"]:  # and its value, before any command
        words = words[2:]
    name = words[0] if words else ""
    if name.startswith("-"):
        name, words = "", ["", *words]
    if name and _PLACEHOLDER.search(name):
        return
    if name and name not in COMMANDS:
        yield f"there is no command: fsdpkit {name}"
        return
    command = group.get_command(click.Context(group), name) if name else group
    assert command is not None
    if isinstance(command, click.Group) and name and len(words) > 1:
        words = words[1:]
        below = command.get_command(click.Context(command), words[0])
        if below is None and "start" in command.commands:
            below = command.commands["start"]
        if below is None:
            yield f"there is no command: fsdpkit {name} {words[0]}"
            return
        name, command = f"{name} {words[0]}", below
    context = click.Context(command, **command.context_settings)
    options = {o for p in command.get_params(context) for o in (*p.opts, *p.secondary_opts)}
    for word in words[1:]:
        if word in ("--", "|", ">", "&&", ";"):
            return
        option = word.strip("[]").split("=")[0]
        if option.startswith("--") and option not in options | {"--help", "--version"}:
            yield f"there is no option: fsdpkit {name} {option}"


@pytest.mark.parametrize("document", [n for n in documents() if n not in OTHERWISE])
def test_commands_and_options_exist(document: str) -> None:
    assert [w for words in command_lines(read(document)) for w in wrong_words(words)] == []


@pytest.mark.parametrize("document", documents())
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", read(document), re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("document", documents())
def test_files_exist(document: str) -> None:
    """Links, and code that begins with a folder of this project."""
    text = read(document)
    here = (ROOT / document).parent
    tops = {name.split("/")[0] for name in tracked() if "/" in name}
    missing = [
        link
        for link in _LINK.findall(text)
        if not re.match(r"[a-z]+:", link) and not (here / link).exists()
    ]
    for code in _CODE.findall(_FENCE.sub("", text)):
        for word in code.split():
            path = word.partition("::")[0].rstrip(".,:;")
            if "/" not in path or path.split("/")[0] not in tops or _PLACEHOLDER.search(path):
                continue
            if not list(ROOT.glob(path.rstrip("/"))):
                missing.append(path)
    assert missing == []


@pytest.mark.parametrize("document", documents())
def test_named_tests_exist(document: str) -> None:
    """Code such as `tests/cli/test_cli.py::test_no_runs_is_an_answer`."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", read(document))
    assert [f"{file}::{test}" for file, test in named if test not in names_of_tests(file)] == []


@cache
def names_of_tests(file: str) -> set[str]:
    """Names of the tests in a file of this project; none if there is no such file."""
    if not (ROOT / file).is_file():
        return set()
    return set(re.findall(r"^def (test_\w+)\(", read(file), re.MULTILINE))


def test_no_file_names_the_machine_it_was_written_on() -> None:
    places = [f"{ROOT}/", f"{Path.home()}/"]
    named = []
    for name in tracked():
        try:
            text = read(name)
        except UnicodeDecodeError:
            continue
        named += [f"{name}: {place}" for place in places if place in text]
    assert named == []
