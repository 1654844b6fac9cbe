"""What a Python says of a program before it runs: a line that does not compile, an import that
must fail.

The job's own interpreter runs this file's text (`python -c`), perhaps an old one with nothing
installed: standard library alone. Sources are read, never run, and statements are followed in the
order in which Python would come to them, into the program's own modules, too. At the first one that
might change where Python looks, or end the program, the reading ends: what comes after it is not
certain, and only what is certain is said.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import warnings
from importlib.machinery import PathFinder
from typing import Any

_MOST_FILES = 200
_MOST_BYTES = 4 << 20
_PLACES = {"path", "modules", "meta_path", "path_hooks", "path_importer_cache"}
_OWN_PLACES = {"__path__", "__package__"}
_HARMLESS = (
    *("logging", "warnings", "os.path", "os.environ", "os.getenv", "os.getcwd", "os.cpu_count"),
    *("pathlib", "time", "datetime", "random", "math", "re", "functools", "dataclasses"),
    *("matplotlib.use", "numpy", "np", "torch", "property", "staticmethod", "classmethod"),
    *("dataclass", "partial", "Path", "str", "int", "len", "dict", "list", "set"),
)
"""Whose calls leave alone where Python looks, and return, as they are usually imported."""
_HARMFUL = ("torch.hub", "torch.utils.cpp_extension", "torch.ops", "torch.multiprocessing")
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_UNSURE = (*_DEFINES, ast.Raise, ast.Await, ast.Import, ast.ImportFrom, ast.Global)


class _Unsure(Exception):
    """What follows in the program cannot be told."""


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with the program `asked["script"]` or `asked["module"]`. asked["path"]:
    directories that Python searches before its own. The answer is plain data; None and empty:
    nothing is known to be wrong."""
    reading = _Reading(asked["path"])
    problem = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if module := asked.get("module"):
                problem = reading.start(module)
            else:
                reading.enter(asked["script"], None, True, is_main=True)
    except (_Unsure, OSError, RecursionError, MemoryError):
        pass
    return {
        "version": sys.version.split()[0],
        "module": problem,
        "syntax": reading.syntax,
        "relative": reading.relative,
        "missing": reading.missing,
    }


class _Source:
    """A file that is read."""

    def __init__(self, file: str, package: str | None, is_main: bool, tree: ast.Module) -> None:
        self.file, self.package, self.is_main = file, package, is_main
        self.own = {n.name for n in ast.walk(tree) if isinstance(n, _DEFINES)}
        """Names that it gives a meaning to, besides those that it imports."""
        stored = (n for n in ast.walk(tree) if isinstance(n, ast.Name))
        self.own |= {node.id for node in stored if isinstance(node.ctx, ast.Store)}


class _Reading:
    def __init__(self, path: list[str]) -> None:
        self.own = [os.path.realpath(entry) for entry in path]
        self.entered: set[str] = set()
        self.found: dict[str, Any] = {}
        self.missing: list[tuple[str, int, str]] = []
        self.syntax: tuple[str, int | None, int | None, str | None, str] | None = None
        self.relative: tuple[str, int] | None = None

    # ---- Where modules are

    def find(self, name: str) -> Any:
        """The spec of a top-level module, True for one without; None where there is none."""
        if name not in self.found:
            self.found[name] = self._find(name)
        return self.found[name]

    def _find(self, name: str) -> Any:
        if name in sys.builtin_module_names:
            return True
        try:
            spec = PathFinder.find_spec(name, [*self.own, *filter(None, sys.path)])
            if self.is_own(spec) and name in getattr(sys, "stdlib_module_names", ()):
                raise _Unsure  # Python may have loaded its own of that name before
            return spec or importlib.util.find_spec(name) is not None or None
        except (ImportError, ValueError, AttributeError):
            return True

    def is_own(self, spec: Any) -> bool:
        """Whether it is a source file of the program's."""
        origin = getattr(spec, "origin", None)
        if not origin or not origin.endswith(".py") or "site-packages" in origin:
            return False
        return any(os.path.realpath(origin).startswith(top + os.sep) for top in self.own)

    def within(self, spec: Any, name: str) -> Any:
        """The spec of the module `name` in a package, or None."""
        places = getattr(spec, "submodule_search_locations", None)
        return PathFinder.find_spec(name, [*places]) if places is not None else None

    # ---- What is executed

    def start(self, name: str) -> tuple[str, str] | None:
        """As `python -m NAME`; why it cannot start: `missing` and which part, or `no main`."""
        parts = name.split(".")
        specs: list[Any] = []
        for n, part in enumerate(parts):
            spec = self.within(specs[-1], part) if n else self.find(part)
            if spec is None:
                hidden = n and _finds_its_own(specs[-1])
                return None if hidden else ("missing", ".".join(parts[: n + 1]))
            if spec is True:
                return None
            specs.append(spec)
        packages = specs if _is_package(specs[-1]) else specs[:-1]
        main = self.within(specs[-1], "__main__") if packages is specs else specs[-1]
        if main is None:
            return None if _finds_its_own(specs[-1]) else ("no main", name)
        for n, spec in enumerate(packages):
            if self.is_own(spec):
                self.enter(spec.origin, ".".join(parts[: n + 1]), True)
        if self.is_own(main):
            self.enter(main.origin, ".".join(parts[: len(packages)]), True, is_main=True)
        return None

    def enter(self, file: str, package: str | None, needed: bool, is_main: bool = False) -> None:
        """Follow a file, once. package: that of its relative imports."""
        if file in self.entered:
            return
        self.entered.add(file)
        if len(self.entered) > _MOST_FILES or os.path.getsize(file) > _MOST_BYTES:
            raise _Unsure
        with open(file, "rb") as opened:
            text = opened.read()
        try:
            compile(text, file, "exec", dont_inherit=True)
            tree = ast.parse(text)
        except SyntaxError as error:
            if needed:
                self.syntax = (file, error.lineno, error.offset, error.text, error.msg)
            raise _Unsure from error
        except ValueError as error:
            raise _Unsure from error
        self.follow(tree.body, _Source(file, package, is_main, tree), needed)

    def follow(self, body: list[ast.stmt], source: _Source, needed: bool) -> None:
        """needed: without these imports the program ends."""
        for node in body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.load(alias.name.split("."), node.lineno, source, needed)
            elif isinstance(node, ast.ImportFrom):
                self.load_from(node, source, needed)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.decorate(node.decorator_list, source)
                self.look(source, *node.args.defaults, *filter(None, node.args.kw_defaults))
            elif isinstance(node, ast.ClassDef):
                self.decorate(node.decorator_list, source)
                self.look(source, *node.bases, *node.keywords)
                self.follow(node.body, source, needed)
            elif isinstance(node, ast.If):
                self.look(source, node.test)
                if not self.is_skipped(node.test, source):
                    self.follow(node.body, source, False)
                self.follow(node.orelse, source, False)
            else:
                self.follow_parts(node, source)

    def follow_parts(self, node: ast.stmt, source: _Source) -> None:
        """A plain statement, or one with others inside, which need not run."""
        inner = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        inner += [handler.body for handler in getattr(node, "handlers", [])]
        if not any(inner):
            self.look(source, node)
            return
        self.look(source, *(v for _, v in ast.iter_fields(node) if isinstance(v, ast.AST)))
        self.look(source, *getattr(node, "items", []))
        for statements in inner:
            self.follow(statements, source, False)

    def is_skipped(self, test: ast.expr, source: _Source) -> bool:
        """Of `if TYPE_CHECKING`, and in a module that is imported `if __name__ == "__main__"`."""
        said = ast.dump(test)
        is_guard = "'__name__'" in said and "'__main__'" in said and "Eq()" in said
        return "TYPE_CHECKING" in said or (is_guard and "NotEq" not in said and not source.is_main)

    def decorate(self, decorators: list[ast.expr], source: _Source) -> None:
        self.look(source, *decorators)
        for each in decorators:  # a call was looked at: what a harmless one returns is harmless
            if not isinstance(each, ast.Call) and not _is_harmless(each, source):
                raise _Unsure

    def look(self, source: _Source, *nodes: ast.AST) -> None:
        """Raises _Unsure for what might change where Python looks, or end the program."""
        waiting = [*nodes]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Lambda):
                continue
            unsure = isinstance(node, _UNSURE)
            if isinstance(node, ast.Call):
                unsure = not _is_harmless(node.func, source)
            elif isinstance(node, ast.Attribute) and node.attr in _PLACES | _OWN_PLACES:
                unsure = _dotted(node) != "os.path"
            elif isinstance(node, ast.Name):
                unsure = node.id in _OWN_PLACES
            if unsure:
                raise _Unsure
            waiting.extend(ast.iter_child_nodes(node))

    # ---- What is imported

    def load_from(self, node: ast.ImportFrom, source: _Source, needed: bool) -> None:
        parts = node.module.split(".") if node.module else []
        if node.level:
            if not source.package and source.is_main and needed:
                self.relative = (source.file, node.lineno)
            above = source.package.split(".") if source.package else []
            if node.level > len(above):
                raise _Unsure
            parts = above[: len(above) - node.level + 1] + parts
        names = {alias.name for alias in node.names}
        if parts == ["sys"] and names & {*_PLACES, "*"}:
            raise _Unsure
        spec = self.load(parts, node.lineno, source, needed)
        for alias in node.names:
            inner = self.within(spec, alias.name)
            if self.is_own(inner):
                package = [*parts, alias.name] if _is_package(inner) else parts
                certain = needed and not _names(spec, alias.name)
                self.enter(inner.origin, ".".join(package), certain)

    def load(self, parts: list[str], line: int, source: _Source, needed: bool) -> Any:
        """Follow `import a.b.c` through the program's own modules; the last one's spec, or None
        where it is installed or missing."""
        spec: Any = None
        for n, part in enumerate(parts):
            before, spec = spec, self.within(spec, part) if n else self.find(part)
            if spec is None:
                certain = n == 0 or (self.is_own(before) and not _finds_its_own(before))
                if needed and certain:
                    self.missing.append((source.file, line, ".".join(parts[: n + 1])))
                return None
            if self.is_own(spec):
                package = parts[: n + 1] if _is_package(spec) else parts[:n]
                self.enter(spec.origin, ".".join(package), needed)
            elif spec is True or (n == 0 and spec.origin):
                return None
        return spec


def _is_harmless(function: ast.expr, source: _Source) -> bool:
    """Whether a call of it leaves alone where Python looks, and returns."""
    name = f"{_dotted(function)}."
    harmless = any(name.startswith(f"{each}.") for each in _HARMLESS)
    harmful = any(name.startswith(f"{each}.") for each in _HARMFUL)
    return harmless and not harmful and name.partition(".")[0] not in source.own


def _dotted(node: ast.expr) -> str:
    """`a.b.c`; `?` in the place of what is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts, node = [node.attr, *parts], node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *parts])


def _is_package(spec: Any) -> bool:
    return spec.submodule_search_locations is not None


def _names(spec: Any, name: str) -> bool:
    """Whether a package's own code has that name, so that a module of the same need not be it."""
    if not spec.origin:
        return False
    with open(spec.origin, "rb") as file:
        return name.encode() in file.read()


def _finds_its_own(spec: Any) -> bool:
    """Whether a package may find its modules in a way of its own."""
    return any(_names(spec, w) for w in ("__path__", "sys.modules", "meta_path", "__import__"))


if __name__ == "__main__":
    sys.path[:] = filter(None, sys.path)  # not the directory that this is typed in
    print(json.dumps(answer(json.load(sys.stdin))))
