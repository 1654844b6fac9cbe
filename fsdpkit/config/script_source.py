"""A training script as text: read and syntax_of, never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fsdpkit.bounded import SCRIPT_BYTES, open_regular

_RUNS_OTHER_CODE = frozenset({"runpy", "importlib"})
_READER = "fsdpkit.training.command_line"
"""Who imports this reads the settings in `[training]`, through `--job`."""


def read_source(entry: Path) -> bytes | None:
    """None for what is too large to be a script that a person wrote. Raises OSError."""
    with open_regular(entry, links=True) as file:
        source = file.read(SCRIPT_BYTES + 1)
    return source if len(source) <= SCRIPT_BYTES else None


def syntax_of(source: bytes) -> ast.Module | None:
    """None where this Python cannot parse it; the script's own may."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def has_main_guard(tree: ast.Module) -> bool:
    """Whether it does something only where it is run, as a program."""
    return any(isinstance(node, ast.If) and _is_main_guard(node.test) for node in tree.body)


def trains_when_imported(tree: ast.Module) -> int | None:
    """The line of a backward pass, or of a process group that is joined, which runs as soon as the
    file is imported: outside of functions and of the guard of a program, or in a function of the
    file that is called there, or handed to who calls it. None where none is seen."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    waiting, seen = list(_at_import(tree.body)), set[str]()
    for node in waiting:
        if not isinstance(node, ast.Call):
            continue
        if getattr(node.func, "attr", getattr(node.func, "id", None)) in _TRAINS:
            return node.lineno
        for each in (node.func, *node.args):
            if isinstance(each, ast.Name) and each.id in functions and each.id not in seen:
                seen.add(each.id)
                waiting += chain.from_iterable(map(ast.walk, functions[each.id].body))
    return None


_TRAINS = frozenset({"backward", "init_process_group", "process_group"})


def _at_import(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """What is evaluated when a module with these statements is imported."""
    waiting: list[ast.AST] = [*statements]
    for node in waiting:
        if isinstance(node, ast.If) and _is_main_guard(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += getattr(node, "decorator_list", [])
        else:
            yield node
            waiting += ast.iter_child_nodes(node)


def _is_main_guard(test: ast.expr) -> bool:
    said = ast.unparse(test)
    return "__name__" in said and "'__main__'" in said


def reads_settings(tree: ast.Module, *beside: Path) -> bool:
    """Whether a script may read `[training]`: it, or a module that lies `beside` it, imports who
    does, names the option itself, or runs code that is not seen here."""
    names = set[str]()
    for one in _with_modules(tree, *beside):
        if one is None or any(_reads_them(node) for node in ast.walk(one)):
            return True
        names |= _imported(one)
    return bool(names & _RUNS_OTHER_CODE)


def names_fsdpkit(tree: ast.Module, *beside: Path) -> bool:
    """Whether a script, or a module that lies `beside` it, names us: then it may save and stop when
    it is warned. Also where code is not seen here."""
    return any(
        one is None
        or "fsdpkit" in _imported(one)
        or any(isinstance(n, ast.Constant) and "fsdpkit" in str(n.value) for n in ast.walk(one))
        for one in _with_modules(tree, *beside)
    )


def settings_named(tree: ast.Module, beside: Path) -> frozenset[str] | None:
    """Names of attributes and keys that a script and the modules `beside` it use, among them those
    of the settings that it reads; None where some of its code is not seen here."""
    names, found = set[str](), set[str]()
    for one in _with_modules(tree, beside):
        if one is None:
            return None
        names |= _imported(one)
        for node in ast.walk(one):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return None if names & _RUNS_OTHER_CODE else frozenset(found)


def _with_modules(tree: ast.Module, *beside: Path) -> Iterator[ast.Module | None]:
    """A script and the modules beside it that it imports, and so on; None: no Python to read."""
    trees, names = [tree], set[str]()
    for one in trees:
        yield one
        for name in _imported(one) - names:
            names.add(name)
            found = ((at / f"{name}.py", at / name / "__init__.py") for at in beside)
            for path in filter(Path.is_file, chain.from_iterable(found)):
                source = read_source(path)
                if source is None or (read := syntax_of(source)) is None:
                    yield None
                else:
                    trees.append(read)


def _imported(tree: ast.Module) -> set[str]:
    """Top-level names of all modules that are imported anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _reads_them(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        through = node.module == "fsdpkit.training" and names & {"read_settings", "command_line"}
        return node.module == _READER or bool(through)
    if isinstance(node, ast.Import):
        return any(alias.name == _READER for alias in node.names)
    if isinstance(node, ast.Attribute):
        return node.attr == "read_settings"
    return isinstance(node, ast.Constant) and node.value == "--job"
