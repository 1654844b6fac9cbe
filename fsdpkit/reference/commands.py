"""Every command with its arguments and options, as click knows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click

from fsdpkit.cli.json_schemas import ANSWERS
from fsdpkit.cli.main import COMMANDS
from fsdpkit.cli.main import fsdpkit as top
from fsdpkit.cli.sweep import FirstWordOrCommand
from fsdpkit.reference import json_shapes, markdown

_WIDTH = 10_000
"""Of a terminal on which click breaks no line."""


def all_commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Name as typed after `fsdpkit`, command and context, verbs after their command."""
    above = click.Context(top, info_name="fsdpkit", **_context(top))
    for name in COMMANDS:
        command = top.get_command(above, name)
        assert command is not None
        yield from _below(name, name, command, above)


def _below(
    words: str, name: str, command: click.Command, above: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    context = click.Context(command, info_name=name, parent=above, **_context(command))
    yield words, command, context
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            if not below.hidden:
                yield from _below(f"{words} {verb}", verb, below, context)


def _context(command: click.Command) -> dict[str, Any]:
    return {"terminal_width": _WIDTH, "max_content_width": _WIDTH, **command.context_settings}


def page() -> str:
    listed = [
        f"- [`fsdpkit {name}`](#fsdpkit-{name}): {markdown.escaped(sentence)}"
        for name, sentence in COMMANDS.items()
    ]
    head = [
        "Every command answers `--help`. `fsdpkit --host LOGIN COMMAND …` runs it on a login node.",
        "Exit statuses: [all of them](exit-statuses.md). What `--json` prints: [JSON](json.md).",
    ]
    described = (line for one in all_commands() for line in _described(*one))
    return markdown.page("Commands", head, listed, described)


def _described(words: str, command: click.Command, context: click.Context) -> Iterator[str]:
    depth = "##" if " " not in words else "###"
    yield f"{depth} `fsdpkit {words}`"
    yield ""
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield from _help(command)
    options = list(_options(command, context))
    if isinstance(command, FirstWordOrCommand):  # what it does without the name of a verb
        first = command.commands["start"]
        options += _options(first, click.Context(first, parent=context, **_context(first)))
    if options:
        yield from markdown.table(("option", "meaning"), options)
        yield ""
    answers = [json_shapes.link(answer) for answer in ANSWERS.get(words, ())]
    if answers:
        yield f"With `--json`: {', '.join(answers)}."
        yield ""


def _help(command: click.Command) -> Iterator[str]:
    """The command's own words: paragraphs, and what click is told not to fold as code."""
    for paragraph in inspect.cleandoc(command.help or "").split("\f")[0].split("\n\n"):
        if paragraph.startswith("\b"):
            lines = inspect.cleandoc(paragraph.removeprefix("\b").strip("\n")).splitlines()
            yield from ("```", *lines, "```", "")
        elif paragraph.strip():
            yield from (*markdown.folded(markdown.escaped(paragraph)), "")


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and "--help" not in parameter.opts:
            names, sentence = record
            yield markdown.code(names), markdown.escaped(sentence)
