"""What a parsed template consists of, and how it becomes the script's text.

Its cost is bounded by `rendering.evaluation`, the script's length here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fsdpkit.errors import RenderError
from fsdpkit.rendering.evaluation import Evaluation
from fsdpkit.rendering.expressions import Expression
from fsdpkit.rendering.lint import MAX_SCRIPT_BYTES
from fsdpkit.rendering.places import HOLE, Place, printed
from fsdpkit.rendering.quoting import QUOTERS
from fsdpkit.rendering.variables import Undecided

_QUOTERS = ", ".join(QUOTERS)


class Where(msgspec.Struct, frozen=True, array_like=True):
    """A line of the template, for messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class _Statement(msgspec.Struct, frozen=True, array_like=True):
    where: Where


class PlainText(_Statement, frozen=True, tag="text"):
    """where: of its first line."""

    text: str


class PrintedValue(_Statement, frozen=True, tag="value"):
    expression: Expression
    place: Place


class Set(_Statement, frozen=True, tag="set"):
    name: str
    expression: Expression


class If(_Statement, frozen=True, tag="if"):
    test: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


class For(_Statement, frozen=True, tag="for"):
    names: tuple[str, ...]
    items: Expression
    test: Expression | None
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement = PlainText | PrintedValue | Set | If | For


class TemplateError(RenderError):
    """What is wrong with a template, where that is known."""

    def __init__(self, where: Where, message: str) -> None:
        super().__init__(f"{where}: {message}")


class Traced(msgspec.Struct, frozen=True):
    """A script and where in the template each piece of it comes from."""

    pieces: Sequence[tuple[str, Where, bool]]
    """Text, the template's line, and whether it is a value."""

    @property
    def script(self) -> str:
        return "".join(text for text, _, _ in self.pieces)

    @property
    def skeleton(self) -> str:
        """The script without its values: two scripts with the same one are the same shell code,
        because a value is a number or a quoted word."""
        return "".join(HOLE if is_value else text for text, _, is_value in self.pieces)

    def line_of(self, line: int) -> Where | None:
        """Where the template makes this line of the script, counted from 1."""
        number = 1
        for text, where, is_value in self.pieces:
            end = number + text.count("\n")
            if line < end or (line == end and text and not text.endswith("\n")):
                return where if is_value else Where(where.file, where.line + line - number)
            number = end
        return None


def text_of(statements: Sequence[Statement], context: dict[str, Any]) -> str:
    """The script. Raises RenderError, with the template's line."""
    return trace_of(statements, context).script


def trace_of(statements: Sequence[Statement], context: dict[str, Any]) -> Traced:
    """The script, with the origin of its lines. Raises RenderError, with the template's line."""
    writer = _Writer(Evaluation(context))
    try:
        writer.run(statements)
    except Undecided:
        raise  # who exports a template goes by it
    except (RenderError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise TemplateError(writer.where, str(error)) from error
    return Traced(writer.pieces)


class _Writer:
    """Runs statements; `where` is the one that runs."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._run = evaluation
        self._left = MAX_SCRIPT_BYTES
        self.where = Where("", 0)
        self.pieces: list[tuple[str, Where, bool]] = []

    def run(self, statements: Sequence[Statement]) -> None:
        for each in statements:
            self._run.pay(1)
            if isinstance(each, PlainText):
                self._write(each.text, each.where, False)
                continue
            self.where = each.where
            if isinstance(each, PrintedValue):
                value = self._run.present(each.expression)
                self._write(printed(value, each.place, _QUOTERS), each.where, True)
            elif isinstance(each, Set):
                self._run.set(each.name, self._run.present(each.expression))
            elif isinstance(each, If):
                self.run(each.then if self._run.truth(each.test) else each.otherwise)
            else:
                self._loop(each)

    def _write(self, text: str, where: Where, is_value: bool) -> None:
        self._left -= len(text.encode())
        if self._left < 0:
            raise RenderError(f"the script is larger than {MAX_SCRIPT_BYTES} bytes")
        self.pieces.append((text, where, is_value))

    def _loop(self, loop: For) -> None:
        items = self._run.items(self._run.present(loop.items), "for")
        turns = [scope for item in items if (scope := self._turn(loop, item)) is not None]
        for index, scope in enumerate(turns):
            self._run.pay(1)
            last = index + 1 == len(turns)
            place = {"index": index + 1, "index0": index, "first": not index, "last": last}
            scope["loop"] = place | {"length": len(turns)}
            self._run.scopes.append(scope)
            self.run(loop.body)
            self._run.scopes.pop()
        if not turns:
            self.run(loop.otherwise)

    def _turn(self, loop: For, item: Any) -> dict[str, Any] | None:
        """The names of one turn; None if the loop's `if` leaves it out."""
        values = [item] if len(loop.names) == 1 else item
        if not isinstance(values, list) or len(values) != len(loop.names):
            raise RenderError(f"a loop over {len(loop.names)} names is for pairs")
        scope = dict(zip(loop.names, values, strict=True))
        if loop.test is None:
            return scope
        self._run.scopes.append(scope)
        kept = self._run.truth(loop.test)
        self._run.scopes.pop()
        return scope if kept else None
