"""Which libraries a script imports before it does anything that their import could notice.

These may be loaded before the script runs. A script that changes the environment, or calls what
might, and only then imports a library, expects that library to see the change: it cannot be loaded
already. The source is read in the order in which Python would run it, files beside the script
included, and never executed.
"""

from __future__ import annotations

import ast
import builtins
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fsdpkit.launching.path_expressions import path_of, value_of
from fsdpkit.launching.program import ColdStartError, Program

WITH_TORCH = (
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "torch._dynamo",
)
"""What a script that imports torch comes to need; the last by the first step of an optimizer."""

# Read when a device or a process group is made, not when a library is loaded.
_READ_LATE = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"),
        *("TOKENIZERS_PARALLELISM", "CUBLAS_WORKSPACE_CONFIG"),
    }
)
_READ_LATE_BY_PREFIX = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "WANDB_")
# Modules and functions of Python itself that may change what a later import finds or sees.
_NOTICED = frozenset({"importlib", "runpy", "ctypes", "site", "pkgutil", "imp", "builtins"})
_NOTICED_CALLS = frozenset(
    {
        *("os.putenv", "os.unsetenv", "os.chdir", "os.fork", "sys.path.insert"),
        *("sys.path.remove", "sys.path.pop", "sys.path.clear", "sys.path.extend"),
        "sys.path.append",
        *("sys.modules.pop", "sys.modules.update", "sys.modules.setdefault"),
    }
)
_NOTICED_BUILTINS = frozenset(
    {"exec", "eval", "compile", "__import__", "setattr", "delattr", "globals", "locals", "input"}
)
_QUIET_LIBRARIES = ("torch", "numpy")
"""Loaded in any case; their functions change nothing that another import would notice."""
_VALUES = (ast.Constant, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.BinOp, ast.JoinedStr)
_ENVIRON_METHODS = frozenset({"update", "setdefault", "pop", "clear", "popitem", "__setitem__"})
_UNKNOWN = "?"
_VALUE = "str"
"""Stands for any value of Python's own types, whose methods nobody else notices."""


@dataclass
class Imports:
    """What reading a script has found."""

    first: list[str] = field(default_factory=list)
    """Modules of installed libraries, imported before `noticed`, in order."""
    noticed: str | None = None
    """The first statement that later imports might notice, as `train.py:7`."""
    later: dict[str, str] = field(default_factory=dict)
    """Libraries (top-level names) imported only afterwards, or in functions, and where."""
    directories: list[Path] = field(default_factory=list)
    """Where the program finds modules before the installed ones: its own, and what it adds."""


@dataclass(frozen=True)
class Preload:
    """What may be loaded before a program runs."""

    modules: tuple[str, ...]
    """In the program's order; `a.b:c` is c of a.b, a module or not."""
    directories: tuple[str, ...]
    """Where the program would find other modules of the same names first."""


def preload_of(program: Program, *, elsewhere: bool = False) -> Preload:
    """What may be loaded before the program runs.

    elsewhere: it will run in another environment, so a module that is not found here is taken for
    a library. Raises ColdStartError if the program wants torch, or what torch has loaded, to be
    loaded later, or its source cannot be read.
    """
    imports = imports_of(program, elsewhere=elsewhere)
    early = {name.partition(".")[0] for name in imports.first}
    for name in _QUIET_LIBRARIES:
        if name not in early and name in imports.later:
            raise ColdStartError(
                f"{imports.later[name]} imports {name} after {imports.noticed or 'its start'}, "
                "which that import might notice"
            )
    needed = WITH_TORCH if "torch" in early else ()
    modules = tuple(dict.fromkeys([*needed, *imports.first]))
    return Preload(modules, tuple(map(str, imports.directories)))


def imports_of(program: Program, *, elsewhere: bool = False) -> Imports:
    """Read the program's source, and that of its own modules. Raises ColdStartError."""
    reader = _Reader(Path(program.directory), elsewhere)
    if program.is_module:
        reader.enter_module(program.name)
    else:
        reader.enter(Path(program.name), main=True)
    return reader.imports


class _Reader:
    """Walks statements in the order in which they run."""

    def __init__(self, directory: Path, elsewhere: bool) -> None:
        self.directory, self.in_other_environment = directory, elsewhere
        self.imports = Imports(directories=[directory])
        self.appended: list[Path] = []
        self._seen: set[Path] = set()
        self._path = [p for p in sys.path if p and Path(p) != directory]
        self._libraries = _library_directories()

    # Files

    def enter(self, path: Path, *, main: bool = False) -> None:
        """Read one source file, once."""
        path = path.resolve()
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError) as error:
            if main:
                raise ColdStartError(f"{path} cannot be read as Python ({error})") from error
            return  # importing it fails, too
        _File(self, path, main).visit(tree.body)

    def enter_module(self, name: str) -> None:
        """Read what `python -m NAME` would run."""
        parts = name.split(".")
        found = None
        for search in ([str(self.directory)], self._path):
            for depth in range(1, len(parts) + 1):
                spec = PathFinder.find_spec(".".join(parts[:depth]), search)
                if spec is None:
                    found = None
                    break
                found = spec
                search = [*(spec.submodule_search_locations or [])]
                if spec.origin and depth < len(parts):
                    self.enter(Path(spec.origin))
            if found is not None:
                break
        if found is None or not found.origin:
            raise ColdStartError(f"the module {name} is not found")
        origin = Path(found.origin)
        if found.submodule_search_locations:
            self.enter(origin)
            origin = origin.with_name("__main__.py")
        self.enter(origin, main=True)

    def local(self, name: str, base: Path | None = None) -> Path | None:
        """The source of a module that lies beside the script (or in `base`)."""
        for directory in [base] if base else self.imports.directories:
            path = directory.joinpath(*name.split("."))
            for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                if candidate.is_file():
                    return candidate
        return None

    def is_loaded(self, name: str) -> bool:
        """Whether the program has imported this top-level name before anything was noticed."""
        return any(module.partition(".")[0] == name for module in self.imports.first)

    def elsewhere(self, name: str) -> Path | None:
        """The source of a top-level module that lies on $PYTHONPATH, or where the script looks
        last."""
        spec = PathFinder.find_spec(name, self._path)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
        return next(filter(None, (self.local(name, where) for where in self.appended)), None)

    def is_library(self, name: str) -> bool:
        """Whether this top-level name is an installed library, or Python's own."""
        if name in ("fsdpkit", *_QUIET_LIBRARIES) or name in sys.stdlib_module_names:
            return True
        spec = PathFinder.find_spec(name, self._path)
        origin = spec.origin if spec else None
        return origin is not None and any(
            Path(origin).is_relative_to(where) for where in self._libraries
        )


def _library_directories() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(p) for p in {paths["purelib"], paths["platlib"], *site.getsitepackages()}]


class _File:
    """The names of one source file, as far as they tell whether calling them can be noticed."""

    def __init__(self, reader: _Reader, path: Path, main: bool) -> None:
        self.reader, self.path, self.main = reader, path, main
        self.names: dict[str, str] = {}
        """Name → the dotted thing it stands for; `?` for what nobody can say."""
        self.values: dict[str, Any] = {"__file__": str(path)}

    def place(self, node: ast.AST) -> str:
        return f"{self.path.name}:{getattr(node, 'lineno', 0)}"

    def notice(self, node: ast.AST) -> None:
        self.reader.imports.noticed = self.reader.imports.noticed or self.place(node)

    def visit(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._visit(statement)

    def _visit(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._imported(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._look(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
                self.names[node.name] = _UNKNOWN
                self._inner(node)
            case ast.ClassDef():
                self._look(*node.decorator_list, *node.bases, *(k.value for k in node.keywords))
                self.visit(node.body)
                self.names[node.name] = _UNKNOWN
            case ast.If():
                self._branches(node)
            case ast.For() | ast.AsyncFor():
                self._look(node.iter)
                self._bind(node.target, self._origin(node.iter))
                self.visit([*node.body, *node.orelse])
            case ast.While():
                self._look(node.test)
                self.visit([*node.body, *node.orelse])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._look(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, self._origin(item.context_expr))
                self.visit(node.body)
            case ast.Try():
                handlers = [s for handler in node.handlers for s in handler.body]
                self.visit([*node.body, *handlers, *node.orelse, *node.finalbody])
            case _:
                self._plain(node)

    def _branches(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.visit(node.orelse)
        elif "__name__" in test and "__main__" in test:
            if self.main:
                self.visit(node.body)
        else:
            self._look(node.test)
            self.visit([*node.body, *node.orelse])

    # Imports

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self.names[bound] = alias.name if alias.asname else bound
                self._import(alias.name, node)
            return
        if node.level:
            base = self.path.parents[node.level - 1]
            for name in [node.module] if node.module else [a.name for a in node.names]:
                if name and (found := self.reader.local(name, base)):
                    self.reader.enter(found)
        for alias in node.names:
            whole = f"{node.module or ''}.{alias.name}"
            self.names[alias.asname or alias.name] = _UNKNOWN if node.level else whole
        if not node.level and node.module:
            self._import(node.module, node, [a.name for a in node.names if a.name != "*"])

    def _import(self, name: str, node: ast.AST, members: Iterable[str] = ()) -> None:
        top = name.partition(".")[0]
        if self.reader.local(top):
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                if found := self.reader.local(".".join(parts[:depth])):
                    self.reader.enter(found)
            for member in members:
                if found := self.reader.local(f"{name}.{member}"):
                    self.reader.enter(found)
            self.names[top] = self.names.get(top, _UNKNOWN)
            return
        imports = self.reader.imports
        if not self.reader.is_library(top):
            if found := self.reader.elsewhere(top):
                self.reader.enter(found)
            elif top not in sys.builtin_module_names and not self.reader.in_other_environment:
                self.notice(node)  # nobody knows what that is
        elif imports.noticed is None:
            imports.first.append(name)
            imports.first += [f"{name}:{member}" for member in members]
        else:
            imports.later.setdefault(top, self.place(node))

    def _inner(self, function: ast.AST) -> None:
        """What a function imports when it is called, some time later."""
        for node in ast.walk(function):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for name in modules:
                top = name.partition(".")[0]
                if self.reader.local(top) is None and not self.reader.is_loaded(top):
                    self.reader.imports.later.setdefault(top, self.place(node))

    # Statements that import nothing

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
        """An assignment to something of somebody else's: an attribute, an item."""
        match target:
            case ast.Subscript(value=value, slice=key):
                if self._dotted(value) == "os.environ":
                    if not _is_read_late(key):
                        self.notice(node)
                elif (self._dotted(value) or "").startswith(("sys.", "os.")):
                    self.notice(node)
            case ast.Attribute() | ast.Name():
                dotted = self._dotted(target) or ""
                if dotted.startswith(("sys.", "os.")) and isinstance(target, ast.Attribute):
                    self.notice(node)
                if isinstance(target, ast.Name) and dotted == "os.environ":
                    self.notice(node)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._assigned(part, node)

    def _bind(self, target: ast.expr, origin: str) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.names[node.id] = origin
                self.values.pop(node.id, None)

    def _look(self, *nodes: ast.AST | None) -> None:
        """Every call that happens when these are evaluated."""
        for node in nodes:
            for found in _evaluated(node) if node is not None else ():
                if isinstance(found, ast.Call) and not self._is_quiet(found):
                    self.notice(found)
                if isinstance(found, ast.NamedExpr):
                    self._bind(found.target, self._origin(found.value))

    def _is_quiet(self, call: ast.Call) -> bool:
        dotted = self._dotted(call.func)
        if dotted in ("sys.path.insert", "sys.path.append") and len(call.args):
            added = path_of(call.args[-1], self._dotted, self.values)
            if added is not None and not call.keywords:
                self._add(added, last=dotted.endswith("append"))
                return True
        if dotted is None:  # a method of what an expression gave, which is looked at by itself
            return True
        top, _, rest = dotted.partition(".")
        if dotted.startswith("os.environ."):
            if dotted.removeprefix("os.environ.") not in _ENVIRON_METHODS:
                return True
            names = [*call.args[:1], *(ast.Constant(k.arg) for k in call.keywords)]
            return bool(names) and all(_is_read_late(name) for name in names)
        if top == _UNKNOWN or top in _NOTICED or dotted in _NOTICED_CALLS:
            return False
        if dotted.startswith("os.exec"):
            return False
        if top in sys.stdlib_module_names or top in _QUIET_LIBRARIES:
            return True
        return not rest and top in vars(builtins) and top not in _NOTICED_BUILTINS

    def _add(self, directory: Path, *, last: bool) -> None:
        """A directory that the program adds to the module search path."""
        directories = self.reader.imports.directories
        if last:
            self.reader.appended.append(directory)
        elif directory not in directories:
            directories.append(directory)

    def _origin(self, value: ast.expr) -> str:
        """What a name stands for that gets this value: what made it, or `?`."""
        while isinstance(value, ast.Call | ast.Subscript | ast.Attribute | ast.Await):
            if isinstance(value, ast.Attribute) and (dotted := self._dotted(value)):
                return dotted
            value = value.func if isinstance(value, ast.Call) else value.value
        if isinstance(value, ast.Name):
            return self.names.get(value.id, value.id)
        return _VALUE if isinstance(value, _VALUES) else _UNKNOWN

    def _dotted(self, node: ast.expr) -> str | None:
        """`os.environ.get` for a name or attribute, its first name resolved; None otherwise."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        first = self.names.get(node.id, node.id)
        if first.partition(".")[0] in vars(builtins) and parts:
            return None  # a method of a number, a text, a list
        return ".".join([first, *reversed(parts)])


def _is_read_late(key: ast.expr) -> bool:
    match key:
        case ast.Constant(value=str(name)):
            return name in _READ_LATE or name.startswith(_READ_LATE_BY_PREFIX)
        case ast.Dict(keys=keys):
            return all(name is not None and _is_read_late(name) for name in keys)
    return False


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it but the bodies of functions and lambdas."""
    yield node
    if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in ast.iter_child_nodes(node):
        yield from _evaluated(child)


def load(modules: Iterable[str]) -> None:
    """Import them; `a.b:c` imports a.b, and a.b.c if that is a module."""
    for name in modules:
        module, _, member = name.partition(":")
        __import__(module)
        if member and not hasattr(sys.modules[module], member):
            path = f"{module}.{member}"
            if hasattr(sys.modules[module], "__path__") and PathFinder.find_spec(
                path, [*sys.modules[module].__path__]
            ):
                __import__(path)
