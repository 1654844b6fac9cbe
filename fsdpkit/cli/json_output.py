"""How `--json` is printed: one object a line whose `schema` names its shape, also for an error.

What a command prints is said beside it, by `answer`, and named by its `json_option`; JSON Schemas
are made of that (json_schemas.py). This module needs the standard library alone until there is an
answer, because a laptop without fsdpkit's dependencies reports errors, too.

Fields are only added to an answer; where one changes its meaning or goes, the number in its name
changes. Paths are whole, times are Unix time in seconds, None is "not known".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec

import click

from fsdpkit.errors import FsdpkitError

P = ParamSpec("P")

_printed: list[object] = []
"""Whether this process has printed its answer; what goes wrong later is for standard error."""


@dataclass(frozen=True)
class Answer(Generic[P]):
    """What a command prints with `--json`: called with the fields, it prints them."""

    name: str | None
    """Such as `fsdpkit.submit/1`; None: the one field is a record, which has its own `schema`."""
    fields: Callable[P, None]
    """Its parameters are the fields, its docstring says what they mean."""
    is_last: bool
    """Whether it is all that the command prints, so that no error follows."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Print it; 0, the exit status of most commands that have an answer."""
        if self.is_last:
            _printed.append(True)
        click.echo(self.text(*args, **kwargs))
        return 0

    def text(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The line that is printed."""
        if self.name is None:
            return as_json(args[0])
        code = self.fields.__code__
        names = code.co_varnames[: code.co_argcount]
        return as_json({"schema": self.name, **dict(zip(names, args, strict=False)), **kwargs})


def answer(name: str | None, *, is_last: bool = True) -> Callable[[Callable[P, None]], Answer[P]]:
    """Make an answer of a function without a body. is_last: False for one of many lines."""
    return lambda fields: Answer(name, fields, is_last)


class JsonOption(click.Option):
    """`--json`, with the answers that the command may print."""

    def __init__(
        self, *names: Any, answers: Sequence[Answer[Any]], group: str, **about: Any
    ) -> None:
        super().__init__(*names, **about)
        self.answers, self.group = answers, group


def json_option(
    *answers: Answer[Any], help: str = "Print JSON.", group: str = "Options"
) -> Callable[[Any], Any]:
    """`--json`; the command gets it as `as_json`. group: its heading in `--help`."""
    about: dict[str, Any] = {"answers": answers, "group": group, "help": help}
    return click.option("--json", "as_json", cls=JsonOption, is_flag=True, **about)


ErrorKind = Literal[
    "usage",
    "config",
    "not_found",
    "render",
    "scheduler",
    "remote",
    "tracker",
    "storage",
    "damaged",
    "node",
    "node_lost",
    "broken_node",
    "not_met",
    "port_taken",
    "function",
    "fsdpkit",
    "missing_dependency",
    "interrupted",
]
"""The error's class in fsdpkit.errors, or one of the last two."""


@answer("fsdpkit.error/1")
def failed(kind: ErrorKind, message: str, exit_status: int) -> None:
    """What ended the command instead of an answer; standard error says it, too.

    message: what was wrong, where, and what to do, for people.
    """


def begin() -> None:
    """Before a command: none of its answer is printed yet."""
    _printed.clear()


def as_json(value: object) -> str:
    """One line. NaN and infinities become null; a byte of a file name that is no UTF-8 becomes
    `\\udcXX`, which the file name's bytes can be found by."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
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
    error = {"schema": failed.name, "kind": kind, "message": message, "exit_status": exit_status}
    click.echo(json.dumps(error, ensure_ascii=False))


def kind_of(error: FsdpkitError) -> str:
    """`not_found` for a NotFoundError, also for one that a room has derived from it."""
    common = next(
        kind for kind in type(error).__mro__ if kind.__module__ == FsdpkitError.__module__
    )
    name = common.__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
