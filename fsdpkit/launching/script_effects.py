"""What the statements of one source file do that a later import could notice.

Names are followed as far as that decides it. Anything that cannot be determined from the source
counts as having an effect.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fsdpkit.launching.import_state import (
    AT_RUN_TIME,
    BUILTINS_AT_RUN_TIME,
    ENVIRON_CHANGES,
    NOTICED_BUILTINS,
    ONLY_READ,
    QUIET_CALLS,
    QUIET_LIBRARIES,
    SEEN_BY_IMPORTS,
    changes,
    is_read_late,
    only_prints,
)
from fsdpkit.launching.path_expressions import path_of, value_of

_UNKNOWN, _OWN_CODE, _VALUE = "?", "def", "str"
"""What a name may stand for, beside a dotted name of a library: anything; a function or class of
the script's own; a value of Python's own types."""


@dataclass
class Reading:
    """What reading a script has found. Places are written `train.py:7`."""

    first: list[str] = field(default_factory=list)
    """Modules of libraries imported unconditionally and before `noticed`, in order; `a.b:c` for c
    of a.b, a module or not."""
    later: dict[str, str] = field(default_factory=dict)
    """Libraries (top-level names) imported afterwards, perhaps, or in functions, and where."""
    noticed: str | None = None
    """The first statement that later imports might notice."""
    unread: str | None = None
    """The first import, or call, of code that was not read."""
    names_torch_variables: bool = False
    """Whether a variable that torch reads stands in the source."""
    directories: list[Path] = field(default_factory=list)
    """Where the program finds modules before the installed ones: its own, and what it adds."""

    def tops(self) -> set[str]:
        """Top-level names of `first`."""
        return {name.partition(":")[0].partition(".")[0] for name in self.first}


class ImportFollower(Protocol):
    """The program that a file belongs to, which knows its modules and reads them, too."""

    found: Reading
    appended: list[Path]
    """Where it finds modules behind the installed ones."""

    def enter(self, path: Path) -> None:
        """Read one source file."""

    def enter_from(self, base: Path, name: str, members: Iterable[str] = ()) -> None:
        """Read what importing `name` from this directory would run, if it is there."""

    def own(self, name: str, members: Iterable[str] = ()) -> list[Path] | None:
        """The source files that run when a module of the program's own is imported."""

    def is_library(self, name: str) -> bool:
        """Whether the module is an installed library's, or Python's own."""


class SourceFile:
    """The names of one source file, as far as they tell whether using them can be noticed."""

    def __init__(self, program: ImportFollower, path: Path, main: bool) -> None:
        self.program, self.path, self.main = program, path, main
        self.found = program.found
        self.names: dict[str, str] = {}
        """Name → the dotted thing it stands for, or one of `_UNKNOWN`, `_OWN_CODE`, `_VALUE`."""
        self.values: dict[str, Any] = {"__file__": str(path)}
        self._perhaps = 0
        self._trying = 0

    def place(self, node: ast.AST) -> str:
        return f"{self.path.name}:{getattr(node, 'lineno', 0)}"

    def notice(self, node: ast.AST) -> None:
        self.found.noticed = self.found.noticed or self.place(node)

    def not_read(self, node: ast.AST) -> None:
        self.found.unread = self.found.unread or self.place(node)
        self.notice(node)

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Statements that may run or not."""
        self._perhaps += 1
        try:
            yield
        finally:
            self._perhaps -= 1

    # Statements

    def visit(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._visit(statement)

    def _visit(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._imported(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._decorated(node.decorator_list)
                self._look(*node.args.defaults, *node.args.kw_defaults)
                self.names[node.name] = _OWN_CODE
                self._inner(node)
            case ast.ClassDef():
                self._decorated(node.decorator_list)
                self._look(*node.bases, *(k.value for k in node.keywords))
                self.visit(node.body)
                self.names[node.name] = _OWN_CODE
            case ast.If():
                self._branches(node)
            case ast.For() | ast.AsyncFor():
                self._look(node.iter)
                self._bind(node.target, self._origin(node.iter))
                with self.perhaps():
                    self.visit([*node.body, *node.orelse])
            case ast.While():
                self._look(node.test)
                with self.perhaps():
                    self.visit([*node.body, *node.orelse])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._look(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, self._origin(item.context_expr))
                self.visit(node.body)
            case ast.Try():
                self._trying += 1
                self.visit(node.body)
                self._trying -= 1
                with self.perhaps():
                    for handler in node.handlers:
                        self.visit(handler.body)
                self.visit([*node.orelse, *node.finalbody])
            case ast.Match():
                self._look(node.subject)
                with self.perhaps():
                    for case in node.cases:
                        self._look(case.guard)
                        for name in _captured(case.pattern):
                            self.names[name] = _UNKNOWN
                        self.visit(case.body)
            case _:
                self._plain(node)

    def _branches(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if test.endswith("TYPE_CHECKING"):
            self.visit(node.orelse)
        elif test in ("__name__ == '__main__'", "'__main__' == __name__"):
            self.visit(node.body if self.main else node.orelse)
        else:
            self._look(node.test)
            with self.perhaps():
                self.visit([*node.body, *node.orelse])

    def _decorated(self, decorators: Sequence[ast.expr]) -> None:
        """A decorator is called, with or without brackets."""
        self._look(*decorators)
        for decorator in decorators:
            if not isinstance(decorator, ast.Call) and not self._is_quiet(decorator):
                self.notice(decorator)

    def _plain(self, node: ast.stmt) -> None:
        self._look(node)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assigned(target, node)
                    self._bind(target, self._origin(value))
                    if isinstance(target, ast.Name):
                        with suppress(ValueError):
                            self.values[target.id] = value_of(value, self._dotted, self.values)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assigned(target, node)
                self._bind(target, self._origin(value))
            case ast.AugAssign(target=target):
                self._assigned(target, node)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._assigned(target, node)

    def _assigned(self, target: ast.expr, node: ast.stmt) -> None:
        """An assignment to a part of another object: an attribute, an item."""
        match target:
            case ast.Subscript(value=value, slice=key):
                dotted = self._dotted(value) or _UNKNOWN
                if dotted == "os.environ":
                    if not is_read_late(key):
                        self.notice(node)
                elif dotted != _VALUE:
                    self.notice(node)
            case ast.Attribute(attr=attribute):
                dotted = self._dotted(target) or _UNKNOWN
                if not dotted.startswith("torch.") and attribute != "dont_write_bytecode":
                    self.notice(node)
            case ast.Name(id=name):
                if self.names.get(name) == "os.environ":
                    self.notice(node)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._assigned(part, node)

    def _bind(self, target: ast.expr, origin: str) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.names[node.id] = origin
                self.values.pop(node.id, None)

    # Imports

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                is_library = self._import(alias.name, node)
                bound = alias.asname or alias.name.partition(".")[0]
                dotted = alias.name if alias.asname else bound
                self.names[bound] = dotted if is_library else _UNKNOWN
            return
        members = [alias.name for alias in node.names if alias.name != "*"]
        if node.level:
            is_library = False
            self._relative(node, members)
        else:
            is_library = self._import(node.module or "", node, members)
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}"
            self.names[alias.asname or alias.name] = dotted if is_library else _UNKNOWN
            if alias.name == "*":  # any name may be redefined now
                self.names = dict.fromkeys(self.names, _UNKNOWN)

    def _relative(self, node: ast.ImportFrom, members: Sequence[str]) -> None:
        parents = self.path.parents
        if node.level > len(parents):
            return  # importing it fails
        base = parents[node.level - 1]
        wanted = [(node.module, members)] if node.module else [(name, ()) for name in members]
        for name, inner in wanted:
            self.program.enter_from(base, name, inner)

    def _import(self, name: str, node: ast.AST, members: Sequence[str] = ()) -> bool:
        """Follow it; whether it is a library's."""
        if (files := self.program.own(name, members)) is not None:
            for file in files:
                self.program.enter(file)
            return False
        if not self.program.is_library(name):
            if not self._trying:  # a missing module is skipped by the `except ImportError`
                self.not_read(node)
            return False
        top = name.partition(".")[0]
        if top in AT_RUN_TIME:
            self.found.unread = self.found.unread or self.place(node)
        if self.found.noticed is None and not self._perhaps:
            self.found.first += [name, *(f"{name}:{member}" for member in members)]
        elif top not in self.found.tops():
            self.found.later.setdefault(top, self.place(node))
        return True

    def _inner(self, function: ast.AST) -> None:
        """What a function imports when it is called, some time later."""
        early = self.found.tops()
        for node in ast.walk(function):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for name in modules:
                top = name.partition(".")[0]
                if top not in early and self.program.own(name) is None:
                    self.found.later.setdefault(top, self.place(node))

    # Expressions

    def _look(self, *nodes: ast.AST | None) -> None:
        """Examine every call that happens when these are evaluated."""
        for node in nodes:
            for found in _evaluated(node) if node is not None else ():
                if isinstance(found, ast.Call):
                    self._called(found)
                if isinstance(found, ast.NamedExpr):
                    self._bind(found.target, self._origin(found.value))
                if isinstance(found, ast.comprehension):
                    self._bind(found.target, self._origin(found.iter))

    def _called(self, call: ast.Call) -> None:
        dotted = self._dotted(call.func)
        if dotted in ("sys.path.insert", "sys.path.append") and self._adds_directory(call, dotted):
            return
        if dotted in BUILTINS_AT_RUN_TIME or (dotted or "").partition(".")[0] in AT_RUN_TIME:
            self.not_read(call)
            return
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(map(self._makes_changes, given)) or not self._is_quiet(call.func, call):
            self.notice(call)
            return
        top = (dotted or self._origin(call.func)).partition(".")[0]
        passed_on = any(self._dotted(argument) in SEEN_BY_IMPORTS for argument in given)
        if passed_on and top not in ONLY_READ and top not in vars(builtins):
            self.notice(call)

    def _makes_changes(self, argument: ast.expr) -> bool:
        """Whether a function that gets this may, by calling it, do what a later import notices."""
        if isinstance(argument, ast.Lambda):
            called = [node.func for node in ast.walk(argument.body) if isinstance(node, ast.Call)]
            return any(map(self._makes_changes, called))
        return self._origin(argument) == _OWN_CODE or changes(self._dotted(argument) or "")

    def _is_quiet(self, function: ast.expr, call: ast.Call | None = None) -> bool:
        """Whether no import notices that it was called."""
        dotted = self._dotted(function)
        if dotted is None:  # a method of an expression's result, or of a table's item
            of = function.value if isinstance(function, ast.Attribute) else None
            return of is not None and self._origin(of) not in (_UNKNOWN, _OWN_CODE)
        top, _, rest = dotted.partition(".")
        if dotted.startswith("os.environ."):
            if dotted.removeprefix("os.environ.") not in ENVIRON_CHANGES:
                return True
            names = [*call.args[:1], *(ast.Constant(k.arg) for k in call.keywords)] if call else []
            return bool(names) and all(is_read_late(name) for name in names)
        if top in (_UNKNOWN, _OWN_CODE) or changes(dotted) or top in AT_RUN_TIME:
            return False
        if dotted in ("warnings.simplefilter", "warnings.filterwarnings"):
            return call is not None and only_prints(call)
        if dotted.startswith("os.exec"):
            return False
        if top in sys.stdlib_module_names or top in QUIET_LIBRARIES or dotted in QUIET_CALLS:
            return True
        if top == _VALUE:
            return True
        at_run_time = top in NOTICED_BUILTINS or top in BUILTINS_AT_RUN_TIME
        return not rest and top in vars(builtins) and not at_run_time

    def _adds_directory(self, call: ast.Call, dotted: str) -> bool:
        """Whether it adds a directory that is known to the module search path."""
        added = path_of(call.args[-1], self._dotted, self.values) if call.args else None
        if added is None or call.keywords:
            return False
        directories = self.found.directories
        if dotted.endswith("append"):
            self.program.appended.append(added)
            return True
        match call.args[0]:
            case ast.Constant(value=int(index)) if 0 <= index <= len(directories):
                directories.insert(index, added)
                return True
        return False

    def _origin(self, value: ast.expr) -> str:
        """What a name stands for that gets this value: what made it, or `?`."""
        while isinstance(value, ast.Call | ast.Subscript | ast.Attribute | ast.Await):
            if isinstance(value, ast.Attribute) and (dotted := self._dotted(value)):
                return dotted
            if isinstance(value, ast.Call):
                dotted = self._dotted(value.func) or _VALUE
                if dotted.startswith("functools.") or dotted == "getattr":
                    return _UNKNOWN  # a function, which may call anything
                value = value.func
            else:
                if isinstance(value, ast.Subscript) and self._dotted(value.value) == "os.environ":
                    return _VALUE
                value = value.value
        match value:
            case ast.Name(id=name):
                origin = self._name(name)
                return _VALUE if origin == _UNKNOWN and name in ("__file__", "__name__") else origin
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return _worst(map(self._origin, parts))
            case ast.Dict(values=parts):
                return _worst(map(self._origin, parts))
            case ast.Constant() | ast.JoinedStr() | ast.BinOp() | ast.Compare() | ast.UnaryOp():
                return _VALUE
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                return _worst([self._origin(part)])
            case ast.BoolOp(values=parts):
                return _worst(map(self._origin, parts))
            case ast.IfExp(body=one, orelse=other):
                return _worst([self._origin(one), self._origin(other)])
        return _UNKNOWN

    def _name(self, name: str) -> str:
        return self.names.get(name, name if name in vars(builtins) else _UNKNOWN)

    def _dotted(self, node: ast.expr) -> str | None:
        """`os.environ.get` for a name or attribute, its first name resolved; None otherwise."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        first = self._name(node.id)
        if parts and (first == _VALUE or first in vars(builtins)):
            return f"{_VALUE}.{parts[0]}"  # a method of a number, a text, a list
        return ".".join([first, *reversed(parts)])


def _worst(origins: Iterable[str]) -> str:
    """Of what several values may stand for: a value only if all of them are values."""
    found = set(origins)
    for origin in (_OWN_CODE, _UNKNOWN):
        if origin in found:
            return origin
    return _UNKNOWN if found & SEEN_BY_IMPORTS else _VALUE


def _captured(pattern: ast.AST) -> Iterator[str]:
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it but the bodies of functions and lambdas."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        if not isinstance(found, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(found)
