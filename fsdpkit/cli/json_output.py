"""How `--json` is printed: one object a line whose `schema` names its shape, also for an error.

The shapes are in json_answers.py. This module needs the standard library alone until there is an
answer, because a laptop without fsdpkit's dependencies reports errors, too.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import click

from fsdpkit.errors import FsdpkitError

ERROR_SCHEMA = "fsdpkit.error/1"

_printed: list[object] = []
"""Whether this process has printed its answer; what goes wrong later is for standard error."""


def begin() -> None:
    """Before a command: none of its answer is printed yet."""
    _printed.clear()


def print_answer(answer: object) -> None:
    """Print a command's one answer, a struct of json_answers.py."""
    _printed.append(True)
    click.echo(as_json(answer))


def print_item(item: object) -> None:
    """Print one of many objects, a line each, which an error may follow."""
    click.echo(as_json(item))


def as_json(answer: object) -> str:
    """One line. NaN and infinities become null; a byte of a file name that is no UTF-8 becomes
    `\\udcXX`, which the file name's bytes can be found by."""
    import msgspec

    try:
        return msgspec.json.encode(answer, enc_hook=str).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(answer, enc_hook=str, str_keys=True)
        return msgspec.json.encode(_encodable(plain)).decode()


def _encodable(value: Any) -> Any:
    """`value` without lone surrogates, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(below) for below in value]
    return value


def print_error(kind: str, message: str, exit_status: int) -> None:
    """Print the error that ends the command, if `--json` was typed and no answer was printed."""
    words = sys.argv[1:]
    typed = words[: words.index("--")] if "--" in words else words
    if "--json" not in typed or _printed:
        return
    message = str(_encodable(message))
    error = {"schema": ERROR_SCHEMA, "kind": kind, "message": message, "exit_status": exit_status}
    click.echo(json.dumps(error, ensure_ascii=False))


def kind_of(error: FsdpkitError) -> str:
    """`not_found` for a NotFoundError, also for one that a room has derived from it."""
    common = next(
        kind for kind in type(error).__mro__ if kind.__module__ == FsdpkitError.__module__
    )
    name = common.__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
