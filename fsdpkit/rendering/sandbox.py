"""Templates in Jinja's sandbox, which here has plain data only: no attribute, method or macro.

A template prints marks instead of its values, and marks for its own lines. `rendering.places` says
what may stand at each mark once the whole script is known. How long rendering takes is limited by
`rendering.limited_process`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined, Undefined, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fsdpkit.bounded import TEMPLATE_NODES
from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.config.template import PART_SUFFIX
from fsdpkit.errors import RenderError
from fsdpkit.rendering.lint import MAX_SCRIPT_BYTES
from fsdpkit.rendering.places import HOLE, places_of, printed
from fsdpkit.rendering.quoting import QUOTERS, Quoted
from fsdpkit.rendering.traced import TemplateError, Traced, Where
from fsdpkit.rendering.variables import Undecided, Variable

_TAGS = (nodes.Output, nodes.If, nodes.For, nodes.Assign, nodes.Include)
_LOOP = ("index", "index0", "first", "last", "length")
_VALUES = "values printed"  # in the context; no template can say a name with a space
_MOST_MADE = 4 * MAX_SCRIPT_BYTES  # characters, with the marks
_MARK = re.compile("\0([^\0]*)\0(\\d+)\0|\1(\\d+)\1")  # a line of a file, or a value


def sandbox_of(parts: Mapping[str, bytes], cache: BytecodeCache | None = None) -> TemplateSandbox:
    """A template's files, compiled. Raises RenderError for one that is no template."""
    sandbox = TemplateSandbox({name: _text(name, part) for name, part in parts.items()}, cache)
    for name in parts:
        try:
            sandbox.get_template(name)
        except jinja2.TemplateSyntaxError as error:
            where = Where(error.name or name, error.lineno)
            raise TemplateError(where, str(error.message)) from error
        except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError) as error:
            raise TemplateError(Where(name, 1), f"{type(error).__name__}: {error}") from error
    return sandbox


def _text(name: str, part: bytes) -> str:
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        raise TemplateError(Where(name, 1), f"is not UTF-8 (byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), 1):
        for found in CONTROL_CHARACTER.findall(line):
            if found != "\t":
                raise TemplateError(Where(name, number), f"a control character {found!r}")
    return text


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja with what the template's README lists, and nothing else."""

    def __init__(self, parts: Mapping[str, str], cache: BytecodeCache | None = None) -> None:
        self._parts = parts
        super().__init__(
            loader=FunctionLoader(self._file),
            bytecode_cache=cache,
            undefined=StrictUndefined,
            finalize=_collect,
            optimized=False,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            # Jinja's own {# is bash's ${#array[@]}.
            comment_start_string="<#",
            comment_end_string="#>",
        )
        self.globals = {"range": self.globals["range"], "refuse": _refuse}
        self.filters = _filters(self.filters)
        self.tests = {name: self.tests[name] for name in TESTS} | _TESTS_OF_KIND

    def _file(self, name: str) -> tuple[str, str, None] | None:
        return (self._parts[name], name, None) if name in self._parts else None

    def trace(self, entry: str, context: Mapping[str, Any]) -> Traced:
        """The script, with the origin of its lines. Raises RenderError, with the template's line.
        context: plain data (numbers, text, lists, dictionaries), and Variables."""
        values: list[Any] = []
        made: list[str] = []
        left = _MOST_MADE
        try:
            for piece in self.get_template(entry).generate({**context, _VALUES: values}):
                left -= len(piece)
                if left < 0:
                    raise RenderError(f"the script is larger than {MAX_SCRIPT_BYTES} bytes")
                made.append(piece)
        except Undecided:
            raise  # who exports a template goes by it
        except jinja2.TemplateNotFound as error:
            told = f"there is no file {str(error)!r} in the template's folder"
            if not str(error).endswith(PART_SUFFIX):
                told += f"; a part's name ends in {PART_SUFFIX}"
            raise self._at_its_line(error, told) from error
        except _ERRORS as error:
            raise self._at_its_line(error, str(error) or type(error).__name__) from error
        return _traced("".join(made), values)

    def _at_its_line(self, error: BaseException, message: str) -> RenderError:
        """Jinja makes a traceback name the files and lines of templates."""
        for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
            if (file := frame.f_code.co_filename) in self._parts:
                return TemplateError(Where(file, line), message)
        return RenderError(message)

    # ---- What Jinja asks

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`a.b`, which is an entry of a table."""
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`a.b` and `a[b]`."""
        if isinstance(obj, Undefined | Variable):
            str(obj)  # raises
        by_name = isinstance(obj, dict) and isinstance(argument, str)
        if by_name or (isinstance(obj, list) and type(argument) is int):
            try:
                return obj[argument]
            except LookupError:
                return self.undefined(name=str(argument)[:60])
        raise RenderError(f"{type(obj).__name__} has no part {str(argument)[:60]!r}")

    def is_safe_callable(self, obj: Any) -> bool:
        if not any(obj is each for each in self.globals.values()):
            raise RenderError(f"only {' and '.join(self.globals)} can be called")
        return True

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _check(source)
        _mark_lines(source, str(name))
        return super()._generate(source, name, filename, defer_init)


_ERRORS = (
    jinja2.TemplateError,
    RenderError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


# ---- Syntax


def _check(tree: nodes.Template) -> None:
    """Refuses what takes long to compile, and tags that would print without being collected, such
    as macros, or escape what is quoted."""
    for number, node in enumerate(tree.find_all(nodes.Node)):
        if number == TEMPLATE_NODES:
            told = f"more than {TEMPLATE_NODES} tags, names and operations in a file"
            raise jinja2.TemplateSyntaxError(told, node.lineno or 1)
        if not isinstance(node, nodes.Stmt):
            continue
        alone = isinstance(node, nodes.Include) and not node.with_context
        if alone or not isinstance(node, _TAGS):
            told = f"{type(node).__name__} is not part of templates here"
            raise jinja2.TemplateSyntaxError(told, node.lineno or 1)


def _mark_lines(tree: nodes.Template, name: str) -> None:
    for output in tree.find_all(nodes.Output):
        output.nodes = [
            each
            for node in output.nodes
            for each in (nodes.TemplateData(f"\0{name}\0{node.lineno}\0"), node)
        ]


# ---- Names

TESTS = ("defined", "none", "eq", "ne", "lt", "le", "gt", "ge", "in")
_TESTS_OF_KIND: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str) or _is_open(value, "text"),
    "number": lambda value: type(value) in (int, float) or _is_open(value, "number"),
}
_PLAIN: dict[str, Callable[..., Any]] = {
    "dictsort": lambda table: sorted(table.items()),
    "first": lambda items: items[0],
    "int": int,
    "last": lambda items: items[-1],
    "length": len,
    "lower": str.lower,
    "sort": sorted,
    "upper": str.upper,
}


def _is_open(value: Any, kind: str) -> bool:
    return isinstance(value, Variable) and value.kind == kind


def _filters(of_jinja: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    quoters = {name: _but_of(filter, Undefined, Quoted) for name, filter in QUOTERS.items()}
    # What needs to know the value; and then only plain data, never what it is called in Python.
    plain = {name: _but_of(f, Undefined, Quoted, Variable) for name, f in _PLAIN.items()}
    return {"default": of_jinja["default"], **plain, **quoters}


def _but_of(filter: Callable[[Any], Any], *refused: type) -> Callable[[Any], Any]:
    def of(value: Any) -> Any:
        if isinstance(value, refused):
            str(value)  # raises
        return filter(value)

    return of


def _refuse(*words: Any) -> None:
    """`refuse("why")` ends the submission with the template's own words."""
    raise RenderError(f"refuses: {' '.join(map(str, words))}")


# ---- Values


@pass_context
def _collect(context: Context, value: Any) -> str:
    """Jinja's `finalize`: everything that `{{ … }}` would print comes by here."""
    if isinstance(value, Undefined):
        str(value)  # raises
    values = context.parent[_VALUES]
    values.append(value)
    return f"\1{len(values) - 1}\1"


def _traced(text: str, values: list[Any]) -> Traced:
    """Marks to pieces, each value at its place. Raises RenderError, with the template's line."""
    places = places_of(_MARK.sub(lambda mark: HOLE if mark[3] else "", text))
    pieces: list[tuple[str, Where, bool]] = []
    where, at = Where("", 0), 0
    for mark in _MARK.finditer(text):
        if at < mark.start():
            pieces.append((text[at : mark.start()], where, False))
        at = mark.end()
        if mark[3] is None:
            where = Where(mark[1], int(mark[2]))
            continue
        try:
            pieces.append((printed(values[int(mark[3])], next(places)), where, True))
        except Undecided:
            raise
        except (RenderError, ValueError) as error:
            raise TemplateError(where, str(error)) from error
    pieces.append((text[at:], where, False))
    traced = Traced(pieces)
    if len(traced.script.encode()) > MAX_SCRIPT_BYTES:
        raise RenderError(f"the script is larger than {MAX_SCRIPT_BYTES} bytes")
    return traced
