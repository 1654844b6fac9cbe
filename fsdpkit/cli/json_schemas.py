"""The JSON Schema of every answer that a command prints with `--json` (json_output.py).

`python -m fsdpkit.cli.json_schemas FOLDER` writes them into a folder; `make docs` publishes them.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import click
import msgspec

from fsdpkit.cli.groups import START
from fsdpkit.cli.json_output import Answer, JsonOption, failed
from fsdpkit.cli.main import fsdpkit
from fsdpkit.config.schema import in_one_line


def answers_of(command: click.Command) -> tuple[Answer[Any], ...]:
    """What a command prints with `--json`, first what is usual; nothing without that option."""
    options = (one for one in command.params if isinstance(one, JsonOption))
    return next((tuple(one.answers) for one in options), ())


def commands(
    group: click.Group = fsdpkit, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command with the words that call it."""
    context = click.Context(group)
    for name in dict.fromkeys([*group.commands, *group.list_commands(context)]):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join(words if name == START else (*words, name)), command


def all_answers() -> list[Answer[Any]]:
    """Each once, by name."""
    found = {failed, *(one for _, command in commands() for one in answers_of(command))}
    return sorted(found, key=name_of)


def struct_of(answer: Answer[Any]) -> Any:
    """The type of what is printed."""
    _import_what_types_name(sys.modules[answer.fields.__module__])
    hints = get_type_hints(answer.fields, include_extras=True)
    fields = [(name, kind) for name, kind in hints.items() if name != "return"]
    if answer.name is None:
        ((_, record),) = fields
        return record
    about = {"__doc__": inspect.getdoc(answer.fields)}
    words = name_of(answer).removeprefix("fsdpkit.").partition("/")[0].split("-")
    title = "".join(word.capitalize() for word in words) + "Answer"
    return msgspec.defstruct(title, fields, namespace=about, tag_field="schema", tag=answer.name)


@cache
def _import_what_types_name(module: ModuleType) -> None:
    """Into the module of a command what it imports for type checkers alone, to be quick."""
    for block in ast.parse(inspect.getsource(module)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                assert isinstance(line, ast.ImportFrom)
                found = import_module(str(line.module))
                for one in line.names:
                    setattr(module, one.name, getattr(found, one.name))


def name_of(answer: Answer[Any]) -> str:
    """`fsdpkit.status/1`."""
    if answer.name is not None:
        return answer.name
    fields = msgspec.structs.fields(struct_of(answer))
    return str(*get_args(next(one.type for one in fields if one.name == "schema")))


def file_of(answer: Answer[Any]) -> str:
    """`status.schema.json`."""
    return name_of(answer).removeprefix("fsdpkit.").partition("/")[0] + ".schema.json"


def schemas() -> dict[str, str]:
    """The text of each JSON Schema, by its file's name."""
    return {file_of(answer): schema_of(answer) for answer in all_answers()}


def schema_of(answer: Answer[Any]) -> str:
    """The text of one."""
    kind = struct_of(answer)
    schema = in_one_line(msgspec.json.schema(kind, schema_hook=_path))
    own = schema["$defs"][kind.__name__]
    # A record's own `schema` has a default, and is always printed.
    own["required"] = ["schema", *(name for name in own.get("required", []) if name != "schema")]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name_of(answer)}
    text = json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"
    return text.replace(r'\\Z"', '$"')  # the end of a pattern, as JSON Schema spells it


def _path(kind: type) -> dict[str, str]:
    """Of the one type that msgspec does not know. Raises NotImplementedError for another."""
    if not issubclass(kind, Path):
        raise NotImplementedError
    return {"type": "string"}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fsdpkit.cli.json_schemas FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
