"""The language of templates: Jinja's syntax, and of it only what is named here.

`parse` reads a template with Jinja's own parser and turns it into a few kinds of statement, or
refuses it: a part of Jinja that is not listed here or in `rendering.jinja`, and a value at a place
where no quoter makes it safe (`rendering.places`), whether or not that line would be rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, TemplateSyntaxError, nodes

from fsdpkit.bounded import TEMPLATE_BYTES
from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.config.template import PART_SUFFIX
from fsdpkit.errors import RenderError
from fsdpkit.rendering.evaluation import FUNCTIONS
from fsdpkit.rendering.expressions import Called, Expression, Filtered
from fsdpkit.rendering.jinja import Refused, expression_of
from fsdpkit.rendering.places import HOLE, Place, check_kind, places_in
from fsdpkit.rendering.quoting import QUOTERS
from fsdpkit.rendering.statements import (
    For,
    If,
    PlainText,
    PrintedValue,
    Set,
    Statement,
    TemplateError,
    Where,
)

_MAX_INCLUDES = 50  # and TEMPLATE_BYTES in all
_KIND_OF = {"sh": "shell", "sh_arg": "shell", "sb": "directive", "note": "comment"}


def parse(parts: Mapping[str, bytes], entry: str) -> tuple[Statement, ...]:
    """The statements of the file `entry`, with all that it includes. Raises RenderError."""
    reader = _Reader(parts)
    found = reader.part(entry, Where(entry, 1))
    return (*found, *reader.end_line(Where(entry, 1)))


# ---- Reading


def _jinja() -> Environment:
    """For its parser alone."""
    return Environment(
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Jinja's own {# is bash's ${#array[@]}.
        comment_start_string="<#",
        comment_end_string="#>",
    )


class _Reader:
    """Jinja's tree to statements, in the order of the text.

    `_line` holds what of the current line was read: texts, and values with where they stand. As
    long as only lines have come that may stand above a value (`places_in`), a line is kept together
    until it is known whole; the first other one makes the rest the script's body.
    """

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        self._parts = parts
        self._environment = _jinja()
        self._file = ""
        self._line: list[tuple[Where, str | Expression]] = []
        self._first = True
        self._in_body = False
        self._includes = self._bytes = 0

    def part(self, name: str, where: Where) -> list[Statement]:
        """The statements of one file, which other files may include."""
        source = self._source(name, where)
        above, self._file = self._file, name
        try:
            tree = self._environment.parse(source, name)
            found = self._statements(tree.body)
        except TemplateSyntaxError as error:
            raise TemplateError(Where(name, error.lineno), str(error.message)) from error
        except RenderError:
            raise
        except (RecursionError, ValueError) as error:
            raise TemplateError(Where(name, 1), f"{type(error).__name__}: {error}") from error
        self._file = above
        return found

    def _source(self, name: str, where: Where) -> str:
        self._includes += 1
        if self._includes > _MAX_INCLUDES:
            raise TemplateError(
                where, f"includes more than {_MAX_INCLUDES} files; do two include each other?"
            )
        if name not in self._parts:
            rule = "" if name.endswith(PART_SUFFIX) else f"; a part's name ends in {PART_SUFFIX}"
            raise TemplateError(where, f"there is no file {name!r} in the template's folder{rule}")
        self._bytes += len(self._parts[name])
        if self._bytes > TEMPLATE_BYTES:
            raise TemplateError(where, f"its files make more than {TEMPLATE_BYTES} bytes")
        try:
            text = self._parts[name].decode()
        except UnicodeDecodeError as error:
            raise TemplateError(Where(name, 1), f"is not UTF-8 (byte {error.start})") from error
        for number, line in enumerate(text.split("\n"), 1):
            for found in CONTROL_CHARACTER.findall(line):
                if found != "\t":
                    raise TemplateError(Where(name, number), f"a control character {found!r}")
        return text

    def _where(self, node: nodes.Node) -> Where:
        return Where(self._file, node.lineno)

    def _statements(self, found: Sequence[nodes.Node]) -> list[Statement]:
        made: list[Statement] = []
        for node in found:
            if isinstance(node, nodes.Output):
                made += self._output(node)
            else:
                made += [*self._tag_begins(node), *self._tag(node)]
        return made

    def _tag_begins(self, node: nodes.Node) -> list[Statement]:
        """What of a line stands before a tag: with it the body begins, unless it has a value."""
        before, self._line = self._line, []
        if not all(isinstance(piece, str) for _, piece in before):
            raise TemplateError(self._where(node), "a line with a value holds no {% … %} tag")
        self._in_body = self._in_body or bool(before)
        return [PlainText(where, piece) for where, piece in before if isinstance(piece, str)]

    def _tag(self, node: nodes.Node) -> list[Statement]:
        where = self._where(node)
        if isinstance(node, nodes.If):
            return [self._if(node)]
        if isinstance(node, nodes.For):
            return [self._for(node)]
        if isinstance(node, nodes.Assign):
            (target,) = self._targets(node.target, 1)
            return [Set(where, target, self._expression(node.node))]
        if isinstance(node, nodes.Include):
            name = node.template
            if not isinstance(name, nodes.Const) or not isinstance(name.value, str):
                raise TemplateError(where, "include takes the name of a file, as it is")
            if node.ignore_missing or not node.with_context:
                raise TemplateError(where, "include takes nothing but a name")
            return [*self.part(name.value, where), *self._tag_begins(node)]
        called = type(node).__name__
        raise TemplateError(where, f"{called} is not part of our templates' language")

    def _if(self, node: nodes.If) -> If:
        where, test = self._where(node), self._expression(node.test)
        then = self._branch(node.body, node)
        if node.elif_:
            first, *rest = node.elif_
            nested = nodes.If(first.test, first.body, rest, node.else_, lineno=first.lineno)
            otherwise: tuple[Statement, ...] = (self._if(nested),)
        else:
            otherwise = self._branch(node.else_, node)
        return If(where, test, then, otherwise)

    def _for(self, node: nodes.For) -> For:
        where = self._where(node)
        if node.recursive:
            raise TemplateError(where, "a loop must not be recursive")
        names = self._targets(node.target, 2)
        items = self._expression(node.iter)
        test = None if node.test is None else self._expression(node.test)
        was_in_body = self._in_body
        body = self._branch(node.body, node)
        if self._in_body and not was_in_body:
            body = self._branch(node.body, node)  # in its second turn it stands below itself
        return For(where, names, items, test, body, self._branch(node.else_, node))

    def _branch(self, found: Sequence[nodes.Node], node: nodes.Node) -> tuple[Statement, ...]:
        return (*self._statements(found), *self._tag_begins(node))

    def _targets(self, target: nodes.Node, most: int) -> tuple[str, ...]:
        items = target.items if isinstance(target, nodes.Tuple) else [target]
        names = tuple(item.name for item in items if isinstance(item, nodes.Name))
        if len(names) != len(items) or not 1 <= len(names) <= most:
            raise TemplateError(self._where(target), "set takes one name, for one or two")
        for name in names:
            if name in (*FUNCTIONS, "loop"):
                raise TemplateError(self._where(target), f"{name} is a name of the language")
        return names

    # ---- Lines

    def _output(self, node: nodes.Output) -> list[Statement]:
        made: list[Statement] = []
        for each in node.nodes:
            if isinstance(each, nodes.TemplateData):
                made += self._text(each.data, self._where(each))
                continue
            expression = self._expression(each)
            if self._in_body or _is_refusal(expression):
                made.append(self._value(self._where(each), expression, "body"))
            else:
                self._line.append((self._where(each), expression))
        return made

    def _text(self, text: str, where: Where) -> list[Statement]:
        made: list[Statement] = []
        number = where.line
        while text and not self._in_body:
            at = Where(where.file, number)
            line, newline, text = text.partition("\n")
            if line:
                self._line.append((at, line))
            if newline:
                made += [*self.end_line(at), PlainText(at, "\n")]
                number += 1
        if text:
            made.append(PlainText(Where(where.file, number), text))
        return made

    def end_line(self, where: Where) -> list[Statement]:
        """The line that was read, its values at their places."""
        pieces, self._line = self._line, []
        shape = "".join(piece if isinstance(piece, str) else HOLE for _, piece in pieces)
        first, self._first = self._first, False
        try:
            places = places_in(shape, first=first)
        except ValueError as error:
            raise TemplateError(where, str(error)) from error
        self._in_body = places is None
        left = iter(places or ())
        return [
            PlainText(at, piece)
            if isinstance(piece, str)
            else self._value(at, piece, next(left, "body"))
            for at, piece in pieces
        ]

    def _value(self, where: Where, expression: Expression, place: Place) -> PrintedValue:
        """Refuses at once what a quoter makes for another place; the rest when it is printed."""
        if isinstance(expression, Filtered) and expression.name in QUOTERS:
            try:
                check_kind(_KIND_OF[expression.name], place)
            except RenderError as error:
                raise TemplateError(where, str(error)) from error
        return PrintedValue(where, expression, place)

    def _expression(self, node: nodes.Node) -> Expression:
        try:
            return expression_of(node)
        except Refused as error:
            raise TemplateError(Where(self._file, error.line), str(error)) from error


def _is_refusal(expression: Expression) -> bool:
    """`{{ refuse("…") }}` prints nothing, so it may stand anywhere."""
    return isinstance(expression, Called) and expression.name == "refuse"
