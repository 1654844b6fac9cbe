"""The Jinja environment: strict, sandboxed, bounded, and closed to values that no quoter saw.

A template is checked before it runs: only the parts of Jinja named here exist, so there is nothing
to escape through and nothing that could grow without bound. The sandbox protects the login node's
process from a template; what the rendered script does is the template author's word, which is why
templates carry a version and a checksum.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateNotFound, nodes
from jinja2.bccache import Bucket, FileSystemBytecodeCache
from jinja2.loaders import BaseLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

import fsdpkit
from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.config.template import MAX_TEMPLATE_BYTES, Template
from fsdpkit.errors import RenderError
from fsdpkit.rendering.lint import MAX_SCRIPT_BYTES
from fsdpkit.rendering.quoting import (
    Quoted,
    for_comment,
    for_directive,
    for_shell,
    unmark,
    with_array_task,
)

ENTRY = "job.sbatch.j2"
_MAX_WORK = 500_000  # nodes of the syntax tree that loops may pass through
_MAX_FILES = 50  # and MAX_TEMPLATE_BYTES in all
_MAX_TEXT = 65_536

PLAIN_FILTERS = ("default", "dictsort", "first", "int", "last", "length", "lower", "sort", "upper")
TESTS = ("defined", "none", "eq", "ne", "lt", "le", "gt", "ge", "in", "string", "number")
_FUNCTIONS = ("range", "refuse")

# What a template is made of. Missing on purpose: macros, calls, blocks that capture or filter
# output, import, `**`, method calls, and everything that changes escaping.
_ALLOWED_NODES: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign),
    *(nodes.Include, nodes.Extends, nodes.Block),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair),
    *(nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call, nodes.Keyword),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr),
    *(nodes.Concat, nodes.Add, nodes.Sub, nodes.Mul, nodes.FloorDiv, nodes.Mod, nodes.Neg),
)


class _FolderLoader(BaseLoader):
    """Reads from one directory: no way out by `..`, an absolute path or a symbolic link."""

    def __init__(self, directory: Path) -> None:
        self._top = directory.resolve()
        self._files = self._bytes = 0

    def get_source(self, environment: Any, template: str) -> tuple[str, str, Any]:
        path = (self._top / template).resolve()
        if not path.is_relative_to(self._top):
            raise RenderError(f"{template!r} lies outside the template's folder")
        if not path.is_file():
            raise TemplateNotFound(template)
        self._files += 1
        self._bytes += path.stat().st_size
        if self._bytes > MAX_TEMPLATE_BYTES:
            raise RenderError(f"its files are larger than {MAX_TEMPLATE_BYTES} bytes")
        if self._files > _MAX_FILES:
            raise RenderError(f"includes more than {_MAX_FILES} files; do two include each other?")
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            if (found := CONTROL_CHARACTER.search(line)) and found.group() != "\t":
                raise RenderError(f"{path.name}, line {number}: a control character {found[0]!r}")
        return text, str(path), None


class _CompiledTemplates(FileSystemBytecodeCache):
    """Templates that passed the guard once, compiled: most of a dry run's time is compiling.

    Jinja compares the source's checksum; the file's name holds this module's own state, so that a
    changed guard looks at everything again.
    """

    def __init__(self, directory: Path) -> None:
        state = f"{fsdpkit.__version__}-{os.stat(__file__).st_mtime_ns:x}"
        super().__init__(str(directory), f"%s-{state}.cache")

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):  # a full or read-only home: slower, not wrong
            super().dump_bytecode(bucket)


def _compiled_templates() -> _CompiledTemplates | None:
    """The user's own cache, where there can be one that nobody else can write to: it is code."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(base) / "fsdpkit" / "templates"
    if sys.dont_write_bytecode:
        return None
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
    return _CompiledTemplates(directory) if private and found.st_uid == os.geteuid() else None


class _Guard(NodeTransformer):
    """Refuses what is not allowed, and puts a counter on what could grow."""

    def __init__(self, file: str | None) -> None:
        self._file = file

    def _refusal(self, message: str, node: nodes.Node) -> RenderError:
        return RenderError(f"{self._file}, line {node.lineno}: {message}")

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if not isinstance(node, _ALLOWED_NODES):
            raise self._refusal(
                f"{type(node).__name__} is not part of our templates' language", node
            )
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise self._refusal("a loop must not be recursive", node)
        work = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.iter = _filter("_turns", node.iter, nodes.Const(work, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_join", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        if node.node is None or node.name not in (*PLAIN_FILTERS, *QUOTERS):
            known = ", ".join((*QUOTERS, *PLAIN_FILTERS))
            raise self._refusal(f"there is no filter {node.name!r} here; there are {known}", node)
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        if node.name not in TESTS:
            known = ", ".join(TESTS)
            raise self._refusal(f"there is no test {node.name!r} here; there are {known}", node)
        return self.generic_visit(node)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        if not isinstance(node.node, nodes.Name) or node.node.name not in _FUNCTIONS:
            raise self._refusal(f"only {' and '.join(_FUNCTIONS)} can be called", node)
        return self.generic_visit(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.generic_visit(node) if node.ctx == "store" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def _literal(self, node: nodes.Node, items: Iterable[nodes.Node]) -> nodes.Node:
        # A list that holds another one twice, forty times over, cannot be compared in a lifetime.
        if not all(isinstance(item, nodes.Const) for item in items):
            raise self._refusal("a list or table in a template holds only plain values", node)
        return node


def _filter(name: str, value: Any, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja with the guard, the quoters, and a budget of work."""

    # The operators that could make something huge out of something small.
    intercepted_binops = frozenset(["+", "-", "*", "//", "%"])

    def __init__(self, loader: BaseLoader) -> None:
        super().__init__(
            loader=loader,
            undefined=StrictUndefined,
            autoescape=False,
            optimized=False,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_only_quoted,
            # Jinja's own {# is bash's ${#array[@]}.
            comment_start_string="<#",
            comment_end_string="#>",
            cache_size=0,
            bytecode_cache=_compiled_templates(),
        )
        self.filters = {name: self.filters[name] for name in PLAIN_FILTERS}
        self.filters.update(QUOTERS, _turns=self._turns, _join=_join)
        self.tests = {name: self.tests[name] for name in TESTS}
        self.globals = {"range": self.globals["range"], "refuse": _refuse}
        self._work = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Guard(name).visit(tree)
        return tree

    def _turns(self, items: Iterable[Any], work: int) -> Iterator[Any]:
        for item in items:
            self._work += work
            if self._work > _MAX_WORK:
                raise RenderError("its loops take too many turns")
            yield item

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for operand in (left, right):
            if type(operand) not in (int, float) or abs(operand) > 1e12:
                raise RenderError(f"{operator!r} is only for numbers; join text with ~")
        return super().call_binop(context, operator, left, right)


def _join(parts: list[Any]) -> str:
    """`a ~ b`: text of bounded length. It has to pass a quoter before it can be printed."""
    for part in parts:
        if isinstance(part, StrictUndefined):
            str(part)  # raises, with the undefined name
        if isinstance(part, Quoted):
            raise RenderError("~ joins text before it is quoted, not after")
        if not isinstance(part, str | int | float):
            raise RenderError(f"~ joins text and numbers, not a {type(part).__name__}")
    joined = "".join(str(part) for part in parts)
    if len(joined) > _MAX_TEXT:
        raise RenderError(f"~ makes a text of more than {_MAX_TEXT} characters")
    return joined


def _only_quoted(value: Any) -> Any:
    if isinstance(value, Quoted) or type(value) in (int, float):
        return value
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the undefined name
    shown = repr(value[:60]) if isinstance(value, str) else f"a {type(value).__name__}"
    raise RenderError(f"prints {shown} unquoted; pass it through {', '.join(QUOTERS)}")


def _refuse(message: str) -> None:
    """`{{ refuse("…") }}`: how a template says that it cannot serve these values."""
    raise RenderError(f"refuses: {message}")


QUOTERS = {
    "sh": for_shell,
    "sh_arg": with_array_task,
    "sb": for_directive,
    "note": for_comment,
}


def render_template(template: Template, context: dict[str, Any]) -> str:
    """The script's text. Raises RenderError naming the template, and the line where known.

    context: plain data only (numbers, text, lists, dictionaries).
    """
    where = f"template {template.manifest.name} ({template.dir})"
    environment = _Environment(_FolderLoader(template.dir))
    try:
        return unmark(_bounded(environment.get_template(ENTRY).generate(context)))
    except TemplateNotFound as error:
        raise RenderError(f"{where}: there is no file {error.message!r} in it") from error
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        at = f"{getattr(error, 'name', None) or ENTRY}, line {line}: " if line else ""
        at = at or _line(error.__traceback__, template.dir)
        raise RenderError(f"{where}: {at}{error.message or error}") from error
    except RenderError as error:
        at = _line(error.__traceback__, template.dir)
        raise RenderError(f"{where}: {at}{error}") from error
    except Exception as error:  # a template can make Jinja and Python raise almost anything
        raise RenderError(f"{where}: {type(error).__name__}: {error}") from error


def _bounded(pieces: Iterable[str]) -> str:
    """The pieces joined. Raises RenderError as soon as they are more than Slurm takes."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_SCRIPT_BYTES:
            raise RenderError(f"the script is larger than {MAX_SCRIPT_BYTES} bytes")
        kept.append(piece)
    return "".join(kept)


def _line(traceback: TracebackType | None, directory: Path) -> str:
    """The template's line that an error came from: Jinja gives its frames the file's name."""
    found = ""
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file.suffix == ".j2" and file.is_relative_to(directory.resolve()):
            found = f"{file.name}, line {traceback.tb_lineno}: "
        traceback = traceback.tb_next
    return found
