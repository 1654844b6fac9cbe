"""Circles among the modules of a package, wherever an import hides.

An import inside a function, or for type checking only, still ties one module to the other, so each
counts. So does a name that is taken from a package which hands out those of its modules: it counts
as an import of its home. The imports by which such a package lists them for type checkers are its
offer, no need of its own. What is imported by a string is not seen.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.file.read_text(encoding="utf-8"))

    @cached_property
    def hands_out(self) -> dict[str, str]:
        """Where each name is from that it imports, if others may take it from here: `a.b.name`."""
        if self.file.name != "__init__.py":
            return {}
        return {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @property
    def is_lazy(self) -> bool:
        """Whether it is a package that imports what it hands out when asked for it (PEP 562)."""
        return self.file.name == "__init__.py" and any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
            for node in self.tree.body
        )


def modules_of(package: Path) -> dict[str, Module]:
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, file)
    return found


def graph_of(package: Path) -> dict[str, set[str]]:
    """Each module with those that it imports."""
    modules = modules_of(package)
    graph = {}
    for name, one in modules.items():
        homes = {_home(asked, modules) for asked in _asked(one, package.name)}
        graph[name] = {home for home in homes if home is not None and home != name}
    return graph


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """One circle, each module imported by the next; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def _asked(one: Module, top: str) -> Iterator[str]:
    """What a module asks for, dotted; of `from a import b` a.b."""
    offered = set()
    if one.is_lazy:
        for block in one.tree.body:
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
                offered = set(ast.walk(block))
    for node in ast.walk(one.tree):
        if node in offered:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{one.file}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.startswith(f"{top}."):
                yield dotted


def _home(asked: str, modules: dict[str, Module]) -> str | None:
    """The module that has what was asked for; None outside the package."""
    if asked in modules:
        return asked
    parent, _, name = asked.rpartition(".")
    while parent and parent not in modules:
        parent, _, name = parent.rpartition(".")
    if not parent:
        return None
    handed_out = modules[parent].hands_out.get(name)
    return parent if handed_out is None else _home(handed_out, modules)
